"""What API servers, Prometheus servers and other programs answer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from simgpu import errors
from simgpu.cluster import binaries, checksums, durations, fetch, origins, processes, record
from simgpu.controllers import knative
from simgpu.dra import claims, slices
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import quantity, resources, views, watching
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store, key_of_identity
from simgpu.loadtest.measurements import bench, prometheus_query, scheduler
from simgpu.promql import asking
from simgpu.vocabulary import CLUSTER_ENV, COMPONENT_ENV
from tests.fuzz.target import Target, awaited, encoded, numbered, scratch, split, text

_CLAIMS = Resource("ResourceClaim", "resourceclaims", claims.AllocatedClaim, group="resource.k8s.io")
_SLICES = Resource("ResourceSlice", "resourceslices", slices.PublishedSlice, group="resource.k8s.io", namespaced=False)
_RESOURCES: tuple[Resource[views.Object], ...] = (
    resources.PODS, resources.NODES, resources.CONFIG_MAPS, _CLAIMS, _SLICES, resources.LEASES, resources.EVENTS,
    resources.JOBS, resources.POD_GROUPS, resources.NODE_RESOURCE_TOPOLOGIES, resources.DEVICE_CLASSES,
    resources.RESOURCE_CLAIMS, resources.RESOURCE_SLICES, resources.NAMESPACES,
)  # type: ignore[assignment] # fmt: skip
_META = '"metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"7"}'
_STREAM = "\n".join(
    f'{{"type":"{kind}","object":{{{_META},{body}}}}}'
    for kind, body in (
        ("ADDED", '"spec":{"nodeName":"n","containers":[{"name":"c","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}'),
        ("MODIFIED", '"data":{"a":"b"},"status":{"phase":"Running","capacity":{"nvidia.com/gpu":"8"}}'),
        ("DELETED", '"status":{}'),
        ("BOOKMARK", '"kind":"Pod"'),
        ("ERROR", '"code":410,"reason":"Expired","message":"too old","details":{"retryAfterSeconds":1}'),
    )
)
_SLICE = (
    f'{{"type":"ADDED","object":{{{_META},"spec":{{"driver":"gpu.nvidia.com","nodeName":"n","sharedCounters":[],'
    '"pool":{"name":"p","generation":1,"resourceSliceCount":1},"devices":[{"name":"gpu-0","basic":{"attributes":{},'
    '"capacity":{"memory":{"value":"1Gi"}}},"taints":[{"key":"k","effect":"NoSchedule","timeAdded":"x"}]}]}}}\n'
)
_CLAIM = (
    f'{{"type":"ADDED","object":{{{_META},"status":{{"reservedFor":[{{"resource":"pods","name":"p","uid":"u"}}],'
    '"allocation":{"devices":{"results":[{"request":"r","driver":"gpu.nvidia.com","pool":"n","device":"gpu-0",'
    '"shareID":"s","consumedCapacity":{"memory":"1Gi"}}],"config":[]}}}}\n'
)
_PAGE = f"""# TYPE {scheduler.E2E} histogram
{scheduler.E2E}_bucket{{verb="a\\"b",le="0.5"}} 1
{scheduler.E2E}_bucket{{verb="a",le="+Inf"}} 2
{scheduler.E2E}_sum 3.5
{scheduler.E2E}_count 2
"""
_QUERIES = {"queries": [{"name": "q", "query": "up[%v]", "threshold": 3}], "dimensions": ["a", "le"]}


def _vector(labels: str) -> str:
    series = f'{{"metric":{{{labels}}},"value":[1,"2"]}}'
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for piece in data.split(b"\0|\0"):
        yield piece


async def _stream(data: bytes) -> None:
    """Each line of a watch is an event, or ends the watch with an error of the API; a store takes all events."""
    number, rest = split(data, len(_RESOURCES))
    read: watching.EventDecoder[views.Object] = watching.EventDecoder(_RESOURCES[number])
    store: Store[views.Object] = Store()
    with contextlib.suppress(kube_errors.KubeError):
        async for batch in watching.lines(_pieces(rest)):
            for line in batch:
                _apply(read(line), store)


def _apply(
    event: watching.WatchEvent[views.Object] | watching.Deleted | watching.Bookmark, store: Store[views.Object]
) -> None:
    if isinstance(event, watching.Bookmark):
        event.resource_version.encode()
    elif isinstance(event, watching.Deleted):
        store.remove(key_of_identity(event.metadata))
    else:
        store.put(event.object)
        if isinstance(event.object, claims.AllocatedClaim):
            _check_claim(event.object)


def _check_claim(claim: claims.AllocatedClaim) -> None:
    for device in claims.devices_of(claim):
        assert device.memory_mib is None or device.memory_mib >= 0
        with contextlib.suppress(errors.InputError):
            claim.configs.of_request(device.request)


def _answer(data: bytes) -> None:
    """A list, an error or an object is decoded, or is reported as unreadable."""
    number, rest = split(data, len(_RESOURCES))
    with contextlib.suppress(kube_errors.KubeError):
        page = kube_client._page(rest, _RESOURCES[number])
        for item in page.items or ():
            item.metadata.name.encode()
    error = kube_errors.from_response(400 + number, rest)
    str(error).encode()


def _quantity(data: bytes) -> None:
    """A quantity is an exact number that can be written again, or `ValueError`."""
    try:
        amount = quantity.parse(text(data))
    except ValueError as error:
        str(error).encode()
        return
    assert quantity.count(text(data)) >= 0
    if amount.denominator == 1 and 0 <= amount < 2**63:
        assert quantity.parse(quantity.canonical(int(amount))) == amount
        assert quantity.parse(quantity.binary(int(amount))) == amount


async def _metrics(data: bytes) -> None:
    """Of a scheduler's pages of metrics, before and after, a load test has latencies, or a reason to have none."""
    pages = iter((text(data) + "\0").split("\0"))

    async def read() -> str:
        return next(pages)

    there: Any = SimpleNamespace(prometheus="", scheduler=read)
    await _measured(scheduler.SchedulingMetrics(there, "m"), {})


async def _samples(data: bytes) -> None:
    """Of an answer of Prometheus, a load test has figures and the controller rates, or a reason to have none."""

    async def fetch(_url: str, _seconds: float) -> bytearray:
        return bytearray(data)

    there: Any = SimpleNamespace(prometheus="http://prometheus")
    with mock.patch.object(asking, "_fetch", fetch):
        await _measured(scheduler.SchedulingMetrics(there, "m"), {})
        await _measured(prometheus_query.GenericPrometheusQuery(there), _QUERIES)
        with contextlib.suppress(asking.QueryError):
            assert all(rate > 0 for rate in knative.rates(await asking.instant("", "up")).values())


async def _measured(measurement: bench.Measurement, params: dict[str, Any]) -> None:
    """What a measurement gathers can be written to a report, with finite figures."""
    await measurement.execute("x", {**params, "action": "start"})
    try:
        found = await measurement.execute("x", {"action": "gather"})
    except errors.SimgpuError as error:
        str(error).encode()
        return
    for summary in found.summaries:
        msgspec.json.encode(summary.content)
        json.dumps(summary.content, allow_nan=False)
    "".join(found.violations).encode()


def _local(data: bytes) -> None:
    """What is known of a local cluster and its programs is used, or is as good as none, or is refused with its file."""
    home = _home()
    program, folder = home / "program", record.Folder("a")
    folder.record = home / "cluster.json"
    for path in (program.with_name(".program.origin.json"), folder.record, home / "simgpu/durations.json"):
        path.write_bytes(data)
    origins.origin_of(program)
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(home)):
        durations.recall("up")
    known = checksums.published(data, "program")
    assert known is None or len(known) == 64
    version = binaries.parse_version(text(data))
    assert version is None or max(version) < 10**9
    tags = processes.read_tags(data)
    assert tags is None or data.count(b"=") >= len(tags)
    partial = fetch.Partial(home / "download")
    (home / "download.version").write_bytes(data)
    header = partial.version()
    assert "\n" not in header + header.encode("ascii").decode()
    try:
        folder.load()
    except errors.SimgpuError as error:
        str(error).encode()


@functools.cache
def _home() -> Path:
    home = scratch()
    (home / "simgpu").mkdir()
    (home / "program").write_bytes(b"x")
    return home


_LOCAL = (
    '{"name":"a","ports":{"apiserver":6443},"nodes":3,"gpus":"h100:8","complete":true}',
    '{"url":"https://example.com/program","size":1,"sha256":"' + "0" * 64 + '"}',
    '{"assets":[{"name":"program","digest":"sha256:' + "a" * 64 + '"}]}',
    "0" * 64, f"{'b' * 64}  ./program\n", '{"up":3.5}',
    f"PATH=/bin\0{CLUSTER_ENV}=/tmp/a\0{COMPONENT_ENV}=etcd\0", "etcd Version: 3.6.16\nGit SHA: none", '"abc"',
)  # fmt: skip
_SERIES = ('"a":"b"', '"le":"0.5"', '"namespace":"ns","pod":"p"')
_WATCHED = [[_STREAM], [_STREAM], [_STREAM], [_CLAIM], [_SLICE], *[[_STREAM]] * (len(_RESOURCES) - 5)]
_LISTED = f'{{"metadata":{{"resourceVersion":"7","continue":"c"}},"items":[{{{_META}}},{{"metadata":3}}]}}'

TARGETS = (
    Target("watch-streams", awaited(_stream), numbered(_WATCHED)),
    Target("api-answers", _answer, numbered([[_LISTED]] * len(_RESOURCES))),
    Target("local-files", _local, encoded(_LOCAL)),
    Target("quantities", _quantity, encoded(["1", "1.5Gi", "2e3", "-3m", "12E", "100Ki", "+.5"]), max_length=256),
    Target("metrics-pages", awaited(_metrics), encoded([f"\0{_PAGE}", f"{_PAGE}\0{_PAGE}"]), (scheduler.E2E, "le")),
    Target("prometheus-answers", awaited(_samples), encoded(map(_vector, _SERIES)), ("le", "+Inf", "namespace", "pod")),
)  # fmt: skip
