"""Who is at the other end of a socket: a container of a pod, by the cgroup that its process is in, or the node itself.

What a process says of itself counts for nothing here. The kernel says which process connected; that it is still the
same one when its cgroup is read is known from a handle on it. Before Linux 6.5 that handle is on whoever has the number
of the process by then, which is another one if the process ended and its number was given anew in the meantime.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from simgpu import errors

_SO_PEERPIDFD = 77
_DIGITS = "[0-9a-f]"
# Both of the kubelet's drivers, below whatever: kubepods/burstable/pod<uid>/<id>, and
# kubepods-burstable-pod<uid_with_underscores>.slice/cri-containerd-<id>.scope.
_CONTAINER = re.compile(
    rf"(?:^|[/-])pod({_DIGITS}{{8}}(?:[-_]?{_DIGITS}{{4}}){{3}}[-_]?{_DIGITS}{{12}})(?:\.slice)?"
    rf"/(?:[a-z-]+-)?({_DIGITS}{{12,64}})(?:\.scope)?(?:/|$)"
)


class Unknown(errors.SimgpuError):
    """It cannot be told who it is, or it is nobody who should be there."""


class Peer(msgspec.Struct, frozen=True):
    """A container by its pod's uid and its id; neither is there for a process of the node's administrator."""

    pod: str = ""
    container: str = ""


HOST = Peer()


def of(connection: socket.socket, *, proc: Path = Path("/proc")) -> Peer:
    """Who is connected."""
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    if pid == 0:
        raise Unknown("the process that connects is not to be seen: the agent needs the node's (hostPID)")
    try:
        with _handle(connection, pid) as handle:
            found = container((proc / str(pid) / "cgroup").read_text(errors="replace"))
            ours = found is None and uid == os.geteuid() and _same_processes(pid, proc)
            if _ended(handle):
                raise ProcessLookupError
    except OSError:
        raise Unknown(f"process {pid} is gone") from None
    if found is not None:
        return found
    if not ours:
        raise Unknown(f"process {pid} is in no pod")
    return HOST


def container(cgroups: str) -> Peer | None:
    """The container that /proc/PID/cgroup names; the outermost, for a process may make groups of its own within."""
    for line in cgroups.splitlines():
        if found := _CONTAINER.search(line.split(":", 2)[-1]):
            return Peer(_uid(found[1]), found[2])
    return None


def _uid(text: str) -> str:
    """As the API server writes it: static pods' have no dashes, and in slices there are underscores."""
    return text.replace("_", "-")


def _ended(handle: int) -> bool:
    """Whether the process behind a handle has ended; however many files are open, for which `select` has no room."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _handle(connection: socket.socket, pid: int) -> Iterator[int]:
    """A handle on the process; from the connection itself where the kernel (6.5) gives one."""
    try:
        handle = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i")))[0]
    except OSError:
        handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _same_processes(pid: int, proc: Path) -> bool:
    """Whether a process counts processes as we do; one in a container does not."""
    try:
        return (proc / str(pid) / "ns" / "pid").readlink() == (proc / "self" / "ns" / "pid").readlink()
    except PermissionError:  # an agent without capabilities trusts nobody but pods
        return False
