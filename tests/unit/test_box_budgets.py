"""What a box does for its workloads' pods: no more at each step, and for each that comes or goes, than it has to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.machines import users
from simgpu.machines.box import Box
from simgpu.machines.users import PodRef, User
from simgpu.sim import activity, engine
from simgpu.topology import devices

MODELS = [models.load().models[key] for key in ("h200", "t4", "max-1550", "h200")]
BUSY = activity.Profile("w", (activity.Activity({"usage": activity.constant(0.5)}, seconds=1000.0),))
PLACES = ("0", "1", "2", "card2.0", "card2.1", "3")


def box() -> Box:
    return Box([devices.device("n", at, model) for at, model in enumerate(MODELS)], seed=1, hostname="n", spread=0.0)


def pod(name: str) -> PodRef:
    return PodRef(name, "ns", "main", f"uid of {name}")


def first_pods(made: Box) -> tuple[dict[int, PodRef], dict[int, PodRef]]:
    """Who is named on each device and part: found by going over everything that runs."""
    whole: dict[int, PodRef] = {}
    parts: dict[int, PodRef] = {}
    numbers = made.machine.ids.tolist()
    for work in made.workloads().values():
        if work.pod is None:
            continue
        for handle in work.handles:
            if handle in numbers:
                whole.setdefault(numbers.index(handle), work.pod)
            else:
                parts.setdefault(handle, work.pod)
    return whole | {index: card.users[0].pod for index, card in enumerate(made.cards) if card.users}, parts


@given(st.data())
def test_the_first_of_the_pods_on_a_device_is_named_whatever_came_and_went(data: st.DataObject) -> None:
    made = box()
    for number in range(data.draw(st.integers(1, 12))):
        running = list(made.workloads())
        doing = data.draw(st.sampled_from(["admit", "admit", "drop", "use", "change"]))
        if doing == "admit":
            on = data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3))
            here = [place for place in on if not place.isdigit() or int(place) < len(made.devices)]
            named = pod(f"p{number}") if data.draw(st.booleans()) else None
            made.admit(BUSY, here or ["0"], pod=named)
        elif doing == "drop" and running:
            made.drop([data.draw(st.sampled_from(running))])
        elif doing == "use":
            names = data.draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
            made.use({made.devices[0].uuid: [User(pod(name)) for name in names]})
        elif doing == "change":
            made.change(made.devices[:3] if len(made.devices) == 4 else made.devices[:])
        assert (made.machine.pods, made.machine.part_pods) == first_pods(made)


def test_a_workload_that_comes_or_goes_costs_as_much_as_it_has_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    add_workload = engine.Engine.add_workload

    def counted(self: engine.Engine, profile: activity.Profile, on: Sequence[int], **more: Any) -> int:
        started.append(len(on))
        return add_workload(self, profile, on, **more)

    made = box()
    for number in range(200):
        made.admit(BUSY, ["0", "1", "3"], pod=pod(f"p{number}"))
    monkeypatch.setattr(engine.Engine, "add_workload", counted)
    made.drop(made.admit(BUSY, ["0", "1"], pod=pod("new")))
    assert started == [1, 1]
    sharing = [User(pod(f"u{number}"), users.ALL) for number in range(100)]
    made.use({made.devices[0].uuid: sharing})
    assert started[2:] == [1] * 100
    made.use({made.devices[0].uuid: [*sharing[1:], User(pod("new"), users.ALL)]})
    assert len(started) == 103


@pytest.mark.parametrize(("name", "listed"), [("dcgm", 0), ("amd", 2)])
def test_what_workloads_have_is_listed_for_pages_that_show_it_and_once_in_a_step(
    name: str, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    usages = engine.Engine.usages

    def counted(self: engine.Engine, workloads: Sequence[int]) -> engine.Usages:
        asked.append(len(workloads))
        return usages(self, workloads)

    monkeypatch.setattr(engine.Engine, "usages", counted)
    made = Box([devices.device("n", 0, models.load().models["mi300x"])], seed=1, hostname="n", spread=0.0)
    for number in range(3):
        made.admit(BUSY, ["0"], pod=pod(f"p{number}"))
    shown = render.Renderer(made.machine, identity.load(name))
    for step in range(1, 5):
        made.step(float(step), clock=0.0)
    assert not asked
    for step in (5, 6):
        made.step(float(step), clock=0.0)
        assert shown.page() == shown.page()
    assert asked == [3] * listed


def test_what_workloads_have_is_the_same_for_all_at_once_as_for_each() -> None:
    made = box()
    for number, on in enumerate((["3", "0"], ["card2.1", "2"], ["1"], ["0", "1", "2"])):
        made.admit(BUSY, on, pod=pod(f"p{number}"))
    made.admit(BUSY, ["0"])
    made.step(1.0, clock=0.0)
    for _ in range(2):
        assert [(item.workload, item.pod, item.usage, item.memory_mib) for item in made.machine.usages] == [
            (number, work.pod, share.usage, share.memory_mib)
            for number, work in made.workloads().items()
            if work.pod is not None
            for share in made.engine.shares(number)
        ]
        made.drop([next(iter(made.workloads()))])
        made.step(2.0, clock=0.0)
