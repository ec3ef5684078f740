"""`simgpu run`: a command that sees simulated GPUs, as if they were in this machine.

The command's environment points its loader and its PATH at our libnvidia-ml.so.1 and nvidia-smi, and these at the pages
of a box that lives as long as the command does. Nothing is installed, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from simgpu import errors
from simgpu.app import showing, ticking
from simgpu.box import Box
from simgpu.page import layout, native, writer
from simgpu.topology.devices import Device
from simgpu.workloads import documents
from simgpu.workloads.server import Server as WorkloadServer

_FORWARDED = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT,
)  # fmt: skip


class RunSettings(msgspec.Struct, frozen=True):
    """What a command is run with."""

    command: Sequence[str]
    devices: Sequence[Device]
    hostname: str
    load: dict[str, Any] | None = None
    seed: int = 1
    interval: float = 0.1
    settable: bool = True


async def run_command(settings: RunSettings) -> int:
    """Run the command until it ends; its exit code, or minus the number of the signal that ended it."""
    box = Box(settings.devices, seed=settings.seed, hostname=settings.hostname)
    if settings.load is not None:
        wanted = documents.read(settings.load)
        box.admit(wanted.profile, wanted.devices or [device.index for device in box.devices])
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(_Signals())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simgpu-run-")))
        socket = home / "workload.sock"
        shown = showing.Shown(box, home / "gpus", stale=ticking.stale(settings.interval))
        sockets = WorkloadServer(box, socket, settings=shown.set if settings.settable else None)
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        ready = asyncio.Event()
        clock = asyncio.ensure_future(ticking.tick(box, settings.interval, ready.set, shown.write))
        stack.callback(clock.cancel)
        await ready.wait()
        child = await _start(settings.command, environment(os.environ, home, socket))
        shown.pages.allow(
            writer.Access(
                processes=layout.TREE_OF_PROCESSES,
                process_root=child.pid,
                control=str(socket) if settings.settable else "",
            )
        )
        shown.write()
        signals.forward_to(child)
        return await child.wait()


def environment(given: Mapping[str, str], home: Path, socket: Path) -> dict[str, str]:
    """The environment with our library and tool before all others."""
    library, tool = home / "lib", home / "bin"
    for folder, source, names in (
        (library, native.library(), ("libnvidia-ml.so.1", "libnvidia-ml.so")),
        (tool, native.tool(), ("nvidia-smi",)),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(source)
    ours = dict(given)
    for name, folder, otherwise in (("LD_LIBRARY_PATH", library, ""), ("PATH", tool, os.defpath)):
        before = given.get(name, otherwise)
        ours[name] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    return ours | {"SIMGPU_PAGES": str(home / "gpus"), "SIMGPU_SOCKET": str(socket)}


async def _start(command: Sequence[str], environ: dict[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*command, env=environ)
    except FileNotFoundError:
        raise errors.NotRunnable(command[0], "no such command", found=False) from None
    except OSError as error:
        raise errors.NotRunnable(command[0], error.strerror or str(error), found=True) from None


class _Signals:
    """Signals are the command's, even those that come while it starts.

    The terminal sends Ctrl-C to both of us, so that one is only ignored here.
    """

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._early: list[int] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            loop.add_signal_handler(number, self._send, number)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (*_FORWARDED, signal.SIGINT):
            loop.remove_signal_handler(number)

    def forward_to(self, child: asyncio.subprocess.Process) -> None:
        """The command is there."""
        self._child = child
        for number in self._early:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)
