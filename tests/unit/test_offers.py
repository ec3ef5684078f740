"""What is offered to the kubelet, shared or not, and which devices go together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors
from simgpu.node.offers import Offer, Offered, offer, prefer
from simgpu.topology import failures, sharing

EIGHT = Offer("nvidia.com/gpu", tuple(Offered(f"g{index}", index // 4) for index in range(8)))


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        ("01234567", "", 2, "01"),
        ("76543210", "", 4, "0123"),
        ("34567", "", 2, "45"),
        ("234567", "", 2, "23"),
        ("34567", "3", 2, "34"),
        ("0134567", "5", 2, "54"),
        ("01234567", "", 6, "012345"),
        ("0456", "", 4, "4560"),
        ("", "", 1, ""),
    ],
)
def test_gpus_of_one_numa_node_stay_together(available: str, must: str, size: int, expected: str) -> None:
    found = prefer(EIGHT, [f"g{item}" for item in available], [f"g{item}" for item in must], size)
    assert "".join(item[1:] for item in found) == expected


@given(st.data())
def test_the_preferred_devices_are_available_and_as_many_as_asked(data: st.DataObject) -> None:
    ids = [item.id for item in EIGHT.devices]
    available = data.draw(st.lists(st.sampled_from(ids), unique=True))
    must = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    size = data.draw(st.integers(len(must), len(available)))
    found = prefer(EIGHT, available, must, size)
    assert len(set(found)) == len(found) == size
    assert set(must) <= set(found) <= set(available)


def _slicing(**fields: object) -> sharing.TimeSlicing:
    return sharing.parse({"timeSlicing": fields}, field="sharing")


def test_shared_gpus_are_offered_several_times() -> None:
    slicing = _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": 3}])
    made = offer("nvidia.com/gpu", [Offered("a"), Offered("b", 1)], slicing)
    assert [item.id for item in made.devices] == ["a::0", "a::1", "a::2", "b::0", "b::1", "b::2"]
    assert made.resource == "nvidia.com/gpu"
    assert sharing.device("a::2") == sharing.device("a") == "a"


def test_shared_gpus_are_used_evenly() -> None:
    slicing = _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": 2}])
    made = offer("nvidia.com/gpu", [Offered("a"), Offered("b")], slicing)
    assert prefer(made, ["a::1", "b::0", "b::1"], [], 1) == ("b::0",)
    assert prefer(made, ["a::0", "a::1", "b::0", "b::1"], [], 2) == ("a::0", "b::0")


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
    assert offer("nvidia.com/gpu", [Offered("a")], _slicing(resources=[resource])).largest is None
    strict = _slicing(resources=[resource], failRequestsGreaterThanOne=True)
    assert offer("nvidia.com/gpu", [Offered("a")], strict).largest == 1
    assert offer("rdma/hca", [Offered("a")], strict).largest is None


@pytest.mark.parametrize("replicas", [0, 1, "two", None])
def test_a_wrong_number_of_replicas_is_an_error_with_its_place(replicas: object) -> None:
    with pytest.raises(errors.InputError, match=r"sharing: .*replicas"):
        _slicing(resources=[{"name": "nvidia.com/gpu", "replicas": replicas}])


def test_a_gpu_dies_and_returns() -> None:
    made = failures.parse({"dying": [{"gpu": 1, "after": 10, "for": 5}], "unhealthy": [3]}, field="failures")
    well = [[made.healthy(gpu, at) for gpu in range(4)] for at in (0, 10, 14.9, 15)]
    assert well == [[True, True, True, False], [True, False, True, False], [True, False, True, False],
                    [True, True, True, False]]  # fmt: skip
    assert [made.next_change(at) for at in (0, 10, 15)] == [10, 5, None]


def test_a_plugin_flaps() -> None:
    made = failures.parse({"flap": 10}, field="failures")
    assert [made.present(at) for at in (0, 9, 10, 19, 20)] == [False, False, True, True, False]
    assert made.next_change(13) == 7


tenths = st.integers(0, 5000).map(lambda count: count / 10)


@given(
    tenths.filter(bool),
    st.lists(st.builds(failures.Death, st.integers(0, 3), tenths, tenths), max_size=3),
    tenths,
)
def test_nothing_changes_before_the_next_change(flap: float, dying: list[failures.Death], at: float) -> None:
    made = failures.Failures(flap=flap, dying=tuple(dying))
    until = made.next_change(at)
    assert until is not None
    assert until > 0

    def stands(time: float) -> tuple[bool, ...]:
        return (made.present(time), *(made.healthy(gpu, time) for gpu in range(4)))

    assert stands(at + until * 0.999) == stands(at)


def test_a_failure_that_is_not_known_is_an_error() -> None:
    with pytest.raises(errors.InputError, match="annotation: Object contains unknown field `explode`"):
        failures.parse({"explode": True}, field="annotation")
