"""`simgpu run`: runs a command that sees simulated GPUs, as if they were in this machine.

The command's environment points its loader and its PATH at our libnvidia-ml.so.1 and nvidia-smi, and these at the pages
of a box that lives as long as the command does. Nothing is installed, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.app.clock import SystemClock
from simgpu.machines import documents, ticking
from simgpu.machines.box import Box
from simgpu.page import command, native, run_folder, showing
from simgpu.topology.devices import Device
from simgpu.workloads.server import WorkloadServer


class RunSettings(msgspec.Struct, frozen=True):
    """Settings of `simgpu run`."""

    command: Sequence[str]  # with its arguments
    devices: Sequence[Device]
    hostname: str
    load: dict[str, Any] | None = None  # a workload document, to run on all devices
    running_for: float = 0.0  # seconds that the load has run when the command starts
    seed: int = 1  # of the simulation's randomness
    interval: float = 0.1  # seconds between steps
    settable: bool = True  # whether the command may change power limits and clocks


async def run_command(settings: RunSettings) -> int:
    """Run the command until it ends; return its exit code, or minus the number of the signal that ended it."""
    native.ensure()  # before the pages exist: a build takes up to a minute, in which they would become stale
    clock = SystemClock()
    box = Box(settings.devices, seed=settings.seed, hostname=settings.hostname)
    if settings.load is not None:
        wanted = documents.read(settings.load)
        box.admit(wanted.profile, wanted.devices or box.places())
        ticking.fast_forward(box, settings.running_for, wall=clock.wall())
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(command.ForwardedSignals())
        home = stack.enter_context(run_folder.create())
        socket = home / vocabulary.SOCKET_NAME
        control = str(socket) if settings.settable else ""
        shown = showing.open_pages(box, home / run_folder.PAGES, interval=settings.interval, control=control)
        sockets = WorkloadServer(box, socket, settings=shown.set if settings.settable else None)
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        ready = asyncio.Event()
        ticker = asyncio.ensure_future(
            ticking.tick(box, settings.interval, clock, ready=ready.set, after=shown.write, since=settings.running_for)
        )
        stack.callback(ticker.cancel)
        await _first(ticker, ready.wait())
        child = await command.start(settings.command, run_folder.environment(os.environ, home, socket))
        signals.forward_to(child)
        await _first(ticker, child.wait())
        return await child.wait()


async def _first(ticker: asyncio.Future[None], awaited: Coroutine[Any, Any, object]) -> None:
    """Wait for something, or raise the ticker's error: it never ends without one."""
    other: asyncio.Future[Any] = asyncio.ensure_future(awaited)
    both: set[asyncio.Future[Any]] = {ticker, other}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if ticker.done():
        other.cancel()
        ticker.result()
