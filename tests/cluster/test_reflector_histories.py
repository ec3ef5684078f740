"""Whatever happens, the store ends up equal to the server's truth: random histories on a real API server.

Creates, updates and deletes are mixed with cut connections, compaction of the database (which makes the server
forget versions) and restarts of the API server. This cluster is not the shared one: it is mistreated.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.parse
import urllib.request

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.cluster import record
from simgpu.kube import errors, kubeconfig, resources
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.reflector import Pace, Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import ConfigMap
from tests.fixtures.proxy import CuttingProxy
from tests.fixtures.rough import compact, restart_apiserver

NAMESPACE = "default"
LAST = "last"  # the name of what is written when everything else has been
PACE = Pace(backoff=Backoff(first_seconds=0.02, max_seconds=0.2), silence_seconds=5.0)

NAMES = st.sampled_from(["a", "b", "c"])
CALM = st.one_of(
    st.tuples(st.just("write"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("relabel"), NAMES),
    st.tuples(st.just("breathe"), st.just("")),
)
ROUGH = st.one_of(st.tuples(st.just("cut"), st.just("")), st.tuples(st.just("compact"), st.just("")))
SLOW = st.one_of(st.tuples(st.just("forget"), NAMES), st.tuples(st.just("restart"), st.just("")))
HISTORIES = st.lists(st.one_of(CALM, CALM, CALM, ROUGH), min_size=3, max_size=25)
ROUGH_HISTORIES = st.tuples(HISTORIES, SLOW, HISTORIES).map(lambda parts: [*parts[0], parts[1], *parts[2]])


class History:
    """Plays steps against the server while a reflector watches through a proxy that can be cut."""

    def __init__(self, folder: record.Folder, client: Client, proxy: CuttingProxy, label: str) -> None:
        self._folder = folder
        self._client = client
        self._proxy = proxy
        self._label = label
        self._number = 0

    async def step(self, what: str, name: str) -> None:
        await getattr(self, what)(name)

    async def write(self, name: str) -> None:
        self._number += 1
        body = {"metadata": {"labels": {"group": self._label}}, "data": {"number": str(self._number)}}
        await self._client.apply(resources.CONFIG_MAPS, name, body, manager="test", namespace=NAMESPACE, force=True)

    async def relabel(self, name: str) -> None:
        """Out of what the reflector selects, without being deleted."""
        patch = {"metadata": {"labels": {"group": None}}}
        try:
            await self._client.merge_patch(resources.CONFIG_MAPS, name, patch, namespace=NAMESPACE)
        except errors.NotFound:
            return

    async def delete(self, name: str) -> None:
        await self._client.delete(resources.CONFIG_MAPS, name, namespace=NAMESPACE)

    async def breathe(self, _: str) -> None:
        await asyncio.sleep(0.02)

    async def cut(self, _: str) -> None:
        self._proxy.cut()

    async def compact(self, _: str) -> None:
        await asyncio.to_thread(compact, self._folder)

    async def restart(self, _: str) -> None:
        await restart_apiserver(self._folder)

    async def forget(self, name: str) -> None:
        """A deletion that the reflector cannot hear of, at a version that the server then forgets."""
        self._proxy.blocked = True
        self._proxy.cut()
        await self.delete(name)
        await self.write("other")
        await self.compact("")
        await self.restart("")
        self._proxy.blocked = False


async def play(folder: record.Folder, steps: list[tuple[str, str]], *, streaming: bool) -> Reflector[ConfigMap]:
    target = kubeconfig.load(folder.kubeconfig)
    address = urllib.parse.urlsplit(target.server)
    proxy = CuttingProxy(str(address.hostname), int(address.port or 0))
    label = "histories"
    store: Store[ConfigMap] = Store()
    replica: dict[str, ConfigMap] = {}
    store.listen(lambda change: follow(replica, change))
    async with Client(target) as client, proxy as port:
        for name in ("a", "b", "c", "other", LAST):
            await client.delete(resources.CONFIG_MAPS, name, namespace=NAMESPACE)
        through = msgspec.structs.replace(target, server=f"https://127.0.0.1:{port}")
        async with Client(through) as watching:
            reflector = Reflector(
                watching,
                resources.CONFIG_MAPS,
                store,
                namespace=NAMESPACE,
                labels=f"group={label}",
                pace=PACE,
                streaming=streaming,
            )
            task = asyncio.create_task(reflector.run())
            try:
                await asyncio.wait_for(store.synced.wait(), 20)
                history = History(folder, client, proxy, label)
                for what, name in steps:
                    await history.step(what, name)
                await equal(client, store, label)
                assert {key: item.data for key, item in replica.items()} == {
                    f"{NAMESPACE}/{item.metadata.name}": item.data for item in store
                }
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    return reflector


def follow(replica: dict[str, ConfigMap], change: Change[ConfigMap]) -> None:
    """What a controller that only hears of changes would know."""
    if change.new is None:
        del replica[change.key]
    else:
        replica[change.key] = change.new


async def equal(client: Client, store: Store[ConfigMap], label: str) -> None:
    """Wait until the store has what the server has, and see that it stays so until a later write arrives."""

    async def truth() -> dict[str, str]:
        listed = await client.list(resources.CONFIG_MAPS, namespace=NAMESPACE, labels=f"group={label}")
        return {item.metadata.name: item.metadata.resource_version for item in listed}

    def stored() -> dict[str, str]:
        return {item.metadata.name: item.metadata.resource_version for item in store}

    before = await truth()
    async with asyncio.timeout(30):
        while stored() != before:
            await asyncio.sleep(0.01)
        last = {"metadata": {"labels": {"group": label}}}
        await client.apply(resources.CONFIG_MAPS, LAST, last, manager="test", namespace=NAMESPACE, force=True)
        while LAST not in stored():
            assert stored() == before
            await asyncio.sleep(0.01)
    assert stored() == await truth()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HISTORIES, st.booleans())
def test_after_any_history_the_store_equals_the_server(
    rough: record.Folder, steps: list[tuple[str, str]], streaming: bool
) -> None:
    asyncio.run(play(rough, steps, streaming=streaming))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROUGH_HISTORIES, st.booleans())
def test_after_any_history_with_restarts_and_forgotten_versions_the_store_equals_the_server(
    rough: record.Folder, steps: list[tuple[str, str]], streaming: bool
) -> None:
    asyncio.run(play(rough, steps, streaming=streaming))


@pytest.mark.parametrize("streaming", [True, False])
def test_through_restarts_and_forgotten_versions_the_store_equals_the_server(
    rough: record.Folder, streaming: bool
) -> None:
    steps = [
        ("write", "a"),
        ("write", "b"),
        ("breathe", ""),
        ("restart", ""),
        ("write", "c"),
        ("forget", "b"),
        ("write", "a"),
        ("cut", ""),
        ("relabel", "c"),
        ("compact", ""),
        ("delete", "a"),
        ("write", "b"),
    ]
    reflector = asyncio.run(play(rough, steps, streaming=streaming))
    assert reflector.counters.failures > 0
    assert reflector.counters.lists >= 2, "a forgotten version must lead to a new list"
