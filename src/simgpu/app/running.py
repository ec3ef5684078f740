"""`simgpu run`: a command that sees simulated GPUs, as if they were in this machine.

The command's environment points its loader and its PATH at our libnvidia-ml.so.1 and nvidia-smi, and these at the pages
of a box that lives as long as the command does. Nothing is installed, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from simgpu import errors, vocabulary
from simgpu.app.clock import SystemClock
from simgpu.machines import ticking
from simgpu.machines.box import Box
from simgpu.page import layout, native, showing, writer
from simgpu.topology.devices import Device
from simgpu.workloads import documents
from simgpu.workloads.server import WorkloadServer

_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)
_FORWARDED = (*_OF_TERMINALS, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_PREFIX = "simgpu-run-"
_LONGEST = 60  # characters of a folder in which a socket can be made


class RunSettings(msgspec.Struct, frozen=True):
    """What a command is run with."""

    command: Sequence[str]
    devices: Sequence[Device]
    hostname: str
    load: dict[str, Any] | None = None
    running_for: float = 0.0
    seed: int = 1
    interval: float = 0.1
    settable: bool = True


async def run_command(settings: RunSettings) -> int:
    """Run the command until it ends; its exit code, or minus the number of the signal that ended it."""
    native.ensure()  # which may take a while, and nothing must wait for it once cards are shown
    clock = SystemClock()
    box = Box(settings.devices, seed=settings.seed, hostname=settings.hostname)
    if settings.load is not None:
        wanted = documents.read(settings.load)
        box.admit(wanted.profile, wanted.devices or box.places())
        ticking.go_ahead(box, settings.running_for, wall=clock.wall())
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(_Signals())
        home = stack.enter_context(_home())
        socket = home / vocabulary.SOCKET_NAME
        access = writer.Access(processes=layout.LISTED_PROCESSES, control=str(socket) if settings.settable else "")
        pages = writer.Pages(home / "gpus", box.devices, stale=showing.stale_after(settings.interval), access=access)
        shown = showing.BoxPages(box, pages)
        sockets = WorkloadServer(box, socket, settings=shown.set if settings.settable else None)
        await sockets.start()
        stack.push_async_callback(sockets.stop)
        ready = asyncio.Event()
        ticking_on = asyncio.ensure_future(
            ticking.tick(box, settings.interval, clock, ready=ready.set, after=shown.write, since=settings.running_for)
        )
        stack.callback(ticking_on.cancel)
        await _first(ticking_on, ready.wait())
        child = await _start(settings.command, environment(os.environ, home, socket))
        signals.forward_to(child)
        await _first(ticking_on, child.wait())
        return await child.wait()


async def _first(clock: asyncio.Future[None], awaited: Coroutine[Any, Any, object]) -> None:
    """Wait for something, but not if the simulation has come to an end: it never does without an error."""
    other: asyncio.Future[Any] = asyncio.ensure_future(awaited)
    both: set[asyncio.Future[Any]] = {clock, other}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if clock.done():
        other.cancel()
        clock.result()


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """A folder of our own; what runs that were killed left there is removed.

    Sockets have short paths, and search paths know no colons: where the folder for temporary files has a long or odd
    name, another one is taken.
    """
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")]  # noqa: S108
    fit = (place for place in places if len(str(place)) <= _LONGEST and not set(":;") & set(str(place)))
    place = next((place for place in fit if os.access(place, os.W_OK)), None)
    if place is None:
        raise errors.InputError("TMPDIR", f"must be a folder with a name of at most {_LONGEST} characters, without ':'")
    for old in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(old):
            shutil.rmtree(old, ignore_errors=True)
    unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    with _locked(unlocked):
        made = unlocked.rename(place / unlocked.name.removeprefix("."))  # from here on it may be found, and is locked
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder of ours; an `OSError` where it is another user's, or a run that lives holds it.

    The kernel knows who lives: a number of a process may be another one's after a while, or in another container.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def environment(given: Mapping[str, str], home: Path, socket: Path) -> dict[str, str]:
    """The environment with our library and tool before all others."""
    library, tool = home / "lib", home / "bin"
    for folder, source, names in (
        (library, native.library(), (vocabulary.LIBRARY, "libnvidia-ml.so")),
        (tool, native.tool(), (vocabulary.SMI,)),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(source)
    ours = dict(given)
    for name, folder, otherwise in (("LD_LIBRARY_PATH", library, ""), ("PATH", tool, os.defpath)):
        before = given.get(name, otherwise)
        ours[name] = f"{folder}{os.pathsep}{before}" if before else str(folder)
    return ours | {vocabulary.PAGES_ENV: str(home / "gpus"), vocabulary.SOCKET_ENV: str(socket)}


async def _start(command: Sequence[str], environ: dict[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*command, env=environ)
    except FileNotFoundError:
        raise errors.NotRunnable(command[0], "no such command", found=False) from None
    except OSError as error:
        raise errors.NotRunnable(command[0], error.strerror or str(error), found=True) from None


class _Signals:
    """Signals are the command's, even those that come while it starts; those that we were told to ignore stay so.

    What a terminal sends, it sends to both of us: that is not sent twice.
    """

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._early: list[int] = []
        self._taken = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in self._taken:
            loop.add_signal_handler(number, self._pass_on, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._taken:
            loop.remove_signal_handler(number)

    def forward_to(self, child: asyncio.subprocess.Process) -> None:
        """The command is there."""
        self._child = child
        for number in self._early:
            self._send(number)

    def _pass_on(self, number: int) -> None:
        if number not in _OF_TERMINALS or not _in_foreground():
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is None:
            self._early.append(number)
            return
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)  # asyncio's own way could take the exit code from whoever waits for it


def _in_foreground() -> bool:
    """Whether a terminal sends its signals to us."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # noqa: PTH123 - a device
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
