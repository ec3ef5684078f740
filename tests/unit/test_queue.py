"""The work queue: each key once, never two workers on one key, nothing lost, nobody starved."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.kube.backoff import Backoff
from simgpu.kube.queue import WorkQueue

SHORT = Backoff(first_seconds=0.001, max_seconds=0.004)


@contextlib.asynccontextmanager
async def working(
    queue: WorkQueue[str], work: Callable[[str], Awaitable[float | None]], workers: int = 2
) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(work, workers=workers))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_key_that_waits_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(10):
        queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_key_added_during_its_work_is_worked_on_again_but_not_at_the_same_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    queue.done(key)
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_keys_are_served_in_the_order_of_their_coming() -> None:
    queue: WorkQueue[str] = WorkQueue()
    served: list[str] = []

    async def greedy(key: str) -> None:
        served.append(key)
        if key == "greedy" and served.count("greedy") < 50:
            queue.add("greedy")

    for key in ("greedy", "b", "c", "d"):
        queue.add(key)
    async with working(queue, greedy, workers=1):
        await until(lambda: served.count("greedy") == 50)
    assert served[:4] == ["greedy", "b", "c", "d"]


async def test_keys_are_worked_on_in_turns_of_milliseconds() -> None:
    now, turn, done = 0.0, 0, list[int]()

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work(_key: str) -> None:
        nonlocal now
        now += 2**-9  # two milliseconds
        done.append(turn)

    queue: WorkQueue[str] = WorkQueue(clock=lambda: now)
    for key in range(99):
        queue.add(str(key))
    async with working(queue, work, workers=1):
        beside = asyncio.create_task(others())
        await until(lambda: len(done) == 99)
        beside.cancel()
    assert set(Counter(done).values()) == {3}


async def test_a_failing_key_comes_back_later_each_time_and_others_go_on() -> None:
    queue: WorkQueue[str] = WorkQueue(SHORT)
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)
        if key == "bad" and tries.count("bad") < 4:
            raise ValueError(key)

    queue.add("bad")
    queue.add("good")
    async with working(queue, work):
        await until(lambda: tries.count("bad") == 4 and len(queue) == 0)
    assert tries.count("good") == 1
    assert queue.failures("bad") == 0


def test_the_back_off_grows_and_is_bounded() -> None:
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    assert 0.75 <= backoff.pause(0) <= 1.0
    assert 3.0 <= backoff.pause(2) <= 4.0
    assert 7.5 <= backoff.pause(1000) <= 10.0


async def test_a_delayed_key_waits_and_the_earliest_time_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    loop = asyncio.get_running_loop()
    started = loop.time()
    queue.add_after("a", 5000.0)
    queue.add_after("a", 0.03)
    queue.add_after("a", 9000.0)
    assert await queue.get() == "a"
    assert loop.time() - started >= 0.03
    queue.done("a")
    assert len(queue) == 0


async def test_a_delayed_key_that_is_wanted_now_comes_now_and_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    await asyncio.sleep(0.02)
    assert len(queue) == 0


async def test_work_can_ask_to_be_called_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    calls: list[float] = []

    async def work(_: str) -> float | None:
        calls.append(asyncio.get_running_loop().time())
        return 0.01 if len(calls) < 3 else None

    queue.add("a")
    async with working(queue, work):
        await until(lambda: len(calls) == 3)
    assert calls[2] - calls[0] >= 0.02


async def test_delays_that_are_overtaken_again_and_again_do_not_pile_up() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for round_ in range(5000):
        queue.add_after("a", 1000.0 - round_ * 0.1)
        queue.add("a")
        queue.done(await queue.get())
    assert len(queue._heap) < 200


async def test_work_that_is_stopped_half_way_is_not_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue()
    started = asyncio.Event()

    async def endless(_: str) -> None:
        started.set()
        await asyncio.sleep(600)

    queue.add("a")
    async with working(queue, endless):
        await started.wait()
    assert await queue.get() == "a"


async def test_work_that_is_cancelled_from_within_does_not_end_its_worker() -> None:
    queue: WorkQueue[str] = WorkQueue(SHORT)
    calls: list[str] = []

    async def work(key: str) -> None:
        calls.append(key)
        if calls.count("a") < 3 and key == "a":
            raise asyncio.CancelledError

    queue.add("a")
    async with working(queue, work, workers=1):
        queue.add("b")
        await until(lambda: calls.count("a") == 3 and "b" in calls)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=60),
    st.integers(1, 4),
    st.sets(st.integers(0, 40), max_size=10),
)
def test_after_any_history_the_last_wish_of_every_key_was_worked_on(
    history: list[tuple[str, int]], workers: int, failing: set[int]
) -> None:
    async def play() -> None:
        queue: WorkQueue[str] = WorkQueue(SHORT)
        wanted: dict[str, int] = {}
        done: dict[str, int] = {}
        active: set[str] = set()
        calls = 0

        async def work(key: str) -> None:
            nonlocal calls
            assert key not in active, "two workers on one key"
            active.add(key)
            calls += 1
            number, seen = calls, wanted[key]
            await asyncio.sleep(0)
            active.discard(key)
            if number in failing:
                raise ValueError
            done[key] = seen

        async with working(queue, work, workers):
            for step, (key, delay) in enumerate(history):
                wanted[key] = step
                queue.add_after(key, delay / 2000)
                if step % 3 == 0:
                    await asyncio.sleep(0)
            await until(lambda: done == wanted)

    asyncio.run(play())


async def test_the_depth_counts_what_waits_now_and_every_wait_is_told() -> None:
    now, waits = 0.0, list[float]()
    queue: WorkQueue[str] = WorkQueue(waited=waits.append, clock=lambda: now)
    queue.add("a")
    queue.add_after("b", 60.0)
    assert (queue.depth, len(queue)) == (1, 2)
    now = 2.0
    queue.add("a")  # it waits already: since the first time
    await queue.get()
    queue.add("a")
    now = 5.0
    queue.done("a")
    await queue.get()
    assert waits == [2.0, 3.0]
