"""Objects of the API that few programs read: leases of leaders and of load tests, and profiles of GPUs."""

from __future__ import annotations

import datetime
import math

from simgpu import vocabulary
from simgpu.controllers.configuring import Configuration
from simgpu.kube import errors as kube_errors
from simgpu.kube import leading, views
from simgpu.kube.client import decode
from simgpu.kube.lease_time import LeaseTime
from simgpu.kube.store import Store
from simgpu.loadtest import heartbeat
from tests.fixtures import annotated, boxes
from tests.fuzz.inputs import configured
from tests.fuzz.target import Target, awaited, encoded, files, text

_NOW = 1_700_000_000.0
_UTC = datetime.datetime.fromtimestamp(_NOW, datetime.UTC)
_YEAR = 366 * 86400.0 + 1  # seconds
_LEASE = (
    '{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7"},"spec":{"holderIdentity":"h",'
    '"leaseDurationSeconds":15,"leaseTransitions":3,"renewTime":"2023-11-14T22:13:20.123456Z"}}'
)
_TOPOLOGY = "nodePools: {q: {gpu: {profile: p}}}"
_OVERRIDDEN = "nodePools: {p: {gpu: {profile: p, overrides: {device_count: 1}}}, q: {gpu: {profile: p}}}"
_PROFILE = """
system: {driver_version: "550.163.01", cuda_version: "12.4", nvml_version: "12.550"}
device_defaults:
  name: NVIDIA A100-SXM4-40GB
  architecture: ampere
  compute_capability: {major: 8, minor: 0}
  memory: {total_bytes: 42949672960}
device_count: 2
devices: [{index: 0, uuid: GPU-1}, {index: 1}]
"""


async def _lease(data: bytes) -> None:
    """A lease has a time that is believed or not, and is valid for seconds that are a number; or it is unreadable."""
    try:
        lease = decode(data, views.Lease)
    except kube_errors.UnreadableAnswer:
        return
    heartbeat.liveness(lease, _UTC)
    time = LeaseTime(lambda: _NOW, lambda: 0.0)
    time.follow(lease)
    assert _NOW <= time.now() < _NOW + _YEAR
    assert time.utc_now() >= _UTC
    election = leading.Election(None, "a", namespace="ns", identity="us", time=time)  # type: ignore[arg-type]
    assert math.isfinite(election._seconds_left(lease))


def _profile(data: bytes) -> None:
    """A pool of a profile has GPUs, or the problem is reported with the field."""
    store: Store[views.ConfigMap] = Store()
    topology = _OVERRIDDEN if len(data) % 16 == 0 else _TOPOLOGY  # for each pool, the profile is read again
    store.replace([_map(vocabulary.TOPOLOGY, topology), _map(f"{vocabulary.PROFILE_PREFIX}p", text(data))])
    events = annotated.Events()
    made = Configuration(store, events, namespace="ns", catalog=boxes.CATALOG)  # type: ignore[arg-type]
    made.read()
    assert made.current is not None
    configured.check_nodes(made.current)
    assert made.current.pools or made.problems
    for _, message in events.found:
        message.encode()


def _map(name: str, content: str) -> views.ConfigMap:
    key = vocabulary.TOPOLOGY_KEY if name == vocabulary.TOPOLOGY else vocabulary.PROFILE_KEY
    return views.ConfigMap(metadata=views.ObjectMeta(name=name, namespace="ns", uid=name), data={key: content})


TARGETS = (
    Target("leases", awaited(_lease), encoded([_LEASE])),
    Target("pool-profiles", _profile, (*encoded([_PROFILE]), *files("deploy/chart/files/profiles/*.yaml")[:3])),
)
