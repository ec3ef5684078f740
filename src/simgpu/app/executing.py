"""`simgpu exec`: runs nvidia-smi here, on pages of the GPUs of a pod that is on a fake node and so has no processes.

The pages are made anew from what the controller sends, as long as the command runs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
import urllib.parse
from collections.abc import Sequence
from typing import Final

import msgspec

from simgpu import errors, vocabulary
from simgpu.dashboard.answers import ContainerGpus
from simgpu.page import command, mirror, native, run_folder
from simgpu.top import feeds

REFRESH_SECONDS: Final = 0.5
STALE_SECONDS: Final = 10.0  # after which GPUs are lost, if the controller no longer answers


class PodCommand(msgspec.Struct, frozen=True):
    """A command for a container of a pod; without a name, for the first one that has GPUs."""

    namespace: str
    pod: str
    container: str
    command: Sequence[str]  # with its arguments


class PodEnded(errors.SimgpuError):
    """The pod ended while the command ran."""


async def run_in_pod(asked: PodCommand, feed: feeds.Feed) -> int:
    """Run the command; return its exit code, or minus the number of the signal that ended it."""
    program = asked.command[0]
    if os.path.basename(program) != vocabulary.SMI:  # noqa: PTH119 - text, not a file
        raise errors.NotRunnable(
            program, f"pods on fake nodes run nothing; only {vocabulary.SMI} can be shown", found=False
        )
    found = await _read(feed, asked)
    if found.state != "running":
        raise _refused(program, found)
    native.ensure()
    with command.ForwardedSignals() as signals, run_folder.create() as home:
        pages = mirror.MirroredPages(home / run_folder.PAGES, stale=STALE_SECONDS)
        _show(pages, found)
        child = await command.start([str(native.tool()), *asked.command[1:]], _environment(pages))
        signals.forward_to(child)
        refreshing = asyncio.ensure_future(_refresh(feed, asked, pages))
        ending = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait((refreshing, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                refreshing.result()  # its error
            return await ending
        finally:
            refreshing.cancel()
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await ending


def _environment(pages: mirror.MirroredPages) -> dict[str, str]:
    of_this_machine = (vocabulary.SOCKET_ENV, vocabulary.SHARED_MEMORY_ENV)
    ours = {name: value for name, value in os.environ.items() if name not in of_this_machine}
    return ours | {vocabulary.PAGES_ENV: str(pages.root)}


def _refused(program: str, found: ContainerGpus) -> errors.SimgpuError:
    if found.state == "unknown":
        return errors.SimgpuError(found.message)
    return errors.NotRunnable(program, found.message, found=True)


async def _read(feed: feeds.Feed, asked: PodCommand) -> ContainerGpus:
    return await feeds.read(feed, gpus_path(asked), ContainerGpus)


def gpus_path(asked: PodCommand) -> str:
    """Return the path of the GPUs of a container; names from the command line may be of any bytes."""
    names = (urllib.parse.quote(os.fsencode(name), safe="") for name in (asked.namespace, asked.pod))
    query = urllib.parse.urlencode({"container": os.fsencode(asked.container)} if asked.container else {})
    return f"/pods/{'/'.join(names)}/gpus{'?' if query else ''}{query}"


def _show(pages: mirror.MirroredPages, found: ContainerGpus) -> None:
    try:
        decoded = [(page.id, base64.b64decode(page.page, validate=True)) for page in found.pages]
    except ValueError as error:
        raise errors.SimgpuError(f"the server sent an invalid page: {error}") from None
    pages.show(decoded, clock=found.time, monotonic_ns=time.monotonic_ns())


async def _refresh(feed: feeds.Feed, asked: PodCommand, pages: mirror.MirroredPages) -> None:
    """Show what the controller has, until the pod ends; while it does not answer, pages become stale."""
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            found = await _read(feed, asked)
        except feeds.FeedError:
            continue
        if found.state != "running":
            raise PodEnded(f"pod {asked.namespace}/{asked.pod} has ended: {found.message}")
        _show(pages, found)
