"""The peer of a unix socket: a container of a pod, by the cgroup of its process, or the node itself.

Nothing that a process claims about itself is used. The kernel reports which process connected, and a pidfd shows that
it is still the same process when its cgroup is read. Before Linux 6.5 the pidfd is opened by process id, which may
name another process if the first one ended and its id was reused in the meantime.
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
# Both of the kubelet's cgroup drivers, below any root: kubepods/burstable/pod<uid>/<id>, and
# kubepods-burstable-pod<uid_with_underscores>.slice/cri-containerd-<id>.scope.
_CONTAINER = re.compile(
    rf"(?:^|[/-])pod({_DIGITS}{{8}}(?:[-_]?{_DIGITS}{{4}}){{3}}[-_]?{_DIGITS}{{12}})(?:\.slice)?"
    rf"/(?:[a-z-]+-)?({_DIGITS}{{12,64}})(?:\.scope)?(?:/|$)"
)


class Unknown(errors.SimgpuError):
    """The peer could not be identified, or is not authorised."""


class Peer(msgspec.Struct, frozen=True):
    """A container by its pod's uid and its id; both are empty for a process of the node's administrator."""

    pod: str = ""
    container: str = ""


HOST = Peer()


def of(connection: socket.socket, *, proc: Path = Path("/proc")) -> Peer:
    """Return the peer of a connection; raises `Unknown`."""
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    if pid == 0:
        raise Unknown("the connecting process is not visible: the agent needs the node's process ids (hostPID)")
    try:
        with _handle(connection, pid) as handle:
            found = container((proc / str(pid) / "cgroup").read_text(errors="replace"))
            ours = found is None and uid == os.geteuid() and _same_processes(pid, proc)
            if _ended(handle):
                raise ProcessLookupError
    except OSError:
        raise Unknown(f"process {pid} has ended") from None
    if found is not None:
        return found
    if not ours:
        raise Unknown(f"process {pid} is in no pod")
    return HOST


def container(cgroups: str) -> Peer | None:
    """Return the container in the text of /proc/PID/cgroup: the outermost, as processes may create groups within."""
    for line in cgroups.splitlines():
        if found := _CONTAINER.search(line.split(":", 2)[-1]):
            return Peer(_uid(found[1]), found[2])
    return None


def _uid(text: str) -> str:
    """Return the uid as the kubelet writes it: systemd slices have underscores for dashes."""
    return text.replace("_", "-")


def _ended(handle: int) -> bool:
    """Whether the process of a pidfd has ended; `poll`, because `select` fails for descriptors above 1023."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _handle(connection: socket.socket, pid: int) -> Iterator[int]:
    """A pidfd of the process; from the connection itself since Linux 6.5."""
    try:
        handle = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i")))[0]
    except OSError:
        handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _same_processes(pid: int, proc: Path) -> bool:
    """Whether a process is in our PID namespace; one in a container is not."""
    try:
        return (proc / str(pid) / "ns" / "pid").readlink() == (proc / "self" / "ns" / "pid").readlink()
    except PermissionError:  # an agent without capabilities trusts pods only
        return False
