"""The writer against a server that fails: nothing wanted is lost, nothing is sent in the wrong order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from simgpu.kube import errors, resources, views
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.operations import Target
from simgpu.kube.wire import Retries
from simgpu.kube.writer import Writer
from tests.fixtures.http import Scripted, answer, cut, status

NODE = Target(resources.NODES, "n")
STATUS = Target(resources.NODES, "n", subresource="status")
OK = answer({"metadata": {"name": "n"}})


@contextlib.asynccontextmanager
async def writing(server: Scripted, **options: Any) -> AsyncIterator[Writer]:
    async with Client(server.target, retries=Retries(attempts=1)) as client:
        writer = Writer(client, manager="test", backoff=Backoff(first_seconds=0.001, max_seconds=0.01), **options)
        task = asyncio.create_task(writer.run())
        try:
            yield writer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def sent(server: Scripted) -> list[tuple[str, str, Any]]:
    """What reached the server, in short."""
    return [
        (request.method, request.path.removeprefix("/api/v1/nodes/"), json.loads(await request.read()))
        for request in server.seen
    ]


@pytest.mark.parametrize("fault", [status(500), status(409), status(429), cut()], ids=["500", "409", "429", "cut"])
async def test_a_write_that_fails_for_a_passing_reason_is_tried_again(scripted: Scripted, fault: Any) -> None:
    scripted.script = [fault, fault, OK]
    async with writing(scripted) as writer:
        writer.merge(NODE, {"a": 1})
        await asyncio.wait_for(writer.drained(), 5)
        assert (writer.counters.written, writer.counters.failed) == (1, 0)


async def test_what_comes_during_a_failure_is_folded_in_and_waits_with_it(scripted: Scripted) -> None:
    scripted.script = [status(500), OK]
    async with writing(scripted) as writer:
        writer.merge(NODE, {"a": 1, "b": 1})
        while not scripted.seen:
            await asyncio.sleep(0.001)
        for number in range(20):
            writer.merge(NODE, {"b": number})
        await asyncio.wait_for(writer.drained(), 5)
    assert [body for _, _, body in await sent(scripted)][-1] == {"a": 1, "b": 19}
    assert len(scripted.seen) <= 3


async def test_a_failure_that_lasts_is_told_to_everyone_who_asked(scripted: Scripted) -> None:
    scripted.script = [status(500)] * 3
    told: list[str] = []
    async with writing(scripted, attempts=3) as writer:
        writer.merge(NODE, {"a": 1}, failed=lambda _: told.append("first"))
        writer.merge(NODE, {"b": 1}, failed=lambda _: told.append("second"))
        await asyncio.wait_for(writer.drained(), 5)
    assert told == ["first", "second"]
    assert len(scripted.seen) == 3


async def test_an_object_is_settled_once_what_was_written_is_seen(scripted: Scripted) -> None:
    scripted.script = [answer({"metadata": {"name": "n", "resourceVersion": "7"}})]
    old, new = (views.Object(metadata=views.ObjectMeta(name="n", resource_version=text)) for text in ("6", "7"))
    async with writing(scripted) as writer:
        assert writer.settled(NODE, old)
        writer.merge(STATUS, {"a": 1})
        assert not writer.settled(NODE, new)
        assert not writer.settled(NODE, None)
        await asyncio.wait_for(writer.drained(), 5)
        assert [writer.settled(NODE, seen) for seen in (old, new, None)] == [False, True, True]


async def test_an_object_is_written_before_its_status(scripted: Scripted) -> None:
    scripted.script = [OK] * 4
    async with writing(scripted) as writer:
        writer.apply(NODE, {"metadata": {"labels": {"a": "1"}}})
        writer.merge(STATUS, {"status": {"phase": "x"}})
        await asyncio.wait_for(writer.drained(), 5)
    assert [path for _, path, _ in await sent(scripted)] == ["n", "n/status"]


async def test_delete_and_then_apply_deletes_and_makes_anew(scripted: Scripted) -> None:
    scripted.script = [OK, OK]
    async with writing(scripted) as writer:
        writer.merge(NODE, {"void": 1})
        writer.delete(NODE)
        writer.apply(NODE, {"data": {}})
        await asyncio.wait_for(writer.drained(), 5)
    assert [method for method, _, _ in await sent(scripted)] == ["DELETE", "PATCH"]


async def test_what_was_written_last_is_remembered_only_while_that_is_true(scripted: Scripted) -> None:
    scripted.script = [OK] * 10
    async with writing(scripted) as writer:
        body = {"status": {"phase": "x"}}
        assert writer.merge(STATUS, body)
        await writer.drained()
        assert not writer.merge(STATUS, {"status": {"phase": "x"}})
        body["status"]["phase"] = "y"
        assert writer.merge(STATUS, body), "the caller may change what it gave"
        await writer.drained()
        writer.delete(NODE)
        await writer.drained()
        assert writer.merge(STATUS, body), "with the object its status is gone"
        await writer.drained()
        writer.forget(NODE)
        assert writer.merge(STATUS, body)
        assert writer.apply(STATUS, body), "another verb is another thing"
        await writer.drained()


async def test_a_writer_that_is_stopped_still_has_what_it_did_not_write(scripted: Scripted) -> None:
    scripted.script = [status(500)]
    async with Client(scripted.target, retries=Retries(attempts=1)) as client:
        writer = Writer(client, manager="test", backoff=Backoff(first_seconds=600, max_seconds=600))
        writer.merge(NODE, {"a": 1})
        task = asyncio.create_task(writer.run())
        async with asyncio.timeout(10):
            while not writer._failing:
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert writer.pending == 1
        assert writer.lag > 0


async def test_what_is_no_json_is_refused_where_it_is_asked_for(scripted: Scripted) -> None:
    async with writing(scripted) as writer:
        with pytest.raises(TypeError):
            writer.merge(NODE, {"a": object()})
        assert writer.pending == 0


async def test_an_answer_that_cannot_be_read_is_no_failure_of_the_write(scripted: Scripted) -> None:
    scripted.script = [answer("what?")]
    failures: list[errors.KubeError] = []
    async with writing(scripted) as writer:
        writer.merge(NODE, {"a": 1}, failed=failures.append)
        await asyncio.wait_for(writer.drained(), 5)
        assert writer.counters.written == 1
    assert failures == []


async def test_what_is_on_its_way_is_not_sent_again(scripted: Scripted) -> None:
    scripted.script = [status(500), OK, OK]
    async with writing(scripted) as writer:
        assert writer.merge(NODE, {"a": 1})
        assert not writer.merge(NODE, {"a": 1}), "it waits"
        await scripted.asked(1)
        assert not writer.merge(NODE, {"a": 1}), "it is being tried again"
        assert writer.merge(STATUS, {"status": {"phase": "x"}})
        await asyncio.wait_for(writer.drained(), 5)
    assert [body for _, _, body in await sent(scripted)] == [{"a": 1}, {"a": 1}, {"status": {"phase": "x"}}]


async def test_what_was_seen_before_our_last_write_says_nothing_against_it(scripted: Scripted) -> None:
    labels = {"metadata": {"labels": {"a": "1"}}}
    scripted.script = [answer({"metadata": {"name": "n", "resourceVersion": "10"}}), OK]
    before = views.Node(metadata=views.ObjectMeta(name="n", resource_version="9"))
    after = views.Node(metadata=views.ObjectMeta(name="n", resource_version="11"))  # somebody took the label away
    async with writing(scripted) as writer:
        assert writer.merge(NODE, labels, observed=before)
        await asyncio.wait_for(writer.drained(), 5)
        assert not writer.merge(NODE, labels, observed=before)
        assert writer.merge(NODE, {"metadata": {"labels": {"a": "2"}}}, observed=before), "that is something else"
        await asyncio.wait_for(writer.drained(), 5)
        assert writer.merge(NODE, labels, observed=after)


async def test_a_body_is_made_when_its_turn_has_come_and_once_however_often_it_is_asked_for(scripted: Scripted) -> None:
    scripted.script = [OK] * 3
    made: list[int] = []

    def render() -> dict[str, Any]:
        made.append(len(made))
        return {"data": {"value": value}}

    async with writing(scripted) as writer:
        value = "old"
        for _ in range(5):
            writer.apply_rendered(NODE, render)
        value = "new"
        assert not made
        await asyncio.wait_for(writer.drained(), 5)
        writer.apply_rendered(Target(resources.NODES, "other"), lambda: None)
        await asyncio.wait_for(writer.drained(), 5)
    assert made == [0]
    [(method, path, body)] = await sent(scripted)
    assert (method, path, body["data"]) == ("PATCH", "n", {"value": "new"})


async def test_a_body_that_cannot_be_made_stops_no_other(scripted: Scripted) -> None:
    scripted.script = [OK]
    problems: list[errors.KubeError] = []

    def broken() -> dict[str, Any]:
        raise KeyError("gone")

    async with writing(scripted) as writer:
        writer.apply_rendered(NODE, broken, failed=problems.append)
        writer.apply_rendered(Target(resources.NODES, "other"), lambda: {"data": {}})
        await asyncio.wait_for(writer.drained(), 5)
        assert (writer.counters.written, writer.counters.failed) == (1, 1)
    assert [str(problem) for problem in problems] == ["'gone'"]
