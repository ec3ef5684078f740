"""A command as a child process that gets our signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Self

from simgpu import errors

_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)
_FORWARDED = (*_FROM_TERMINAL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


async def start(command: Sequence[str], environ: dict[str, str]) -> asyncio.subprocess.Process:
    """Start a command; `NotRunnable` if that fails."""
    try:
        return await asyncio.create_subprocess_exec(*command, env=environ)
    except FileNotFoundError:
        raise errors.NotRunnable(command[0], "no such command", found=False) from None
    except OSError as error:
        raise errors.NotRunnable(command[0], error.strerror or str(error), found=True) from None


class ForwardedSignals:
    """Forwards signals to the command, also those that arrive while it starts; ignored signals stay ignored.

    A terminal sends its signals to both processes, so these are not forwarded.
    """

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._early: list[int] = []
        self._handled = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.add_signal_handler(number, self._forward, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.remove_signal_handler(number)

    def forward_to(self, child: asyncio.subprocess.Process) -> None:
        """Send the signals so far to the command, and all later ones."""
        self._child = child
        for number in self._early:
            self._send(number)

    def _forward(self, number: int) -> None:
        if number not in _FROM_TERMINAL or not _in_foreground():
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is None:
            self._early.append(number)
            return
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)  # not send_signal: it polls, which can take the exit code from wait()


def _in_foreground() -> bool:
    """Whether the terminal sends its signals to this process."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # noqa: PTH123 - a device
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
