"""The processes of a soak: a cluster on the small disk, the proxy, and SimGPU's processes behind it.

What was killed comes back by `simgpu up`, which finds out itself what is missing.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from simgpu import errors
from simgpu.cluster import components, lifecycle, processes, progress, record
from simgpu.kube import kubeconfig
from simgpu.kube.client import Client
from soak import fleet, plan
from soak.clock import SteppedClock
from soak.disk import SmallDisk
from soak.fleet import Fleet
from soak.kubelet import PlayedKubelet
from soak.proxy import FaultProxy
from soak.settings import Settings
from tests.fixtures import accounts

NAME = "soak"
LEASE_SECONDS = 5
_REVIVE_SECONDS = 240.0
_TERM_SECONDS = 20.0
_OF_OTHERS = {"simgpu", "filler", "lost+found"}  # on the disk: the cluster, what fills it, and the file system's own
# A disk that is slow matters to those who wait for it: a local cluster does not, unless told to.
_DURABLE: dict[str, tuple[str, ...]] = {"etcd": ("--unsafe-no-fsync=false",)}


class World:
    """A running cluster with SimGPU's processes. Faults and checks reach everything through this."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self.settings = settings
        self.scratch = scratch
        self.disk = SmallDisk(scratch)
        self.clock = SteppedClock(scratch)
        self.folder: record.Folder
        self.proxy: FaultProxy
        self.client: Client
        self.fleet: Fleet
        self.kubelets: tuple[PlayedKubelet, ...] = ()
        self.restarts: collections.Counter[str] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self.effects: collections.Counter[str] = collections.Counter()  # faults that were seen to act, of some kinds
        self.crashes: list[str] = []  # processes of ours that ended by themselves
        self._stopped: set[str] = set()  # and not started since
        self._reviving = asyncio.Lock()
        self._wish = lifecycle.UpSettings(name=NAME, nodes=1, wait=False, flags=_DURABLE)
        self._roles: tuple[components.Role, ...] = ()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything; end and delete it afterwards."""
        self.clock.build()
        self.disk.mount()
        os.environ["XDG_STATE_HOME"] = str(self.disk.folder)
        os.environ |= self.clock.environ
        self.folder = record.Folder(NAME)
        try:
            await lifecycle.up(self._wish, progress.Silent())
            async with self._connected():
                yield
        finally:
            self.disk.free()
            for pid in self.pids().values():  # a stopped process ends, too, but only once it goes on
                _signal(pid, signal.SIGCONT)
            await lifecycle.down(NAME, progress.Silent())
            self.disk.unmount()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        known = self.known()
        self.proxy = FaultProxy(
            (known.address, known.ports["apiserver"]), self.folder.pki, chance=self.settings.chance("proxy")
        )
        async with Client(kubeconfig.load(self.folder.kubeconfig)) as client, self.proxy:
            self.client, self.fleet = client, Fleet(client, self.settings)
            await self.fleet.create()
            for account in accounts.MANIFESTS:
                token = await accounts.create(client, accounts.example(account, fleet.NAMESPACE))
                server, authority = self.proxy.url, (self.folder.pki / "ca.crt").read_bytes()
                accounts.write_kubeconfig(
                    self.scratch / f"{account}.yaml", server=server, authority=authority, token=token
                )
            self._roles = self._commands()
            self._stopped |= {role.name for role in self._roles}
            async with self._with_kubelets():
                await self.revive()
                self.restarts.clear()
                yield

    @contextlib.asynccontextmanager
    async def _with_kubelets(self) -> AsyncIterator[None]:
        self.kubelets = tuple(
            PlayedKubelet(
                self.client, node, self.disk.folder / role / "kubelet", self._cdi(role),
                chance=self.settings.chance(f"kubelet of {node}"),
            )
            for role, node in fleet.AGENTS.items()
        )  # fmt: skip
        try:
            for kubelet in self.kubelets:
                await kubelet.start()
            yield
        finally:
            for kubelet in self.kubelets:
                await kubelet.stop()

    def known(self) -> record.Record:
        """Return the cluster's ports and address."""
        known = self.folder.load()
        assert known is not None
        return known

    def url(self, role: str) -> str:
        """Return the address of a role's pages."""
        return f"http://127.0.0.1:{self.known().ports[role]}"

    def _commands(self) -> tuple[components.Role, ...]:
        program, here = (sys.executable, "-m", "simgpu"), self.disk.folder

        def behind_proxy(account: str) -> tuple[str, ...]:
            return ("--kubeconfig", str(self.scratch / f"{account}.yaml"), "--namespace", fleet.NAMESPACE)

        def role(name: str, *arguments: str, command: str = "", ports: tuple[str, ...] = ()) -> components.Role:
            listen = ("--listen", f"127.0.0.1:{{port:{name}}}")
            health = f"http://127.0.0.1:{{port:{name}}}/healthz"
            return components.Role(name, (*program, command or name, *listen, *arguments), (name, *ports), health)

        def agent(name: str, node: str) -> components.Role:
            own = here / name
            kubelet = own / "kubelet"
            return role(
                name, *behind_proxy("simgpu-agent"), "--node", node, "--state-dir", f"{own}/state",
                "--plugin-dir", f"{kubelet}/device-plugins", "--pod-resources", f"{kubelet}/device-plugins/pods.sock",
                "--dra-plugin-dir", f"{kubelet}/plugins", "--registry-dir", f"{kubelet}/registry",
                "--cdi-dir", str(self._cdi(name)), "--runai-dir", f"{own}/runai", "--nri-socket", f"{own}/nri.sock",
                "--cgroups", f"{own}/cgroups", "--log-level", "warning", command="agent",
            )  # fmt: skip

        return (
            role(
                "controller", *behind_proxy("simgpu-controller"), "--topology-listen", "127.0.0.1:{port:topology}",
                "--lease-duration", str(LEASE_SECONDS), "--log-level", "warning", ports=("topology",),
            ),
            *(agent(name, node) for name, node in fleet.AGENTS.items()),
            role(
                "exporter", "--model", "h200", "--count", str(fleet.EXPORTER_GPUS), "--socket", str(self.socket),
                "--page", f"{here}/pages", "--interval", "0.5",
            ),
        )  # fmt: skip

    def _cdi(self, role: str) -> Path:
        return self.disk.folder / role / "cdi"

    def claim_file_problems(self) -> list[str]:
        """Return where the agents' CDI files are not those of the claims that pods have."""
        return [problem for kubelet in self.kubelets for problem in kubelet.claim_file_problems()]

    @property
    def socket(self) -> Path:
        """The exporter's socket for workloads."""
        return self.disk.folder / "exporter.sock"

    def pids(self) -> dict[str, int]:
        """Return running processes by name."""
        return {process.component: process.pid for process in processes.running(self.folder.path)}

    def files(self) -> frozenset[str]:
        """Return what SimGPU's processes keep on the disk, by path."""
        found = set[Path]()
        for folder, folders, files in os.walk(self.disk.folder):  # passes over folders that vanish meanwhile
            here = Path(folder).relative_to(self.disk.folder)
            ours = {*folders, *files} - (_OF_OTHERS if here == Path() else set())
            folders[:] = ours.intersection(folders)
            found |= {here / name for name in ours}
        return frozenset(map(str, found))

    def look_for_crashes(self, *names: str) -> None:
        """Count those processes that have ended by themselves since the last start."""
        running = self.pids()
        self.crashes += [name for name in names if name not in running]

    async def stop(self, name: str, *, kill: bool = True) -> None:
        """End a process, at once or as a shutdown would."""
        self._stopped.add(name)
        if name in plan.OURS:
            self.look_for_crashes(name)
        grace = 0.0 if kill else _TERM_SECONDS
        await processes.stop(self.folder.path, only=frozenset({name}), grace_seconds=grace)

    def freeze(self, name: str, *, frozen: bool) -> None:
        """Stop a process, or let it go on."""
        if (pid := self.pids().get(name)) is not None:
            _signal(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    async def revive(self) -> None:
        """Start what does not run."""
        async with self._reviving:
            before = self.pids()
            deadline = time.monotonic() + _REVIVE_SECONDS
            while True:
                try:
                    await lifecycle.up(self._wish, progress.Silent(), self._roles)
                    break
                except (errors.SimgpuError, OSError) as error:  # another fault may have hit it meanwhile
                    self.crashes += [name for name in self._unstopped() if str(error).startswith(f"{name} ended")]
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.5)
            restarted = {name for name, pid in self.pids().items() if before.get(name) != pid}
            self.restarts.update(restarted)
            self.crashes += [name for name in self._unstopped() if name in restarted]
            self._stopped -= restarted

    def _unstopped(self) -> list[str]:
        """Return the processes of ours that nobody has stopped."""
        return [role.name for role in self._roles if role.name not in self._stopped]


def tracebacks(folder: record.Folder) -> list[str]:
    """Return the processes of ours that logged an exception that nobody handled."""
    found = []
    for name in plan.OURS:
        with contextlib.suppress(FileNotFoundError):
            text = folder.log(name).read_text(errors="replace")
            found += [f"{name} logged a traceback {count} times"] if (count := text.count("Traceback (")) else []
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
