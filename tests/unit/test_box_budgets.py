"""What a box does for its workloads' pods: no more at each step, and for each that comes or goes, than it has to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.box import Box
from simgpu.catalog import models
from simgpu.identities import identity, occupants, render, view
from simgpu.sim import activity, engine
from simgpu.topology import devices

MODELS = [models.load().models[key] for key in ("h200", "t4", "max-1550", "h200")]
BUSY = activity.Profile("w", (activity.Activity({"usage": activity.constant(0.5)}, seconds=1000.0),))
PLACES = ("0", "1", "2", "card2.0", "card2.1", "3")


def box() -> Box:
    return Box([devices.device("n", at, model) for at, model in enumerate(MODELS)], seed=1, hostname="n", spread=0.0)


def pod(name: str) -> view.Pod:
    return view.Pod(name, "ns", "main", f"uid of {name}")


def first_pods(made: Box) -> tuple[dict[int, view.Pod], dict[int, view.Pod]]:
    """Who is named on each device and part: found by going over everything that runs."""
    whole: dict[int, view.Pod] = {}
    parts: dict[int, view.Pod] = {}
    for work in made.workloads().values():
        for index, handle in work.places:
            if work.pod is not None and handle == made.machine.ids[index]:
                whole.setdefault(index, work.pod)
            elif work.pod is not None:
                parts.setdefault(handle, work.pod)
    return whole, parts


@given(st.data())
def test_the_first_of_the_pods_on_a_device_is_named_whatever_came_and_went(data: st.DataObject) -> None:
    made = box()
    for number in range(data.draw(st.integers(1, 12))):
        running = list(made.workloads())
        doing = data.draw(st.sampled_from(["admit", "admit", "drop", "arrange", "change"]))
        if doing == "admit":
            on = data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3))
            here = [place for place in on if not place.isdigit() or int(place) < len(made.devices)]
            named = pod(f"p{number}") if data.draw(st.booleans()) else None
            made.admit(BUSY, here or ["0"], pod=named)
        elif doing == "drop" and running:
            made.drop([data.draw(st.sampled_from(running))])
        elif doing == "arrange" and running:
            made.arrange(data.draw(st.lists(st.sampled_from(running), unique=True)))
        elif doing == "change":
            made.change(made.devices[:3] if len(made.devices) == 4 else made.devices[:])
        assert (made.machine.pods, made.machine.part_pods) == first_pods(made)


def test_a_workload_that_comes_or_goes_costs_as_much_as_it_has_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def counting(method: Any) -> Any:
        def counted(self: occupants.Occupants, workload: int, *args: Any) -> None:
            looked.extend(args[-1])
            method(self, workload, *args)

        return counted

    made = box()
    for number in range(200):
        made.admit(BUSY, ["0", "1", "3"], pod=pod(f"p{number}"))
    for name in ("add", "remove"):
        monkeypatch.setattr(occupants.Occupants, name, counting(getattr(occupants.Occupants, name)))
    order = list(made.workloads())
    numbers = made.admit(BUSY, ["0", "1"], pod=pod("new"))
    assert len(looked) == 2
    made.drop(numbers)
    assert len(looked) == 4
    made.arrange(order[:3])  # as they are
    assert len(looked) == 4


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
        made.arrange(list(made.workloads())[::-1])
        made.step(2.0, clock=0.0)
