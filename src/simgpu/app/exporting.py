"""`simgpu exporter`: a simulated box with its pages and its socket."""

from __future__ import annotations

import contextlib
import functools
from collections import ChainMap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu.app import watching_page
from simgpu.app.clock import SystemClock
from simgpu.identities import identity as identities
from simgpu.identities.identity import Identity
from simgpu.machines import documents, ticking
from simgpu.machines.box import Box
from simgpu.page import device_files, showing, writer
from simgpu.topology.devices import Device
from simgpu.web import health, pages, server
from simgpu.workloads.server import WorkloadServer


class ExporterSettings(msgspec.Struct, frozen=True):
    """Settings of `simgpu exporter`."""

    devices: Sequence[Device]
    identities: dict[str, Identity]  # by name; the first has the page /metrics
    listen: tuple[str, int]  # host and port
    hostname: str
    seed: int = 1  # of the simulation's randomness
    interval: float = 1.0  # seconds between steps
    socket: Path | None = None  # for workloads and settings
    base_workloads: tuple[dict[str, Any], ...] = ()  # workload documents, to run from the start
    device_files: Path | None = None  # folder for a file per device
    per_workload: bool = False  # whether each workload has series of its own
    page: Path | None = None  # folder for state pages, which NVML reads
    dashboard: bool | None = None  # whether the live page is served; only on loopback if None


async def run_exporter(settings: ExporterSettings, ready: Callable[[str], None]) -> None:
    """Run a box with its metrics pages until cancelled; `ready` gets the address after the first step."""
    box = Box(settings.devices, seed=settings.seed, hostname=settings.hostname)
    names = dict(ChainMap(*map(identities.limit_names, settings.identities.values())))
    read = functools.partial(documents.read, names=names)
    for document in settings.base_workloads:
        wanted = read(document)
        box.admit(wanted.profile, wanted.devices or box.places(), pod=wanted.pod)
    shown_as = {
        name: identities.with_workloads(identity) if settings.per_workload else identity
        for name, identity in settings.identities.items()
    }
    views = {name: pages.Following(lambda: box.machine, identity) for name, identity in shown_as.items()}
    routes = [
        *pages.routes(views, next(iter(views))),
        server.get("/healthz", health.liveness()),
        server.get("/readyz", health.readiness(lambda: None if box.steps else "not started")),
        server.get("/api/v1/devices", server.view(box.describe_devices)),
        server.get("/api/v1/workloads", server.view(box.describe_workloads)),
    ]
    async with contextlib.AsyncExitStack() as stack:
        if watching_page.wanted(settings.dashboard, settings.listen[0]):
            dashboard = watching_page.of_box(lambda: box)
            routes += dashboard.routes(loopback=watching_page.on_loopback(settings.listen[0]))
        else:
            dashboard = None
        if settings.device_files is not None:
            stack.enter_context(device_files.create(settings.device_files, [device.file for device in box.devices]))
        shown = None
        if settings.page is not None:
            control = writer.control_path(settings.socket) if settings.socket else ""
            shown = showing.open_pages(box, settings.page, interval=settings.interval, control=control)
            stack.callback(shown.pages.remove)
        if settings.socket is not None:
            sockets = WorkloadServer(box, settings.socket, read=read, settings=shown.set if shown else None)
            await sockets.start()
            stack.push_async_callback(sockets.stop)
        http = server.HttpServer(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        if dashboard is not None:
            stack.callback(dashboard.close)  # before the server waits for requests in progress
        after = shown.write if shown else lambda: None
        await ticking.tick(box, settings.interval, SystemClock(), ready=lambda: ready(http.address), after=after)
