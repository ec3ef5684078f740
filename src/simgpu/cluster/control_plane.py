"""Brings the processes of one cluster to the state that they should be in, and waits until they are well."""

from __future__ import annotations

import asyncio
import base64
import os
import random
from typing import TYPE_CHECKING, Any

import yaml

from simgpu import errors
from simgpu.cluster import components, processes, record
from simgpu.kube import client as kube_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from simgpu.cluster.components import Component
    from simgpu.cluster.progress import Progress
    from simgpu.cluster.record import Folder, Record

READY_SECONDS = 120.0
_POLL_SECONDS = 0.05
_PORT_OF = {
    "etcd": "etcd",
    "kube-apiserver": "apiserver",
    "kube-controller-manager": "controller-manager",
    "kube-scheduler": "scheduler",
    "kwok": "kwok",
}


class ComponentError(errors.SimgpuError):
    """A process ended or did not become ready; carries the end of its log."""

    def __init__(self, component: str, problem: str, log: str) -> None:
        said = "\n".join(f"  {line}" for line in log.splitlines()) or "  (nothing)"
        super().__init__(f"{component} {problem}; the end of its log:\n{said}")
        self.port_taken = "address already in use" in log


def with_ports(wanted: Record, folder: Folder, chance: random.Random) -> Record:
    """The record with a port for every listener, keeping those it has unless somebody else took one."""
    running = alive(folder)
    if wanted.ports and all(
        name in running or record.port_is_free(wanted.address, wanted.ports[listener])
        for name, listener in _PORT_OF.items()
    ):
        return wanted
    taken = record.ports_of_others(folder.name)
    ports = record.choose_ports(wanted.address, apiserver=wanted.port, taken=taken, chance=chance)
    return record.Record(
        name=wanted.name,
        address=wanted.address,
        port=wanted.port,
        ports=ports,
        nodes=wanted.nodes,
        gpus=wanted.gpus,
    )


def write_kubeconfig(folder: Folder, wanted: Record) -> None:
    """An admin's kubeconfig that stands alone: it can be copied anywhere on this machine."""

    def inline(name: str) -> str:
        return base64.b64encode((folder.pki / name).read_bytes()).decode()

    name = f"simgpu-{wanted.name}" if wanted.name != "simgpu" else "simgpu"
    server = f"https://{wanted.address}:{wanted.ports['apiserver']}"
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": inline("ca.crt")}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": inline("admin.crt"),
                    "client-key-data": inline("admin.key"),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    record.write_private(folder.kubeconfig, yaml.safe_dump(document, sort_keys=False).encode())


class ControlPlane:
    """The processes of one cluster."""

    def __init__(self, folder: Folder, parts: Mapping[str, Component], progress: Progress) -> None:
        self._folder = folder
        self._parts = parts
        self._progress = progress
        self._started: list[str] = []

    def start(self, name: str) -> None:
        """Start one component unless it runs."""
        self._started.append(name)
        if name in alive(self._folder):
            return
        self._progress.update(name, "starting")
        environ = {"HOME": str(self._folder.path), "PATH": os.environ.get("PATH", os.defpath)}
        command = self._parts[name].command
        processes.start(name, self._folder.path, command, log=self._folder.log(name), environ=environ)

    async def ready(self, name: str) -> None:
        """Wait until a component says that it is well."""
        health = self._parts[name].health
        if health is not None:
            await self._until(name, lambda: kube_client.probe(health))
        self._progress.done(name, "ready")

    async def start_listening(self, name: str, address: str, port: int) -> None:
        """Start one component and wait until it takes connections."""
        self.start(name)
        await self._until(name, lambda: _listens(address, port))

    async def _until(self, name: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition; a component that ends meanwhile is an error at once."""
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await condition():
            for ended in [part for part in self._started if part not in alive(self._folder)]:
                raise ComponentError(ended, "ended", tail(self._folder.log(ended)))
            if asyncio.get_running_loop().time() > deadline:
                raise ComponentError(name, f"was not ready after {READY_SECONDS:.0f} s", tail(self._folder.log(name)))
            await asyncio.sleep(_POLL_SECONDS)

    async def start_ready(self, name: str) -> None:
        """Start one component and wait for it."""
        self.start(name)
        await self.ready(name)


async def _listens(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


def alive(folder: Folder) -> set[str]:
    """Names of the components that run."""
    return {process.component for process in processes.running(folder.path)}


def tail(log: Path, lines: int = 12, longest: int = 400) -> str:
    """The end of a log file, its lines cut to a readable length."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:longest] for line in text.splitlines()[-lines:])


def start_role(folder: Folder, role: components.Role) -> None:
    """Start a process of ours beside the control plane unless it runs."""
    if role.name in alive(folder):
        return
    command = [part.replace("{kubeconfig}", str(folder.kubeconfig)) for part in role.command]
    processes.start(role.name, folder.path, command, log=folder.log(role.name), environ=os.environ)
