"""What controllers stand on, against the real API server: the writer, elections between processes, events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.leading import Election
from simgpu.kube.operations import Target
from simgpu.kube.recording import EventLimits, Recorder, Subject
from simgpu.kube.writer import Writer
from tests.fixtures.candidate import TERMS
from tests.fixtures.cluster import Cluster, eventually


@contextlib.asynccontextmanager
async def running(work: Awaitable[Any]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def target(namespace: str, name: str = "settings") -> Target:
    return Target(resources.CONFIG_MAPS, name, namespace)


async def test_the_writer_writes_only_changes(client: Client, namespace: str) -> None:
    writer = Writer(client, manager="test")
    async with running(writer.run()):
        assert writer.apply(target(namespace), {"data": {"a": "1"}})
        await writer.drained()
        assert not writer.apply(target(namespace), {"data": {"a": "1"}})
        seen = await client.get(resources.CONFIG_MAPS, "settings", namespace=namespace)
        assert not writer.merge(target(namespace), {"data": {"a": "1", "b": None}}, observed=seen)
        assert writer.merge(target(namespace), {"data": {"b": "2"}}, observed=seen)
        await writer.drained()
        assert (await client.get(resources.CONFIG_MAPS, "settings", namespace=namespace)).data == {"a": "1", "b": "2"}
        assert (writer.counters.written, writer.counters.unchanged) == (2, 2)
        writer.delete(target(namespace))
        await writer.drained()
        assert await client.find(resources.CONFIG_MAPS, "settings", namespace=namespace) is None
        assert writer.apply(target(namespace), {"data": {"a": "1"}}), "what was deleted has to be written again"


async def test_writes_to_one_object_are_folded_and_fields_of_others_stay(client: Client, namespace: str) -> None:
    await client.create(
        resources.CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"theirs": "x"}}, namespace=namespace
    )
    writer = Writer(client, manager="test")
    for number in range(100):
        writer.merge(target(namespace), {"data": {f"key{number % 10}": str(number)}})
    before = client.requests["patch", "configmaps"]
    async with running(writer.run()):
        await writer.drained()
    seen = await client.get(resources.CONFIG_MAPS, "settings", namespace=namespace)
    assert seen.data == {"theirs": "x", **{f"key{number % 10}": str(number) for number in range(90, 100)}}
    assert client.requests["patch", "configmaps"] - before == 1
    assert writer.counters.folded == 99


async def test_the_rate_is_kept_and_urgent_writes_pass_by(client: Client, namespace: str) -> None:
    writer = Writer(client, manager="test", per_second=20.0, burst=1)
    for number in range(10):
        writer.apply(target(namespace, f"normal-{number}"), {"data": {}})
    for number in range(10):
        writer.apply(target(namespace, f"urgent-{number}"), {"data": {}}, urgent=True)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with running(writer.run()):

        async def urgent_done() -> bool:
            names = {item.metadata.name for item in await client.list(resources.CONFIG_MAPS, namespace=namespace)}
            return sum(name.startswith("urgent-") for name in names) == 10

        await eventually(urgent_done)
        assert writer.pending > 0, "the urgent ones did not wait for the others"
        assert writer.lag > 0
        await writer.drained()
        assert loop.time() - started >= 9 / 20.0
        assert (writer.lag, writer.pending) == (0.0, 0)


async def test_a_write_that_cannot_succeed_is_reported_and_the_others_go_on(client: Client, namespace: str) -> None:
    writer = Writer(client, manager="test")
    failures: list[errors.KubeError] = []
    writer.merge(target(namespace, "missing"), {"data": {"a": "1"}}, failed=failures.append)
    writer.apply(target(namespace), {"data": {"a": "1"}})
    async with running(writer.run()):
        await writer.drained()
    assert [type(error) for error in failures] == [errors.NotFound]
    assert await client.find(resources.CONFIG_MAPS, "settings", namespace=namespace) is not None


@contextlib.asynccontextmanager
async def candidate(
    cluster: Cluster, namespace: str, log: Path, identity: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fixtures.candidate",
        identity,
        namespace,
        str(log),
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def entries(log: Path) -> list[tuple[float, str]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [(float(line.split()[0]), line.split()[1]) for line in lines]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_two_processes_fight_for_a_lease_and_one_goes(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path, how: signal.Signals
) -> None:
    log = tmp_path / "log"

    async def leads(identity: str) -> bool:
        return any(who == identity for _, who in entries(log))

    async with candidate(cluster, namespace, log, "first") as first:
        await eventually(lambda: leads("first"))
        async with candidate(cluster, namespace, log, "second") as second:
            assert second.stdout is not None
            assert await second.stdout.readline() == b"standing\n"
            renewals: set[str | None] = set()

            async def fought() -> bool:
                """Whether the first has renewed its lease several times beside the second."""
                lease = await client.get(resources.LEASES, "leader", namespace=namespace)
                renewals.add(lease.spec.renew_time)
                return len(renewals) > 4

            await eventually(fought)
            assert not await leads("second")
            first.send_signal(how)
            await first.wait()
            await eventually(lambda: leads("second"))
    moments = entries(log)
    switch = next(index for index, (_, who) in enumerate(moments) if who == "second")
    assert all(who == "second" for _, who in moments[switch:]), "never two leaders"
    vacancy = moments[switch][0] - moments[switch - 1][0]
    if how == signal.SIGTERM:
        assert vacancy < 1.5, "a lease that was handed back is taken at once"
    else:
        assert vacancy < TERMS.lease_seconds + 4


async def test_a_leader_that_loses_its_lease_stops_and_stands_again(client: Client, namespace: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def lead() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    election = Election(client, "leader", namespace=namespace, identity="us", terms=TERMS)
    async with running(election.run(lead)):
        await asyncio.wait_for(began.wait(), 10)
        stolen = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 1}}
        await client.merge_patch(resources.LEASES, "leader", stolen, namespace=namespace)
        await asyncio.wait_for(ended.wait(), 10)
        began.clear()
        await asyncio.wait_for(began.wait(), 20)
        assert election.leading


async def test_an_election_ends_when_the_work_ends_or_fails(client: Client, namespace: str) -> None:
    async def done() -> None:
        return None

    async def fails() -> None:
        raise ValueError("broken")

    await asyncio.wait_for(Election(client, "leader", namespace=namespace, identity="a", terms=TERMS).run(done), 10)
    election = Election(client, "leader", namespace=namespace, identity="b", terms=TERMS)
    with pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(election.run(fails), 10)
    lease = await client.get(resources.LEASES, "leader", namespace=namespace)
    assert not lease.spec.holder_identity, "handed back"


async def test_events_are_counted_and_limited(client: Client, namespace: str) -> None:
    await client.create(resources.CONFIG_MAPS, {"metadata": {"name": "settings"}}, namespace=namespace)
    subject = Subject("v1", "ConfigMap", "settings", namespace)
    recorder = Recorder(client, component="simgpu-test", limits=EventLimits(burst=5, refill_seconds=3600))
    for number in range(20):
        recorder.record(subject, "Warning", "Broken", f"message {number}")
    for _ in range(3):
        recorder.record(subject, "Warning", "Broken", "message 0")
    assert recorder.dropped == 15

    async def written(count: int) -> list[Any]:
        found = await client.list(resources.EVENTS, namespace=namespace)
        return found if len(found) == count else []

    async with running(recorder.run()):
        events = await eventually(lambda: written(5))
        counts = {event.message: event.count for event in events}
        assert counts["message 0"] == 4
        recorder.record(Subject("v1", "ConfigMap", "settings", namespace, uid="other"), "Normal", "Fine", "again")
        await eventually(lambda: written(6))
    assert {event.involved_object.name for event in events} == {"settings"}


async def test_a_repeated_event_raises_its_count(client: Client, namespace: str) -> None:
    subject = Subject("v1", "ConfigMap", "settings", namespace)
    recorder = Recorder(client, component="simgpu-test")

    async def count() -> int:
        return sum(event.count or 0 for event in await client.list(resources.EVENTS, namespace=namespace))

    async with running(recorder.run()):
        recorder.record(subject, "Normal", "Hello", "there")
        await eventually(lambda: _is(count, 1))
        recorder.record(subject, "Normal", "Hello", "there")
        await eventually(lambda: _is(count, 2))
        [event] = await client.list(resources.EVENTS, namespace=namespace)
        await client.delete(resources.EVENTS, event.metadata.name, namespace=namespace)
        recorder.record(subject, "Normal", "Hello", "there")
        await eventually(lambda: _is(count, 1))


async def _is(look: Any, wanted: int) -> bool:
    return bool(await look() == wanted)


async def test_verbs_and_subresources_of_the_client(client: Client, namespace: str) -> None:
    names = [f"item-{number}" for number in range(7)]
    for name in names:
        await client.create(
            resources.CONFIG_MAPS, {"metadata": {"name": name, "labels": {"set": "x"}}}, namespace=namespace
        )
    found = await client.list(resources.CONFIG_MAPS, namespace=namespace, labels="set=x", page_size=3)
    assert sorted(item.metadata.name for item in found) == names
    [one] = await client.list(resources.CONFIG_MAPS, namespace=namespace, fields="metadata.name=item-3")
    assert one.metadata.name == "item-3"
    add = [{"op": "add", "path": "/data", "value": {"a": "b"}}]
    assert (await client.json_patch(resources.CONFIG_MAPS, "item-0", add, namespace=namespace)).data == {"a": "b"}
    test = [{"op": "test", "path": "/data/a", "value": "z"}]
    with pytest.raises(errors.Invalid):
        await client.json_patch(resources.CONFIG_MAPS, "item-0", test, namespace=namespace)
    await client.apply(resources.CONFIG_MAPS, "item-1", {"data": {"a": "1"}}, manager="one", namespace=namespace)
    with pytest.raises(errors.Conflict):
        await client.apply(resources.CONFIG_MAPS, "item-1", {"data": {"a": "2"}}, manager="two", namespace=namespace)
    status = {"status": {"conditions": [{"type": "Test", "status": "True"}]}}
    node = await client.merge_patch(resources.NODES, "kwok-gpu-node-3", status, subresource="status")
    assert any(item.type == "Test" for item in node.status.conditions)
    with pytest.raises(errors.AlreadyExists):
        await client.create(resources.CONFIG_MAPS, {"metadata": {"name": "item-0"}}, namespace=namespace)
    with pytest.raises(errors.Conflict):
        await client.delete(resources.CONFIG_MAPS, "item-0", namespace=namespace, uid="another")
    await client.delete_all(resources.CONFIG_MAPS, namespace=namespace, labels="set=x")
    assert await client.list(resources.CONFIG_MAPS, namespace=namespace, labels="set=x") == []
    assert client.requests["create", "configmaps"] == 8
