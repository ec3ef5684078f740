"""What a cluster is meant to be, kept as `cluster.json` in its folder, and the layout of that folder.

Only what cannot be seen from outside is recorded: ports, and the fleet that was asked for. Which processes
run is found in the process table, which nodes exist in the API.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.cluster import paths

PORTS = ("etcd", "etcd-peer", "apiserver", "controller-manager", "scheduler", "kwok")
_PORT_RANGE = range(20000, 32000)  # below the range from which the kernel takes ports for outgoing connections
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class Record(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A cluster as it was asked for."""

    name: str
    address: str = "127.0.0.1"
    port: int | None = None  # the API server's, where the user chose it
    ports: dict[str, int] = {}
    nodes: int
    gpus: str
    bin_dir: str | None = None
    published: str = ""  # the GPUs that were last written into the topology
    complete: bool = False  # whether `up` ever came to its end


DEFAULT_NAME = "simgpu"


class Folder:
    """The folder of one cluster."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self.path = paths.clusters() / name
        self.lock = self.path / "lock"
        self.record = self.path / "cluster.json"
        self.kubeconfig = self.path / "kubeconfig.yaml"
        self.pki = self.path / "pki"
        self.etcd = self.path / "etcd"
        self.logs = self.path / "logs"

    def exists(self) -> bool:
        """Whether there is anything of this cluster on disk."""
        return self.path.exists()

    def log(self, component: str) -> Path:
        """The log file of a component."""
        return self.logs / f"{component}.log"

    def components_with_logs(self) -> list[str]:
        """Names of the components that have written a log."""
        return sorted(path.stem for path in self.logs.glob("*.log"))

    def load(self) -> Record | None:
        """The record; None where `up` did not get as far as writing one."""
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.SimgpuError(
                f"{self.record}: {error}; 'simgpu down --name {self.name}' removes this cluster"
            ) from None

    def save(self, record: Record) -> None:
        """Write the record whole or not at all."""
        write_private(self.record, msgspec.json.format(msgspec.json.encode(record)))

    def remove(self) -> None:
        """Delete everything, and the folders above if nothing else is in them."""
        # Moved away first, lock and all: whoever waits for the lock starts with a folder of their own.
        going = self.path.with_name(f".{self.name}.{os.getpid()}.going")
        if self.path.exists():
            self.path.rename(going)
        for folder in self.path.parent.glob(f".{self.name}.*.going"):  # also of a removal that was killed
            shutil.rmtree(folder)
        for folder in (self.path.parent, self.path.parent.parent):
            try:
                folder.rmdir()
            except OSError:
                return


def check_name(name: str) -> str:
    """A cluster's name becomes a folder and part of a context name, so it is kept simple."""
    if not _NAME.fullmatch(name):
        raise errors.InputError(
            "--name", f"{name!r}: 1 to 40 lower-case letters, digits and dashes, no dash at either end"
        )
    return name


def absent(name: str) -> errors.SimgpuError:
    """The error that there is no cluster of that name, with what there is and how to make it."""
    others = ", ".join(other for other in known_names() if other != name)
    hint = f"; there is: {others}" if others else ""
    command = "simgpu up" if name == DEFAULT_NAME else f"simgpu up --name {name}"
    return errors.SimgpuError(f"no cluster named {name}{hint}; '{command}' makes one")


def known_names() -> list[str]:
    """Names of all clusters that have a folder."""
    root = paths.clusters()
    found = root.iterdir() if root.is_dir() else ()
    return sorted(path.name for path in found if path.is_dir() and not path.name.startswith("."))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)
    unfinished.rename(path)


def choose_ports(address: str, listeners: Iterable[str], *, taken: set[int], chance: random.Random) -> dict[str, int]:
    """A free port for each listener."""
    chosen: dict[str, int] = {}
    for listener in listeners:
        while listener not in chosen:
            candidate = chance.choice(_PORT_RANGE)
            if candidate not in taken and candidate not in chosen.values() and port_is_free(address, candidate):
                chosen[listener] = candidate
    return chosen


def check_port(address: str, port: int) -> None:
    """Refuse a port that the user chose and that cannot be had."""
    if not 1 <= port <= 65535:
        raise errors.InputError("--port", f"{port}: must be from 1 to 65535")
    problem = _port_problem(address, port)
    if problem is not None:
        raise errors.InputError("--port", f"{port} {problem} on {address}; name another, or leave it out")


def port_is_free(address: str, port: int) -> bool:
    """Whether we could listen there now, and on loopback, where some parts always listen."""
    return all(_port_problem(place, port) is None for place in {"127.0.0.1", address})


def _port_problem(address: str, port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            return "is not for ordinary users"
        except OSError:
            return "is taken"
    return None


def ports_of_others(name: str) -> set[int]:
    """Ports that other clusters on this machine were given, running or not."""
    ports: set[int] = set()
    for other in known_names():
        if other != name:
            try:
                record = Folder(other).load()
            except (errors.SimgpuError, OSError):
                continue
            if record is not None:
                ports |= set(record.ports.values())
    return ports
