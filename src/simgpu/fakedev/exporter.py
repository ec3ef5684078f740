"""fakedev-exporter: a simulated box with its page and its rule that every metric is its range times the load.

Over HTTP it answers one path and one method, and rejects requests with a body.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from aiohttp import web

from simgpu import errors
from simgpu.app.clock import SystemClock
from simgpu.catalog import models
from simgpu.fakedev import files, flags, identity
from simgpu.identities import render
from simgpu.identities.identity import Identity
from simgpu.machines import documents, ticking
from simgpu.machines.box import Box
from simgpu.machines.machine import Machine, Values
from simgpu.topology.devices import Device
from simgpu.web import pages, server
from simgpu.workloads.server import WorkloadServer

_MODEL = "dg1"  # the card that the original was made for
_INTERVAL = 0.1  # seconds between steps

Base = tuple[documents.Wanted, tuple[int, ...]]
Log = Callable[[str], None]

_read = functools.partial(documents.read, peak_to_peak=True)


class FakedevSettings(msgspec.Struct, frozen=True):
    """What fakedev-exporter is started with.

    A base workload runs on the devices that its document names, or on the
    devices of the given indices.
    """

    devices: Sequence[Device]
    ranges: files.Ranges
    identity: Identity
    listen: tuple[str, int]
    socket: Path
    base_workloads: tuple[Base, ...] = ()


def settings(options: flags.Options, log: Log) -> FakedevSettings:
    """Return the settings that the options and their files describe; an invalid base workload is only logged."""
    path = Path(options["identity"])
    identified = identity.from_json(files.read(path), where=str(path), compatible=True)
    labels, ranges = files.device_type(Path(options["devtype"]))
    devices = files.devices(Path(options["devlist"]), options["count"], labels, models.load().models[_MODEL])
    families = tuple(family for family in identified.families if family.value in ranges)
    return FakedevSettings(
        devices=devices,
        ranges=ranges,
        identity=msgspec.structs.replace(identified, families=families),
        listen=server.parse_address(options["address"], field="address"),
        socket=Path(options["socket"]),
        base_workloads=tuple(_base_workloads(options, len(devices), log)),
    )


def _base_workloads(options: flags.Options, count: int, log: Log) -> Iterator[Base]:
    for name, first, step in (("wl-even", 0, 2), ("wl-odd", 1, 2), ("wl-all", 0, 1)):
        if options[name]:
            document = files.read(Path(options[name]))
            try:
                yield _read(document), tuple(range(first, count, step))
            except errors.InputError as error:
                log(f"WARN: {options[name]}: {error}")


async def run(settings: FakedevSettings, log: Log) -> None:
    """Serve until cancelled."""
    box = Box(settings.devices, seed=time.time_ns() & 0xFFFFFFFF, hostname="", spread=0.0)
    for wanted, default in settings.base_workloads:
        if devices := wanted.devices or default:
            try:
                box.admit(wanted.profile, devices)
            except errors.InputError as error:
                log(f"WARN: base workload {wanted.profile.name}: {error}")

    def linear(machine: Machine, name: str) -> Values:
        low, high = settings.ranges[name]
        load = np.round(machine.column("busy"), 6)
        return np.clip(low + (high - low) * load, low, high)

    async with contextlib.AsyncExitStack() as stack:
        sockets = WorkloadServer(box, settings.socket, read=_read)
        with contextlib.suppress(FileNotFoundError):
            settings.socket.unlink()
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        http = server.HttpServer([route(pages.Page(render.Renderer(box.machine, settings.identity, linear)))])
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
