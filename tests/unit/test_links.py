"""Which devices are linked to which."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.identities import identity, labels
from simgpu.topology import devices, links

CATALOG = models.load()


def box(*entries: tuple[str, int]) -> list[devices.Device]:
    wanted = devices.BoxConfig(tuple(devices.GpuEntry(model, count) for model, count in entries))
    return devices.build(wanted, CATALOG, node="n")


@given(
    st.lists(
        st.tuples(st.sampled_from(["max-1550", "mi300x", "dg1", "h200"]), st.integers(1, 12)), min_size=1, max_size=4
    )
)
def test_every_link_is_there_from_both_sides_with_the_same_ports(entries: list[tuple[str, int]]) -> None:
    made = box(*entries)
    found = [port for link in links.links(made) for port in link.split()]
    ends = {(port.device, port.tile, port.port): (port.peer, port.tile, port.remote) for port in found}
    assert len(ends) == len(found)
    assert all(ends[there] == here for here, there in ends.items())
    for position, used in Counter(port.device for port in found).items():
        fabric = made[position].model.links
        assert fabric is not None
        assert used <= fabric.count
    linked = Counter(link.device for link in links.links(made) if link.ports and not link.tile)
    assert links.peers(made) == [linked[position] for position in range(len(made))]


def test_cards_of_another_board_model_or_node_are_not_linked() -> None:
    two_nodes = [*box(("mi300x", 8)), *box(("mi300x", 8))]
    assert {link.peer // 8 == link.device // 8 for link in links.links(two_nodes)} == {True}
    assert list(links.boards(box(("h200", 10), ("mi300x", 3)))) == [range(8), range(8, 10), range(10, 13)]
    assert not list(links.links(box(("dg1", 4))))


def test_every_source_of_labels_can_be_looked_up() -> None:
    row = labels.Row(box(("h200", 1))[0])
    assert all(isinstance(labels.look_up(source, row), str) for source in identity.SOURCES)
