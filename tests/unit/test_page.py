"""The state page: its layout is a promise, and its writer keeps what is there."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from simgpu import errors
from simgpu.catalog import models
from simgpu.page import apps, layout, mapping, rows, writer
from simgpu.sim.parts import PartState
from simgpu.topology import devices

CATALOG = models.load()
GOLDEN = Path(__file__).parent.parent / "golden" / "page-1.txt"


def cards(model: str = "h200", count: int = 1, mig: tuple[str, ...] = ()) -> list[devices.Device]:
    return devices.build(devices.BoxConfig((devices.GpuEntry(model, count, mig=mig),)), CATALOG, node="here")


def zeros(count: int) -> rows.Read:
    def read(_: str) -> npt.NDArray[np.float64]:
        return np.zeros(count)

    return read


def test_fields_of_this_major_version_stay_where_they_are() -> None:
    assert layout.DTYPE.fields is not None
    now = [f"{offset} {name} {kind.str}{kind.shape or ''}" for name, (kind, offset, *_) in layout.DTYPE.fields.items()]
    promised = GOLDEN.read_text().splitlines()

    assert now[: len(promised)] == promised, "only add fields at the end, or raise MAJOR"
    assert len(now) == len(promised), "add the new fields to the golden file, and raise MINOR"


def test_a_page_says_what_the_card_is(tmp_path: Path) -> None:
    found = cards("h200", 2)
    writer.Pages(tmp_path, found, stale=10).write(zeros(2), clock=5.0, monotonic_ns=7)
    page = writer.read(tmp_path / found[1].uuid / "page")

    assert page is not None
    assert page["product"][0] == b"NVIDIA H200"
    assert page["index"][0] == 1
    assert page["memory_total"][0] == 143771 * 2**20
    assert page["bus_width"][0] == 6016
    assert page["links"][0] == 18
    assert page["written_ns"][0] == 7


def test_a_card_that_stands_alone_has_no_links(tmp_path: Path) -> None:
    found = cards("h200", 1)
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=5.0, monotonic_ns=7)
    page = writer.read(tmp_path / found[0].uuid / "page")

    assert page is not None
    assert page["links"][0] == 0


def test_values_beyond_a_fields_range_are_held_at_its_end(tmp_path: Path) -> None:
    found = cards()
    pages = writer.Pages(tmp_path, found, stale=10)
    pages.write(lambda _: np.full(1, 1e30), clock=0.0, monotonic_ns=0)
    pages.write(lambda _: np.full(1, np.nan), clock=0.0, monotonic_ns=0)
    page = writer.read(tmp_path / found[0].uuid / "page")

    assert page is not None
    assert page["power_mw"][0] == 0


def test_whoever_has_a_page_open_sees_the_next_writer(tmp_path: Path) -> None:
    found = cards()
    path = tmp_path / found[0].uuid / "page"
    first = writer.Pages(tmp_path, found, stale=10)
    first.write(zeros(1), clock=0.0, monotonic_ns=1)
    first.close()
    with path.open("rb") as file:
        opened = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=0.0, monotonic_ns=2)
    page = np.frombuffer(opened, layout.DTYPE, count=1)

    assert page["written_ns"][0] == 2
    assert page["sequence"][0] == 4


def test_a_page_that_a_killed_writer_tore_is_mended_where_it_is(tmp_path: Path) -> None:
    found = cards()
    path = tmp_path / found[0].uuid / "page"
    first = writer.Pages(tmp_path, found, stale=10)
    first.write(zeros(1), clock=0.0, monotonic_ns=1)
    first.close()
    content = bytearray(path.read_bytes())
    content[layout.DTYPE.fields["sequence"][1]] |= 1  # type: ignore[index]
    path.write_bytes(content)
    inode = path.stat().st_ino
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=0.0, monotonic_ns=2)

    assert writer.read(path) is not None
    assert path.stat().st_ino == inode


def test_a_page_that_grows_has_all_of_its_room_on_the_disk(tmp_path: Path) -> None:
    """What has none is given it at a write: a disk that is full by then ends the process with a signal."""
    mapping.open_page(tmp_path)
    path = tmp_path / mapping.FILE
    content = path.read_bytes()
    path.write_bytes(content[: mmap.PAGESIZE])  # that of an older version
    mapping.open_page(tmp_path)
    assert path.stat().st_size == mapping.ROOM
    assert path.stat().st_blocks * 512 >= mapping.ROOM


def test_a_page_with_the_highest_of_all_sequences_is_taken_over(tmp_path: Path) -> None:
    found = cards()
    path = tmp_path / found[0].uuid / "page"
    first = writer.Pages(tmp_path, found, stale=10)
    first.write(zeros(1), clock=0.0, monotonic_ns=1)
    first.close()
    page = np.fromfile(path, layout.DTYPE, count=1)
    page["sequence"] = 2**64 - 2
    path.write_bytes(page.tobytes() + bytes(path.stat().st_size - len(page.tobytes())))
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=0.0, monotonic_ns=2)
    now = writer.read(path)

    assert now is not None
    assert now["written_ns"][0] == 2


@pytest.mark.parametrize(("events", "logged"), [(0, 2**46), (2**64 - 1, 2**64 - 1)])
def test_an_error_reaches_the_kernel_log_whatever_a_damaged_page_says_it_has(
    tmp_path: Path, events: int, logged: int
) -> None:
    found = cards()
    path = tmp_path / found[0].uuid / "page"
    first = writer.Pages(tmp_path, found, stale=10)
    first.write(zeros(1), clock=0.0, monotonic_ns=1)
    first.close()
    page = np.fromfile(path, layout.DTYPE, count=1)
    page["event_count"], page["logged_count"] = events, logged
    path.write_bytes(page.tobytes() + bytes(path.stat().st_size - len(page.tobytes())))
    second = writer.Pages(tmp_path, found, stale=10)
    second.write(lambda name: np.full(1, float(name == "hangs")), clock=1.0, monotonic_ns=2)

    assert [len(card.events) for card in second.unlogged()] == [1]
    second.set_logged()
    assert not second.unlogged()


def test_cards_of_an_earlier_writer_are_gone(tmp_path: Path) -> None:
    first = writer.Pages(tmp_path, cards("h200", 4), stale=10)
    first.close()
    writer.Pages(tmp_path, cards("h200", 2), stale=10)

    assert len(list(tmp_path.glob("GPU-*/page"))) == 2


def test_two_writers_of_one_folder_are_refused(tmp_path: Path) -> None:
    first = writer.Pages(tmp_path, cards(), stale=10)
    with pytest.raises(errors.InputError, match="locked by another process"):
        writer.Pages(tmp_path, cards(), stale=10)
    first.close()


def test_a_torn_page_is_written_anew(tmp_path: Path) -> None:
    found = cards()
    path = tmp_path / found[0].uuid / "page"
    path.parent.mkdir()
    path.write_bytes(b"\xff" * 100)
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=0.0, monotonic_ns=2)

    assert writer.read(path) is not None


def instance(usage: float, memory_mib: float) -> PartState:
    return PartState(0.5, usage, memory_mib, 2048, 0)


def test_instances_of_a_divided_card_are_on_its_page(tmp_path: Path) -> None:
    found = cards("h200", 1, mig=("1g.18gb", "3g.71gb"))
    pages = writer.Pages(tmp_path, found, stale=10)
    states = {0: [instance(0, 0), instance(40, 1024)]}
    pages.write(zeros(1), clock=0.0, monotonic_ns=2, instances=states)
    page = writer.read(tmp_path / found[0].uuid / "page")

    assert page is not None
    assert page["mig_mode"][0] == 1
    assert page["instance_count"][0] == 2
    second = page["instances"][0][0]  # by number: that of the larger one is lower
    assert (second["usage"], second["memory_used"], second["open"]) == (40, 2**30, 1)
    assert page["profiles"][0][second["profile"]]["name"] == b"3g.71gb"


def test_processes_on_a_page_have_what_is_in_use_in_proportion_to_what_they_ask_for() -> None:
    row = np.zeros(1, layout.DTYPE)[0]
    row["usage"], row["memory_used"] = 90, 1001
    asked = ((9, 0.2, 100), (7, 0.1, 50), (9, 0.0, 50), (3, 1.0, 0))
    apps.fill(row, [apps.App(*item) for item in asked])

    assert row["app_count"] == 2
    assert row["apps"][["pid", "usage", "memory"]][:2].tolist() == [(7, 30, 250), (9, 60, 751)]


def test_of_more_processes_than_a_page_has_room_for_the_largest_are_listed() -> None:
    row = np.zeros(1, layout.DTYPE)[0]
    row["memory_used"] = 2**30
    apps.fill(row, [apps.App(pid, 0, pid) for pid in range(1, 101)])

    assert row["apps"]["pid"].tolist() == list(range(69, 101))


def test_a_process_on_an_instance_has_what_is_in_use_there(tmp_path: Path) -> None:
    found = cards("h200", 1, mig=("1g.18gb", "3g.71gb"))
    pages = writer.Pages(tmp_path, found, stale=10, processes=layout.LISTED_PROCESSES)
    states = {0: [instance(0, 0), instance(40, 1024)]}
    processes = {0: [apps.App(5, 0.4, 1024, instance=1)]}
    pages.write(zeros(1), clock=0.0, monotonic_ns=2, instances=states, processes=processes)
    page = writer.read(tmp_path / found[0].uuid / "page")

    assert page is not None
    listed = page["apps"][0][0]
    assert (page["app_count"][0], listed["pid"], listed["usage"], listed["memory"]) == (1, 5, 40, 2**30)
    assert page["instances"][0][listed["instance"]]["memory_used"] == 2**30


def test_the_page_of_an_instance_has_no_records_of_those_who_share_the_card() -> None:
    found = cards("h200", 1, mig=("1g.18gb", "3g.71gb"))
    card = rows.CardRows(found, among=found)
    card.values["accounting"] = 1
    card.values[0]["accounts"][0]["pid"] = 4321
    row = card.alone(0, 1)

    assert (row["accounting"], row["accounts"]["pid"].any()) == (1, False)
    assert card.values[0]["accounts"][0]["pid"] == 4321


def test_a_page_says_from_which_start_of_the_machine_it_is(tmp_path: Path) -> None:
    found = cards()
    writer.Pages(tmp_path, found, stale=10).write(zeros(1), clock=0.0, monotonic_ns=2)
    page = writer.read(tmp_path / found[0].uuid / "page")

    assert page is not None
    assert page["boot"][0].decode() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_removed_pages_leave_an_empty_folder(tmp_path: Path) -> None:
    pages = writer.Pages(tmp_path, cards("h200", 3), stale=10)
    pages.remove()

    assert not list(tmp_path.iterdir())


def test_other_vendors_cards_have_no_page(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="NVIDIA's cards only"):
        writer.Pages(tmp_path, cards("mi300x"), stale=10)


def test_the_header_says_the_same_as_the_dtype() -> None:
    header = layout.header()

    assert f"sizeof(struct page) == {layout.DTYPE.itemsize}" in header
    assert "char uuid[80];" in header
