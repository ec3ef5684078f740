"""The desired state of a cluster, kept as `cluster.json` in its folder, and the layout of that folder.

Only what cannot be observed is recorded: ports, and the requested nodes and GPUs. Running processes are found in the
process table, existing nodes in the API.
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
    """The desired state of a cluster."""

    name: str
    address: str = "127.0.0.1"  # that the API server and KWOK listen on
    port: int | None = None  # of the API server, if the user chose it
    ports: dict[str, int] = {}  # by listener
    nodes: int  # simulated nodes
    gpus: str  # of each node, as MODEL:COUNT
    bin_dir: str | None = None  # folder to take programs from first
    published: str = ""  # the value of `gpus` that was last written into the topology
    complete: bool = False  # whether `up` has ever succeeded

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address}:{self.ports['apiserver']}"

    def existing_bin_dir(self) -> Path | None:
        """Return the folder to take programs from first; None if there is none any more."""
        return Path(self.bin_dir) if self.bin_dir and Path(self.bin_dir).is_dir() else None


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

    def log(self, component: str) -> Path:
        """Return the log file of a component."""
        return self.logs / f"{component}.log"

    def components_with_logs(self) -> list[str]:
        """Return the names of components that have a log."""
        return sorted(path.stem for path in self.logs.glob("*.log"))

    def load(self) -> Record | None:
        """Return the record; None if there is none."""
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.SimgpuError(
                f"{self.record}: {error}; 'simgpu down --name {self.name}' removes this cluster"
            ) from None

    def save(self, record: Record) -> None:
        """Write the record atomically."""
        write_private(self.record, msgspec.json.format(msgspec.json.encode(record)))

    def remove(self) -> None:
        """Delete the folder, and its parents if they are empty."""
        # Renamed first, with the lock: a process that waits for the lock starts with a new folder.
        going = self.path.with_name(f".{self.name}.{os.getpid()}.going")
        if self.path.exists():
            self.path.rename(going)
        for folder in self.path.parent.glob(f".{self.name}.*.going"):  # also of an interrupted removal
            shutil.rmtree(folder)
        for folder in (self.path.parent, self.path.parent.parent):
            try:
                folder.rmdir()
            except OSError:
                return


def check_name(name: str) -> str:
    """Return a valid cluster name, or raise InputError: it is used for a folder and a kubeconfig context."""
    if not _NAME.fullmatch(name):
        raise errors.InputError(
            "--name", f"{name!r}: must be 1 to 40 lower-case letters, digits and dashes, without a dash at either end"
        )
    return name


def no_such_cluster(name: str) -> errors.SimgpuError:
    """Return the error for a cluster that does not exist, with those that do and how to create it."""
    others = ", ".join(other for other in known_names() if other != name)
    hint = f"; existing clusters: {others}" if others else ""
    command = "simgpu up" if name == DEFAULT_NAME else f"simgpu up --name {name}"
    return errors.SimgpuError(f"no cluster named {name}{hint}; '{command}' creates one")


def known_names() -> list[str]:
    """Return the names of all clusters that have a folder."""
    root = paths.clusters()
    found = root.iterdir() if root.is_dir() else ()
    return sorted(path.name for path in found if path.is_dir() and not path.name.startswith("."))


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)
    unfinished.rename(path)


def choose_ports(address: str, listeners: Iterable[str], *, taken: set[int], chance: random.Random) -> dict[str, int]:
    """Choose a free port for each listener."""
    chosen: dict[str, int] = {}
    for listener in listeners:
        while listener not in chosen:
            candidate = chance.choice(_PORT_RANGE)
            if candidate not in taken and candidate not in chosen.values() and port_is_free(address, candidate):
                chosen[listener] = candidate
    return chosen


def check_port(address: str, port: int) -> None:
    """Raise InputError if a port that the user chose is invalid or in use."""
    if not 1 <= port <= 65535:
        raise errors.InputError("--port", f"{port}: must be from 1 to 65535")
    problem = _port_problem(address, port)
    if problem is not None:
        raise errors.InputError("--port", f"{port} {problem} on {address}; choose another, or omit the option")


def port_is_free(address: str, port: int) -> bool:
    """Return whether the port is free on the address and on loopback, where some components always listen."""
    return all(_port_problem(place, port) is None for place in {"127.0.0.1", address})


def _port_problem(address: str, port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            return "needs root privileges"
        except OSError:
            return "is in use"
    return None


def ports_of_others(name: str) -> set[int]:
    """Return the ports of other clusters on this machine, running or not."""
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
