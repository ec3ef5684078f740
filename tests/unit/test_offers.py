"""What is offered to the kubelet, shared or not, and which devices go together."""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.machines import health
from simgpu.node import messages
from simgpu.node.offers import Offer, Offered, Place, offer, places, prefer
from simgpu.topology import devices, failures, sharing

CATALOG = models.load()


def node(*entries: tuple[str, int]) -> Offer:
    """All GPUs of a node with so many of each model, named by their index."""
    box = devices.BoxConfig(tuple(devices.GpuEntry(model, count) for model, count in entries))
    where = places(devices.build(box, CATALOG, node="n"))
    return Offer("nvidia.com/gpu", tuple(Offered(str(index), place) for index, place in enumerate(where)))


def preferred(made: Offer, free: str, size: int, must: str = "") -> list[int]:
    return [int(item) for item in prefer(made, free.split(), must.split(), size)]


@pytest.mark.parametrize("model", ["h200", "t4"])
@pytest.mark.parametrize(
    ("free", "must", "size", "expected"),
    [
        ("0 1 2 3 4 5 6 7", "", 2, [0, 1]),
        ("7 6 5 4 3 2 1 0", "", 4, [0, 1, 2, 3]),
        ("3 4 5 6 7", "", 2, [4, 5]),
        ("2 3 4 5 6 7", "", 2, [2, 3]),
        ("3 4 5 6 7", "3", 2, [3, 4]),
        ("0 1 3 4 5 6 7", "5", 2, [5, 4]),
        ("0 1 2 3 4 5 6 7", "", 6, [0, 1, 2, 3, 4, 5]),
        ("0 4 5 6", "", 4, [4, 5, 6, 0]),
        ("", "", 1, []),
    ],
)
def test_gpus_of_one_numa_node_stay_together(model: str, free: str, must: str, size: int, expected: list[int]) -> None:
    assert preferred(node((model, 8)), free, size, must) == expected


@pytest.mark.parametrize(
    ("free", "must", "size", "expected"),
    [
        ("6 7 8 9 10 11 12", "", 3, [8, 9, 10]),  # linked and on one NUMA node, though the first two are free as well
        ("2 3 8 9 10 12 13", "", 4, [8, 9, 10, 12]),  # linked across NUMA nodes before unlinked on one
        ("4 5 6 7 8 9 10 11 12 13 14 15", "", 4, [4, 5, 6, 7]),  # the whole board is left for others
        ("2 3 6 7 8 9 10 11 12", "", 4, [8, 9, 10, 11]),  # on one NUMA node, though the fuller board would do
        ("0 1 2 8 9", "9", 2, [9, 8]),
        ("0 1 2 3 8 9", "9", 5, [9, 0, 1, 2, 3]),
        ("5 6 7 8 9 10 12", "", 7, [8, 9, 10, 12, 5, 6, 7]),
    ],
)
def test_gpus_of_one_board_stay_together(free: str, must: str, size: int, expected: list[int]) -> None:
    assert preferred(node(("h200", 16)), free, size, must) == expected


MIXED = node(("h200", 4), ("t4", 6), ("a100", 2))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [8]),  # one that is linked to none: boards stay whole
        (2, [10, 11]),  # linked, and the smallest board that has two
        (3, [0, 1, 2]),
        (5, [4, 5, 6, 7, 8]),  # only one model has so many
        (7, [4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_gpus_of_one_model_stay_together(size: int, expected: list[int]) -> None:
    assert sorted(preferred(MIXED, " ".join(item.id for item in MIXED.devices), size)) == sorted(expected)


MODELS = st.sampled_from(["h200", "t4", "v100"])  # boards of v100 are linked if they are not full


@st.composite
def questions(draw: st.DrawFn, entries: int) -> tuple[Offer, list[str], list[str], int]:
    """What a kubelet asks: what must be given is of one place."""
    made = node(*draw(st.lists(st.tuples(MODELS, st.integers(1, 12)), min_size=1, max_size=entries)))
    offered = [Offered(item.id, Place(draw(st.integers(0, 1)), item.place.model, item.place.board))
               for item in made.devices]  # fmt: skip
    available = draw(st.lists(st.sampled_from(offered), min_size=1, max_size=9, unique_by=lambda item: item.id))
    near = [item.id for item in available if item.place == available[0].place]
    must = near[: draw(st.integers(0, 2))]
    size = draw(st.integers(len(must), len(available)))
    return Offer("nvidia.com/gpu", tuple(offered)), [item.id for item in available], must, size


@given(questions(entries=3))
def test_preferred_gpus_are_available_and_as_many_as_asked(question: tuple[Offer, list[str], list[str], int]) -> None:
    made, available, must, size = question
    found = prefer(made, available, must, size)
    assert len(set(found)) == len(found) == size
    assert set(must) <= set(found) <= set(available)
    assert prefer(made, available[::-1], must[::-1], size) == (*must[::-1], *found[len(must) :])


def _links(made: Offer, ids: tuple[str, ...]) -> int:
    """Pairs that are linked."""
    boards = Counter(item.place.board for item in made.devices if item.id in ids and item.place.board is not None)
    return sum(count * (count - 1) // 2 for count in boards.values())


def _near(made: Offer, ids: tuple[str, ...]) -> bool:
    """Whether all are linked to one another, on one NUMA node."""
    return len({item.place for item in made.devices if item.id in ids}) == 1 and _links(made, ids) > 0


@given(questions(entries=1))
def test_no_other_gpus_of_the_model_have_more_links(question: tuple[Offer, list[str], list[str], int]) -> None:
    made, available, must, size = question
    others = [choice for choice in combinations(available, size) if set(must) <= set(choice)]
    found = prefer(made, available, must, size)
    assert _links(made, found) == max(_links(made, choice) for choice in others)
    assert _near(made, found) == any(_near(made, choice) for choice in others)


@given(questions(entries=3))
def test_models_are_not_mixed_where_one_has_enough(question: tuple[Offer, list[str], list[str], int]) -> None:
    made, available, must, size = question
    models_of = {item.id: item.place.model for item in made.devices}
    kinds = {models_of[item] for item in must} or set(models_of.values())
    enough = any(sum(models_of[item] == kind for item in available) >= size for kind in kinds)
    assert (len({models_of[item] for item in prefer(made, available, must, size)}) <= 1) == enough


def _slicing(**fields: object) -> sharing.TimeSlicing:
    return sharing.parse({"timeSlicing": fields}, field="sharing")


def test_shared_gpus_are_offered_several_times() -> None:
    slicing = _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": 3}])
    made = offer("nvidia.com/gpu", [Offered("a"), Offered("b", Place(1))], slicing)
    assert [item.id for item in made.devices] == ["a::0", "a::1", "a::2", "b::0", "b::1", "b::2"]
    assert made.resource == "nvidia.com/gpu"
    assert sharing.device("a::2") == sharing.device("a") == "a"


def test_the_longest_list_of_devices_fits_a_message_that_the_kubelet_takes() -> None:
    longest = f"{'x' * 253}-{'y' * 63}-{vocabulary.MAX_DEVICES}"
    named = [Offered(f"{longest}::{number}", healthy=False, show_numa=True) for number in range(vocabulary.MAX_DEVICES)]
    data = Offer("x/y", tuple(named)).message().encode()
    assert len(data) < 4 << 20
    assert len(messages.ListAndWatchResponse.decode(data).devices) == vocabulary.MAX_DEVICES


def test_shared_gpus_are_used_evenly() -> None:
    slicing = _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": 2}])
    made = offer("nvidia.com/gpu", [Offered("a"), Offered("b", Place(1))], slicing)
    assert prefer(made, ["a::1", "b::0", "b::1"], [], 1) == ("b::0",)
    assert prefer(made, ["a::0", "a::1", "b::0", "b::1"], [], 2) == ("a::0", "b::0")
    assert prefer(made, ["a::0", "a::1", "b::1"], ["b::1"], 2) == ("b::1", "a::0")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "nvidia.com/gpu"),
        ({"renameByDefault": True}, "nvidia.com/gpu.shared"),
        ({"renameByDefault": True, "rename": "example.com/slice"}, "example.com/slice"),
        ({"rename": "example.com/slice"}, "example.com/slice"),
    ],
)
def test_shared_gpus_are_renamed_where_that_is_asked_for(fields: dict[str, object], expected: str) -> None:
    resource: dict[str, object] = {"name": "nvidia.com/gpu", "replicas": 2}
    if "rename" in fields:
        resource["rename"] = fields.pop("rename")
    made = offer("nvidia.com/gpu", [Offered("a")], _slicing(resources=[resource], **fields))
    assert made.resource == expected


def test_more_than_one_replica_is_refused_where_that_is_asked_for() -> None:
    resource = {"name": "nvidia.com/gpu", "replicas": 2}
    assert offer("nvidia.com/gpu", [Offered("a")], _slicing(resources=[resource])).max_request is None
    strict = _slicing(resources=[resource], failRequestsGreaterThanOne=True)
    assert offer("nvidia.com/gpu", [Offered("a")], strict).max_request == 1
    assert offer("rdma/hca", [Offered("a")], strict).max_request is None


@pytest.mark.parametrize("replicas", [0, 1, "two", None])
def test_a_wrong_number_of_replicas_is_an_error_with_its_place(replicas: object) -> None:
    with pytest.raises(errors.InputError, match=r"sharing: .*replicas"):
        _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": replicas}])


def test_a_gpu_dies_and_returns() -> None:
    made = failures.parse({"dying": [{"gpu": 1, "after": 10, "for": 5}], "unhealthy": [3]}, field="failures")
    sick = {3: health.DeviceFailure.MEMORY}
    dead = {1: health.DeviceFailure.LOST}
    assert [health.configured(made, at) for at in (0, 10, 14.9, 15)] == [sick, sick | dead, sick | dead, sick]
    assert [made.next_change(at) for at in (0, 10, 15)] == [10, 5, None]


def test_a_plugin_flaps() -> None:
    made = failures.parse({"flap": 10}, field="failures")
    assert [made.present(at) for at in (0, 9, 10, 19, 20)] == [False, False, True, True, False]
    assert made.next_change(13) == 7


tenths = st.integers(0, 5000).map(lambda count: count / 10)


@given(
    tenths.filter(lambda seconds: seconds >= 0.5),
    st.lists(st.builds(failures.Death, st.integers(0, 3), tenths, tenths), max_size=3),
    tenths,
)
def test_nothing_changes_before_the_next_change(flap: float, dying: list[failures.Death], at: float) -> None:
    made = failures.Failures(flap=flap, dying=tuple(dying))
    until = made.next_change(at)
    assert until is not None
    assert until > 0

    def stands(time: float) -> tuple[bool, frozenset[int]]:
        return made.present(time), made.lost_at(time)

    assert stands(at + until * 0.999) == stands(at)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("explode: true", "no such key; there are: refuse"),
        ("flap: 1.0e-7", "flap must be 0, or at least 0.5 seconds"),
        ("{after: 2024-13-45}", "not YAML"),
        ("[" * 3000, "nested more than 64 levels deep"),
        ("dying: [", "not YAML"),
        ("5", "Expected `object`"),
    ],
)
def test_failures_that_make_no_sense_are_an_error_with_the_annotation(text: str, said: str) -> None:
    with pytest.raises(errors.InputError, match=f"annotation: .*{said}"):
        failures.read(text, field="annotation")


@given(st.text(max_size=40))
def test_whatever_failures_say_is_understood_or_an_error(text: str) -> None:
    with contextlib.suppress(errors.InputError):
        assert failures.read(text, field="annotation").present(0.0) in (True, False)


def test_no_failures_are_none() -> None:
    assert failures.read("", field="annotation") == failures.NONE
