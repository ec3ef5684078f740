"""The reflector against a server whose watch goes wrong in every way that was ever seen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.kube import resources, watching
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.reflector import Pace, Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import Pod
from simgpu.kube.wire import Retries
from tests.fixtures.http import Answer, Scripted, answer, cut, status, stream

FAST = Pace(backoff=Backoff(first_seconds=0.001, max_seconds=0.01), silence_seconds=0.2, failures=3)


def pod(name: str, version: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "d",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        },
        "spec": {"containers": [{"name": "c"}], "nodeName": labels.get("node", "")},
    }


def event(kind: str, name: str, version: int, **labels: str) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version, **labels)}


def bookmark(version: int, *, end: bool = False) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"metadata": meta, "spec": {"containers": None}}}


def error(code: int, reason: str = "") -> dict[str, Any]:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason, "message": f"code {code}"}}


def page(version: int, *pods: dict[str, Any]) -> Answer:
    return answer({"metadata": {"resourceVersion": str(version)}, "items": list(pods)})


class Mirror:
    """A running reflector and what its store told."""

    def __init__(self, reflector: Reflector[Pod]) -> None:
        self.reflector = reflector
        self.store = reflector.store
        self.changes: list[Change[Pod]] = []
        self.store.listen(self.changes.append)

    async def holds(self, **versions: int) -> None:
        """Wait until the store has exactly these pods at these versions."""
        wanted = {f"d/{name}": str(version) for name, version in versions.items()}
        async with asyncio.timeout(10):
            while {f"d/{item.metadata.name}": item.metadata.resource_version for item in self.store} != wanted:
                await asyncio.sleep(0.002)

    def story(self) -> list[str]:
        """The changes in short: +name, ~name, -name."""
        return [
            f"{'+' if change.old is None else '-' if change.new is None else '~'}{change.key[2:]}"
            for change in self.changes
        ]


@contextlib.asynccontextmanager
async def mirror(server: Scripted, *script: Answer, streaming: bool = True, **options: Any) -> AsyncIterator[Mirror]:
    server.script = [*script, stream(then="silence", server=server)]
    async with Client(server.target, retries=Retries(attempts=1)) as client:
        store: Store[Pod] = Store({"node": lambda item: [item.spec.node_name] if item.spec.node_name else []})
        reflector = Reflector(
            client, resources.PODS, store, pace=options.pop("pace", FAST), streaming=streaming, **options
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield Mirror(reflector)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_streaming_list_fills_the_store_and_goes_on_as_a_watch(scripted: Scripted) -> None:
    events = [
        event("ADDED", "a", 1),
        event("ADDED", "b", 2),
        bookmark(5, end=True),
        event("MODIFIED", "a", 6),
        event("DELETED", "b", 7),
    ]
    async with mirror(scripted, stream(*events)) as seen:
        await seen.holds(a=6)
        assert seen.story() == ["+a", "+b", "~a", "-b"]
        assert seen.store.synced.is_set()
        await scripted.asked(2)
    assert scripted.seen[0].query["sendInitialEvents"] == "true"
    assert scripted.seen[1].query["resourceVersion"] == "7"


async def test_an_error_before_the_initial_events_end_leads_to_list_and_watch(scripted: Scripted) -> None:
    async with mirror(scripted, stream(event("ADDED", "a", 1), error(500)), page(9, pod("a", 1), pod("b", 8))) as seen:
        await seen.holds(a=1, b=8)
        assert seen.story() == ["+a", "+b"]


@pytest.mark.parametrize("refusal", [status(422, "unknown parameter"), status(400)], ids=["422", "400"])
async def test_a_server_without_streaming_lists_is_listed(scripted: Scripted, refusal: Answer) -> None:
    async with mirror(scripted, refusal, page(9, pod("a", 1)), stream(event("ADDED", "b", 10))) as seen:
        await seen.holds(a=1, b=10)
    assert scripted.seen[2].query["resourceVersion"] == "9"


async def test_a_streaming_list_that_is_cut_off_starts_over_and_shows_nothing_half(scripted: Scripted) -> None:
    whole = stream(
        event("ADDED", "a", 1), event("ADDED", "b", 2), bookmark(5, end=True), then="silence", server=scripted
    )
    async with mirror(scripted, stream(event("ADDED", "a", 1), then="cut"), whole) as seen:
        await seen.holds(a=1, b=2)
        assert seen.story() == ["+a", "+b"]


async def test_a_deletion_during_a_streaming_list_is_seen(scripted: Scripted) -> None:
    events = [event("ADDED", "a", 1), event("ADDED", "b", 2), event("DELETED", "a", 3), bookmark(5, end=True)]
    async with mirror(scripted, stream(*events, then="silence", server=scripted)) as seen:
        await seen.holds(b=2)


async def test_bookmarks_move_the_version_that_the_next_watch_starts_from(scripted: Scripted) -> None:
    async with mirror(
        scripted, page(9, pod("a", 1)), stream(bookmark(50)), stream(event("ADDED", "b", 51)), streaming=False
    ) as seen:
        await seen.holds(a=1, b=51)
    assert [request.query.get("resourceVersion") for request in scripted.seen[1:3]] == ["9", "50"]


@pytest.mark.parametrize("gone", [stream(error(410, "Expired")), status(410, reason="Gone")], ids=["event", "answer"])
async def test_after_410_the_new_list_is_compared_and_missed_deletions_are_seen(
    scripted: Scripted, gone: Answer
) -> None:
    script = [page(9, pod("a", 1), pod("b", 2), pod("c", 3)), gone, page(20, pod("b", 2), pod("c", 15), pod("d", 16))]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(b=2, c=15, d=16)
        assert seen.story() == ["+a", "+b", "+c", "-a", "~c", "+d"]
        assert seen.reflector.counters.lists == 2


async def test_an_object_made_anew_while_nobody_looked_is_told_as_gone_and_new(scripted: Scripted) -> None:
    other = pod("a", 12)
    other["metadata"]["uid"] = "another"
    async with mirror(scripted, page(9, pod("a", 1)), status(410), page(20, other), streaming=False) as seen:
        await seen.holds(a=12)
        assert seen.story() == ["+a", "-a", "+a"]


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503, 504])
async def test_an_error_event_of_any_code_at_any_moment_is_survived(scripted: Scripted, code: int) -> None:
    script = [page(9), stream(event("ADDED", "a", 10), error(code)), stream(event("ADDED", "b", 11))]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=10, b=11)
        assert seen.reflector.counters.lists == 1
    assert scripted.seen[2].query["resourceVersion"] == "10"


async def test_a_watch_that_keeps_failing_is_begun_again_from_a_list(scripted: Scripted) -> None:
    failing = [stream(error(504)) for _ in range(4)]
    async with mirror(scripted, page(9), *failing, page(30, pod("a", 20)), streaming=False) as seen:
        await seen.holds(a=20)


@pytest.mark.parametrize("fault", [cut(), status(500), status(503)], ids=["cut", "500", "503"])
async def test_a_server_that_goes_away_and_comes_back(scripted: Scripted, fault: Answer) -> None:
    script = [
        page(9),
        fault,
        fault,
        stream(event("ADDED", "a", 10), then="cut"),
        fault,
        stream(event("ADDED", "b", 11)),
    ]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=10, b=11)


async def test_a_silent_stream_is_given_up_and_followed_from_where_it_was(scripted: Scripted) -> None:
    quiet = stream(event("ADDED", "a", 10), then="silence", server=scripted)
    async with mirror(scripted, page(9), quiet, stream(event("ADDED", "b", 11)), streaming=False) as seen:
        await seen.holds(a=10, b=11)
    assert scripted.seen[2].query["resourceVersion"] == "10"


async def test_a_line_larger_than_a_mebibyte_in_many_chunks(scripted: Scripted) -> None:
    large = event("ADDED", "large", 10, padding="x" * 3_000_000)
    script = [page(9), stream(event("ADDED", "a", 10), large, event("ADDED", "b", 12))]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=10, large=10, b=12)


async def test_half_a_line_at_the_end_of_a_stream_is_dropped(scripted: Scripted) -> None:
    script = [
        page(9),
        stream(event("ADDED", "a", 10), b'{"type":"ADDED","obj', then="cut"),
        stream(event("ADDED", "b", 11)),
    ]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=10, b=11)


async def test_events_written_in_another_style_are_read_too(scripted: Scripted) -> None:
    loose = (
        b'{ "object": {"metadata": {"name": "a", "namespace": "d", "resourceVersion": "10"}}, "type": "ADDED" }\r\n\n'
    )
    async with mirror(scripted, page(9), stream(loose), streaming=False) as seen:
        await seen.holds(a=10)


async def test_garbage_is_survived_and_an_odd_object_is_skipped(scripted: Scripted) -> None:
    odd = {"type": "ADDED", "object": {"metadata": {"name": "odd", "labels": "none"}}}
    script = [page(9), stream(b"<html>\n"), stream(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n')]
    async with mirror(scripted, *script, stream(odd, event("ADDED", "a", 10)), streaming=False) as seen:
        await seen.holds(a=10)


async def test_an_answer_that_is_nested_too_deeply_is_survived(scripted: Scripted) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    listed = stream(b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"x"},"other":' + deep + b"}]}")
    watched = stream(b'{"type":"ADDED","object":{"metadata":{"name":"x"},"other":' + deep + b"}}\n")
    async with mirror(scripted, listed, page(9), watched, stream(event("ADDED", "a", 10)), streaming=False) as seen:
        await seen.holds(a=10)


async def test_a_stream_without_line_ends_is_given_up(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_LINE_BYTES", 1000)
    endless = stream(event("ADDED", "a", 10), *[b"x" * 400] * 4, then="silence", server=scripted)
    pace = Pace(backoff=FAST.backoff, silence_seconds=600.0)
    async with mirror(scripted, page(9), endless, stream(event("ADDED", "b", 11)), streaming=False, pace=pace) as seen:
        await seen.holds(a=10, b=11)


async def test_an_object_that_no_longer_fits_its_view_does_not_stay_in_its_old_form(scripted: Scripted) -> None:
    odd = event("MODIFIED", "a", 10)
    odd["object"]["spec"]["nodeName"] = 7
    gone = event("DELETED", "b", 11)
    gone["object"]["spec"]["nodeName"] = 7
    script = [page(9, pod("a", 1), pod("b", 2), pod("c", 3)), stream(odd, gone, event("MODIFIED", "c", 12))]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(c=12)


@pytest.mark.parametrize(
    "strange",
    [
        answer({"metadata": {"resourceVersion": "1"}, "items": None}),
        answer("hello"),
        stream(b"<html>"),
        answer([]),
    ],
    ids=["null items", "text", "html", "list"],
)
async def test_a_strange_answer_to_a_list_is_survived(scripted: Scripted, strange: Answer) -> None:
    async with mirror(
        scripted, strange, status(410), page(9, pod("a", 1)), page(9, pod("a", 1)), streaming=False
    ) as seen:
        await seen.holds(a=1)


@pytest.mark.parametrize("annotations", ["null", "{}"])
async def test_strange_bookmarks_are_survived(scripted: Scripted, annotations: str) -> None:
    meta = f'{{"resourceVersion":"12","annotations":{annotations}}}'
    odd = f'{{"type":"BOOKMARK","object":{{"metadata":{meta}}}}}\n'.encode()
    empty = b'{"type":"BOOKMARK","object":{}}\n'
    script = [page(9), stream(odd, empty), stream(event("ADDED", "a", 13))]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=13)
    assert scripted.seen[2].query["resourceVersion"] == "12"


async def test_a_server_that_ignores_the_wish_for_initial_events_is_listed(scripted: Scripted) -> None:
    async with mirror(scripted, stream(event("ADDED", "b", 5)), page(9, pod("a", 1))) as seen:
        await seen.holds(a=1)


async def test_endless_410s_and_watches_that_end_at_once_are_met_with_growing_patience(scripted: Scripted) -> None:
    patient = Pace(backoff=Backoff(first_seconds=0.02, max_seconds=1.0), failures=3)
    script = [part for _ in range(200) for part in (page(9), status(410))]
    async with mirror(scripted, *script, streaming=False, pace=patient):
        await asyncio.sleep(0.5)
    assert len(scripted.seen) < 20
    scripted.seen.clear()
    async with mirror(scripted, page(9), *[stream() for _ in range(200)], streaming=False, pace=patient):
        await asyncio.sleep(0.5)
    assert len(scripted.seen) < 20


def test_patience_has_no_end() -> None:
    assert Pace().backoff.pause(100_000) <= Pace().backoff.max_seconds


async def test_selectors_are_asked_for(scripted: Scripted) -> None:
    async with mirror(
        scripted, page(9), streaming=False, labels="a=b", fields="spec.nodeName=n", namespace="d"
    ) as seen:
        await seen.holds()
        await scripted.asked(2)
    for request in scripted.seen[:2]:
        assert request.path == "/api/v1/namespaces/d/pods"
        assert (request.query["labelSelector"], request.query["fieldSelector"]) == ("a=b", "spec.nodeName=n")


async def test_indexes_follow(scripted: Scripted) -> None:
    script = [
        page(9, pod("a", 1, node="x"), pod("b", 2, node="x")),
        stream(event("MODIFIED", "a", 10, node="y"), event("DELETED", "b", 11)),
    ]
    async with mirror(scripted, *script, streaming=False) as seen:
        await seen.holds(a=10)
        assert [item.metadata.name for item in seen.store.by("node", "y")] == ["a"]
        assert seen.store.by("node", "x") == []
        assert seen.store.values("node") == ["y"]


def fails(_: Change[Pod]) -> None:
    raise ZeroDivisionError


async def test_a_listener_that_fails_does_not_stop_the_mirror(scripted: Scripted) -> None:
    async with mirror(scripted, page(9, pod("a", 1)), stream(event("ADDED", "b", 10)), streaming=False) as seen:
        seen.store.listen(fails)
        await seen.holds(a=1, b=10)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.01, 0.05])
async def test_a_stop_at_any_moment_leaves_no_task_and_no_socket(scripted: Scripted, pause: float) -> None:
    before_tasks, before_files = len(asyncio.all_tasks()), descriptors()
    events = [event("ADDED", f"p{number}", number) for number in range(1, 200)]
    async with mirror(scripted, stream(*events, bookmark(500, end=True), then="silence", server=scripted)):
        await asyncio.sleep(pause)
    scripted.hold.set()
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before_tasks or descriptors() > before_files:
            await asyncio.sleep(0.01)
