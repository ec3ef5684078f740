"""`simgpu exporter`, and fakedev-exporter: a simulated box with its pages and its socket."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simgpu import errors
from simgpu.app.clock import SystemClock
from simgpu.identities import render
from simgpu.identities.identity import Family, Identity
from simgpu.machines import ticking
from simgpu.machines.box import Box
from simgpu.machines.machine import Machine, Values
from simgpu.page import layout, showing, writer
from simgpu.topology.devices import Device
from simgpu.web import fakedev, pages, server
from simgpu.workloads import documents
from simgpu.workloads.server import Server as WorkloadServer

_OF_DEVICES = ("devices", "both", "parts-or-devices", "undivided")


class ExporterSettings(msgspec.Struct, frozen=True):
    """What an exporter is started with."""

    devices: Sequence[Device]
    identities: dict[str, Identity]
    listen: tuple[str, int]
    hostname: str
    seed: int = 1
    interval: float = 1.0
    socket: Path | None = None
    socket_mode: int = 0o700
    base_workloads: tuple[dict[str, Any], ...] = ()
    device_files: Path | None = None
    per_workload: bool = False
    page: Path | None = None


async def run_exporter(settings: ExporterSettings, ready: Callable[[str], None]) -> None:
    """A simulated box with its metrics page, until it is cancelled."""
    box = Box(settings.devices, seed=settings.seed, hostname=settings.hostname)
    names = {f.name: (f.value, f.scale) for identity in settings.identities.values() for f in identity.families}
    for document in settings.base_workloads:
        wanted = documents.read(document, names=names)
        box.admit(wanted.profile, wanted.devices or box.places(), pod=wanted.pod)
    views = {
        name: pages.Following(lambda: box.machine, with_workloads(identity) if settings.per_workload else identity)
        for name, identity in settings.identities.items()
    }
    routes = [
        *pages.routes(views, next(iter(views))),
        server.get("/healthz", server.health(lambda: None)),
        server.get("/readyz", server.health(lambda: None if box.steps else "not started")),
        server.get("/api/v1/devices", server.view(box.describe_devices)),
        server.get("/api/v1/workloads", server.view(box.describe_workloads)),
    ]
    async with contextlib.AsyncExitStack() as stack:
        if settings.device_files is not None:
            stack.enter_context(_device_files(settings.device_files, [device.file for device in box.devices]))
        shown = None
        if settings.page is not None:
            access = writer.Access(processes=layout.LISTED_PROCESSES, control=_control(settings.socket))
            stale = showing.stale_after(settings.interval)
            shown = showing.BoxPages(box, writer.Pages(settings.page, box.devices, stale=stale, access=access))
            stack.callback(shown.pages.remove)
        if settings.socket is not None:
            sockets = WorkloadServer(
                box, settings.socket, names=names, mode=settings.socket_mode, settings=shown.set if shown else None
            )
            await sockets.start()
            stack.push_async_callback(sockets.stop)
        http = server.Server(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        after = shown.write if shown is not None else _nothing
        await ticking.tick(box, settings.interval, SystemClock(), ready=lambda: ready(http.address), after=after)


def _nothing() -> None:
    """Without pages nothing follows a step."""


def _control(socket: Path | None) -> str:
    """Where settings are taken, as the pages say it."""
    path = str(socket.absolute()) if socket else ""
    if len(path.encode()) > writer.LONGEST_SOCKET:
        raise errors.InputError("--socket", f"{path}: a socket's path has at most {writer.LONGEST_SOCKET} bytes")
    return path


class FakedevSettings(msgspec.Struct, frozen=True):
    """What fakedev-exporter is started with."""

    devices: Sequence[Device]
    limits: dict[str, tuple[float, float]]
    identity: Identity
    listen: tuple[str, int]
    socket: Path
    base_workloads: tuple[tuple[dict[str, Any], tuple[int, ...]], ...] = ()


async def run_fakedev(settings: FakedevSettings, ready: Callable[[str], None], warn: Callable[[str], None]) -> None:
    """fakedev-exporter: the same box, with its page and its rule that every metric is its range times the load."""

    box = Box(settings.devices, seed=time.time_ns() & 0xFFFFFFFF, hostname="", spread=0.0)
    for document, default in settings.base_workloads:
        wanted = documents.read(document, half_amplitude=True)
        if devices := wanted.devices or default:
            try:
                box.admit(wanted.profile, devices)
            except errors.InputError as error:
                warn(f"base workload {wanted.profile.name}: {error}")

    def linear(machine: Machine, name: str) -> Values:
        low, high = settings.limits[name]
        load = np.round(machine.column("busy"), 6)
        return np.clip(low + (high - low) * load, low, high)

    async with contextlib.AsyncExitStack() as stack:
        sockets = WorkloadServer(box, settings.socket, half_amplitude=True)
        with contextlib.suppress(FileNotFoundError):
            settings.socket.unlink()
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        page = pages.Page(render.Renderer(box.machine, settings.identity, linear))
        http = server.Server([fakedev.only_get(page)])
        await http.start(*settings.listen, field="address")
        stack.push_async_callback(http.stop)
        await ticking.tick(box, 0.1, SystemClock(), ready=lambda: ready(http.address))


def with_workloads(identity: Identity) -> Identity:
    """The identity with a copy of each device's series for each workload on it, where it has such."""
    if "vgpu" not in identity.labels.values():
        return identity
    families: list[Family] = []
    for family in identity.families:
        families.append(family)
        if family.of in _OF_DEVICES:
            families.append(msgspec.structs.replace(family, of="workloads"))
    return msgspec.structs.replace(identity, families=tuple(families))


@contextlib.contextmanager
def _device_files(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Empty files that stand for devices, for globs to match; those that we made are removed."""
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            if not path.exists():
                path.touch()
                made.append(path)
        yield
    except OSError as error:
        raise errors.InputError("--device-files", errors.explain(error)) from None
    finally:
        for path in made:
            path.unlink(missing_ok=True)
