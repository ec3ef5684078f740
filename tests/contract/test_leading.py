"""Elections on a server that is slow, sparse with words, or wrong."""

from __future__ import annotations

import asyncio

from aiohttp import web

from simgpu.app import controlling
from simgpu.catalog import models
from simgpu.identities import identity
from simgpu.kube import kubeconfig
from simgpu.kube.client import Client
from simgpu.kube.leading import Election, Terms
from simgpu.kube.wire import Retries
from simgpu.topology import inline
from tests.fixtures.http import Answer, Scripted, answer, status, stream

CATALOG = models.load()
TERMS = Terms(lease_seconds=2, renew_seconds=0.1, give_up_seconds=0.6, retry_seconds=0.1)


def lease(holder: str, version: int = 1) -> Answer:
    meta = {"name": "leader", "namespace": "d", "resourceVersion": str(version)}
    return answer({"metadata": meta, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 2}})


def late(what: Answer, seconds: float) -> Answer:
    async def send(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await what(request)

    return send


def election(server: Scripted, terms: Terms = TERMS) -> tuple[Client, Election]:
    client = Client(server.target, retries=Retries(attempts=1))
    return client, Election(client, "leader", namespace="d", identity="us", terms=terms)


async def run_for(server: Scripted, seconds: float) -> tuple[float, float]:
    """When leading began and ended, counted from the start; -1 for never."""
    client, candidate = election(server)
    loop = asyncio.get_running_loop()
    start, moments = loop.time(), {"began": -1.0, "ended": -1.0}

    async def lead() -> None:
        moments["began"] = loop.time() - start
        try:
            await asyncio.sleep(600)
        finally:
            moments["ended"] = loop.time() - start

    async with client:
        task = asyncio.create_task(candidate.run(lead))
        await asyncio.sleep(seconds)
        ended = moments["ended"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return moments["began"], ended


async def test_the_time_of_an_answer_counts_against_the_leader(scripted: Scripted) -> None:
    # The renewal is taken at once but answered late: leadership counts from when it was asked for.
    asked, delay = asyncio.get_running_loop().create_future(), 1.5
    terms = Terms(lease_seconds=9, renew_seconds=0.1, give_up_seconds=2.0, retry_seconds=0.1)

    async def slow(request: web.Request) -> web.StreamResponse:
        asked.set_result(asyncio.get_running_loop().time())
        return await late(lease("us", 2), delay)(request)

    scripted.script = [status(404), lease("us"), slow, *[late(status(500), 0.01)] * 100]
    client, candidate = election(scripted, terms)
    ended = asyncio.get_running_loop().create_future()

    async def lead() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set_result(asyncio.get_running_loop().time())

    async with client:
        task = asyncio.create_task(candidate.run(lead))
        assert await ended - await asked < terms.give_up_seconds + delay
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_lease_that_was_got_too_late_is_not_led_with(scripted: Scripted) -> None:
    scripted.script = [status(404), late(lease("us"), 5.0), *[status(500)] * 100]
    began, _ = await run_for(scripted, 1.2)
    assert began == -1.0


async def test_a_missing_namespace_does_not_make_the_candidate_race(scripted: Scripted) -> None:
    scripted.script = [status(404)] * 1000
    await run_for(scripted, 1.0)
    assert len(scripted.seen) < 40


async def test_watches_that_end_at_once_do_not_make_the_candidate_race(scripted: Scripted) -> None:
    scripted.script = [part for _ in range(500) for part in (lease("other"), stream())]
    await run_for(scripted, 1.0)
    assert len(scripted.seen) < 40


async def nothing_to_do() -> None:
    """Leads, and is done."""


async def test_a_lease_that_is_already_ours_is_taken_up_at_once(scripted: Scripted) -> None:
    scripted.script = [lease("us"), lease("us", 2), *[lease("us", 3)] * 100]
    client, candidate = election(scripted)
    async with client:
        await candidate.run(nothing_to_do)
    assert [request.method for request in scripted.seen[:2]] == ["GET", "PATCH"], (
        "looked at and taken, no watch between"
    )


async def test_no_counter_of_a_controller_falls_when_it_leads_again() -> None:
    target = kubeconfig.ClientConfig("http://127.0.0.1:9")
    settings = controlling.ControllerSettings(
        target=target, namespace="ns", listen=("127.0.0.1", 0), topology_listen=("127.0.0.1", 0),
        identity=identity.load("dcgm"), catalog=CATALOG,
    )  # fmt: skip
    controller = controlling.Controller(settings, Client(target))
    gpus = inline.parse("h200:2", CATALOG, field="gpus")
    before = controller.fleet
    node = before.place("n", gpus)
    before.begin(1.0)
    before.step(10.0, clock=10.0)
    before.step(20.0, clock=20.0)
    counted = before.counters(node)
    assert all(values[0] > 100.0 for values in counted.values())  # joules, which nobody has saved
    controller._writer.counters.unchanged = 3
    controller._begin_term()
    assert controller.fleet is not before
    assert controller.fleet.counters(controller.fleet.place("n", gpus)) == counted
    shown = {sample.name: sample.value for metric in controller.meters.collect() for sample in metric.samples}
    assert shown["simgpu_controller_writes_unchanged_total"] == 3
