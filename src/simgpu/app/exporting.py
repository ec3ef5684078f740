"""`simgpu exporter`: a simulated box with its pages and its socket."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors
from simgpu.app.clock import SystemClock
from simgpu.identities.identity import Family, Identity
from simgpu.machines import ticking
from simgpu.machines.box import Box
from simgpu.page import layout, showing, writer
from simgpu.topology.devices import Device
from simgpu.web import health, pages, server
from simgpu.workloads import documents
from simgpu.workloads.server import WorkloadServer

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
    read = functools.partial(documents.read, names=names)
    for document in settings.base_workloads:
        wanted = read(document)
        box.admit(wanted.profile, wanted.devices or box.places(), pod=wanted.pod)
    views = {
        name: pages.Following(lambda: box.machine, with_workloads(identity) if settings.per_workload else identity)
        for name, identity in settings.identities.items()
    }
    routes = [
        *pages.routes(views, next(iter(views))),
        server.get("/healthz", health.liveness()),
        server.get("/readyz", health.readiness(lambda: None if box.steps else "not started")),
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
                box, settings.socket, read=read, mode=settings.socket_mode, settings=shown.set if shown else None
            )
            await sockets.start()
            stack.push_async_callback(sockets.stop)
        http = server.HttpServer(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        after = shown.write if shown is not None else lambda: None
        await ticking.tick(box, settings.interval, SystemClock(), ready=lambda: ready(http.address), after=after)


def _control(socket: Path | None) -> str:
    """Where settings are taken, as the pages say it."""
    path = str(socket.absolute()) if socket else ""
    if len(path.encode()) > writer.MAX_SOCKET_BYTES:
        raise errors.InputError("--socket", f"{path}: a socket's path has at most {writer.MAX_SOCKET_BYTES} bytes")
    return path


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
