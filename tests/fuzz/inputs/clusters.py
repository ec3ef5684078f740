"""What API servers, Prometheus servers and other programs answer."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

from simgpu import errors
from simgpu.cluster import checksums, durations, origins, record
from simgpu.dra import claims, slices
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import quantity, resources, views, watching
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store, key_of_identity
from simgpu.loadtest.measurements import histograms
from simgpu.promql import asking
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
_PAGE = """# TYPE x histogram
x_bucket{verb="a\\"b",le="0.5"} 1
x_bucket{verb="a",le="+Inf"} 2
x_sum 3.5
x_count 2
"""


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


def _metrics(data: bytes) -> None:
    """A page of metrics has buckets with finite counts."""
    try:
        before, after = (histograms.read(part, "x") for part in (text(data) + "\0").split("\0")[:2])
    except errors.SimgpuError:
        return
    for buckets in (before, after, histograms.increase(before, after)):
        assert not math.isnan(histograms.quantile(buckets, 0.99))


def _samples(data: bytes) -> None:
    """An answer of Prometheus has samples, or is refused."""
    with contextlib.suppress(asking.QueryError):
        for sample in asking.read(data, "server"):
            assert math.isfinite(sample.value)


def _local(data: bytes) -> None:
    """A file about a local cluster or its programs is used, or is as good as none, or is refused with its name."""
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
)  # fmt: skip
_WATCHED = [[_STREAM], [_STREAM], [_STREAM], [_CLAIM], [_SLICE], *[[_STREAM]] * (len(_RESOURCES) - 5)]
_LISTED = f'{{"metadata":{{"resourceVersion":"7","continue":"c"}},"items":[{{{_META}}},{{"metadata":3}}]}}'

TARGETS = (
    Target("watch-streams", awaited(_stream), numbered(_WATCHED)),
    Target("api-answers", _answer, numbered([[_LISTED]] * len(_RESOURCES))),
    Target("local-files", _local, encoded(_LOCAL)),
    Target("quantities", _quantity, encoded(["1", "1.5Gi", "2e3", "-3m", "12E", "100Ki", "+.5"]), max_length=256),
    Target("metrics-pages", _metrics, encoded([_PAGE, f"{_PAGE}\0{_PAGE}"])),
    Target(
        "prometheus-answers", _samples,
        encoded(['{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"2"]}]}}']),
    ),
)  # fmt: skip
