"""fakedev-exporter: a simulated box with its page.

Every metric is its range times the load, but for those that its device type has follow the simulated card. Over HTTP it
answers one path and one method, and rejects requests with a body.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from simgpu import errors
from simgpu.app.clock import SystemClock
from simgpu.fakedev import device_type, files, flags, identity
from simgpu.identities import render
from simgpu.identities.identity import Dimension, Family, Identity
from simgpu.machines import documents, ticking
from simgpu.machines.box import Box
from simgpu.sim import activity
from simgpu.topology.devices import Device
from simgpu.web import pages, server
from simgpu.workloads.server import WorkloadServer

_INTERVAL = 0.1  # seconds between steps

Base = tuple[documents.Wanted, tuple[int, ...]]
Log = Callable[[str], None]
Read = Callable[[Any], documents.Wanted]

_MAX_MATCHED = 64  # characters of a device name in which an index is searched
_OWN_LIMITS = {activity.MEMORY, activity.USAGE, activity.RUNTIME}  # limits of a workload, whatever a device type has


class FakedevSettings(msgspec.Struct, frozen=True):
    """What fakedev-exporter is started with.

    A base workload runs on the devices that its document names, or on the
    devices of the given indices.
    """

    devices: Sequence[Device]
    type: device_type.DeviceType
    identity: Identity
    listen: tuple[str, int]
    socket: Path
    base_workloads: tuple[Base, ...] = ()


def settings(options: flags.Options, log: Log) -> FakedevSettings:
    """Return the settings that the options and their files describe; an invalid base workload is only logged."""
    path = Path(options["identity"])
    document, kind = files.read(path), device_type.read(Path(options["devtype"]))
    subdevices = any(metric.of_parts for metric in kind.metrics.values())
    identified = identity.from_json(document, where=str(path), compatible=True, subdevices=subdevices)
    identified = msgspec.structs.replace(
        identified,
        families=tuple(
            scoped(item, kind, identified.labels, where=options["devtype"])
            for item in identified.families
            if item.value in kind.metrics
        ),
    )
    devices = files.devices(Path(options["devlist"]), options["count"], kind.labels, kind.model)
    found = FakedevSettings(
        devices=devices,
        type=kind,
        identity=identified,
        listen=server.parse_address(options["address"], field="address"),
        socket=Path(options["socket"]),
    )
    return msgspec.structs.replace(found, base_workloads=tuple(_base_workloads(options, reader(found), devices, log)))


def scoped(family: Family, kind: device_type.DeviceType, labels: Collection[str], *, where: str) -> Family:
    """Return a family with the sub-devices and the extra labels of its metric, none of which may be one of `labels`."""
    metric = kind.metrics[family.value]
    if (taken := next((name for found, _ in metric.dims for name in found if name in labels), None)) is not None:
        raise errors.InputError(
            f"{where}: MetricLimits.{family.value}.Dims.{taken}", "devices have this label already; choose another name"
        )
    if metric.of_parts:
        family = msgspec.structs.replace(family, of="parts" if metric.aggregate is None else "both")
    if metric.dims and not family.dimensions:
        dimensions = (Dimension(labels, scale=family.scale * share) for labels, share in metric.dims)
        family = msgspec.structs.replace(family, dimensions=tuple(dimensions))
    return family


def _base_workloads(options: flags.Options, read: Read, devices: Sequence[Device], log: Log) -> Iterator[Base]:
    for name, first, step in (("wl-even", 0, 2), ("wl-odd", 1, 2), ("wl-all", 0, 1)):
        if options[name]:
            document = files.read(Path(options[name]))
            try:
                yield read(document), tuple(range(first, len(devices), step))
            except errors.InputError as error:
                log(f"WARN: {options[name]}: {error}")


def reader(settings: FakedevSettings) -> Read:
    """Return the reader of workload documents: it knows the names of metrics, and finds devices by their index.

    A limit such as `memory` stays that of the workload's memory, though a metric that follows the load may have the
    same name; the identity's name for the metric means the metric.
    """
    names = {
        name: known
        for name, metric in settings.type.metrics.items()
        if (metric.follows or name.lower() not in _OWN_LIMITS) and (known := metric.limit_name())
    }
    for family in settings.identity.families:
        metric = settings.type.metrics[family.value]
        if family.scale and (known := metric.limit_name(scale=family.scale, offset=family.offset)):
            names[family.name] = known
    listed, index = {device.file for device in settings.devices}, settings.type.index

    def indexed(name: str) -> str:
        if index is None or name.partition(".")[0] in listed or len(name) > _MAX_MATCHED:
            return name
        found = index.search(name)
        return name if found is None else (found.groups() and found[1]) or found[0]

    def read(document: Any) -> documents.Wanted:
        wanted = documents.read(document, names=names, peak_to_peak=True)
        return msgspec.structs.replace(wanted, devices=tuple(map(indexed, wanted.devices)))

    return read


def start(settings: FakedevSettings, log: Log, *, seed: int | None = None) -> Box:
    """Return the box with its base workloads; those that cannot run are logged."""
    box = Box(settings.devices, seed=time.time_ns() & 0xFFFFFFFF if seed is None else seed, hostname="", spread=0.0)
    for wanted, default in settings.base_workloads:
        if devices := wanted.devices or default:
            try:
                box.admit(wanted.profile, devices)
            except errors.InputError as error:
                log(f"WARN: base workload {wanted.profile.name}: {error}")
    return box


def renderer(settings: FakedevSettings, box: Box) -> render.Renderer:
    """Return the renderer of the page."""
    metrics = settings.type.metrics
    return render.Renderer(
        box.machine,
        settings.identity,
        lambda machine, name: metrics[name].values(machine),
        lambda machine, name: metrics[name].values(machine, parts=True),
    )


async def run(settings: FakedevSettings, log: Log) -> None:
    """Serve until cancelled."""
    box = start(settings, log)
    async with contextlib.AsyncExitStack() as stack:
        sockets = WorkloadServer(box, settings.socket, read=reader(settings))
        with contextlib.suppress(FileNotFoundError):
            settings.socket.unlink()
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        http = server.HttpServer([route(pages.Page(renderer(settings, box)))])
        await http.start(*settings.listen, field="address")
        stack.push_async_callback(http.stop)
        await ticking.tick(box, _INTERVAL, SystemClock(), ready=lambda: log(f"listening on {http.address}"))


def route(page: pages.Page) -> web.RouteDef:
    """Return the route of the page: status 405 for any method but GET, 400 for a request with a body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(status=405)
        if request.can_read_body:
            return web.Response(status=400)
        answer = await page(request)
        answer.headers["Content-Type"] = "text/plain; charset=utf-8"
        return answer

    return web.route("*", "/metrics", handler)
