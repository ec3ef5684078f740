"""What programs that use NVML see of simulated cards, through the unmodified nvidia-ml-py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from simgpu.page import layout, writer
from tests.fixtures import nvml, pages, smi

CODES: Final = Path(__file__).parent.parent / "golden" / "nvml" / "codes.json"
CALL: Final = "N._nvmlGetFunctionPointer('{name}')({arguments})"


def call(name: str, *arguments: str) -> str:
    """A question that ends in the bare code."""
    return CALL.format(name=name, arguments=", ".join(arguments))


def ask_one(tmp_path: Path, question: str, rows: Any = None) -> Any:
    return nvml.ask(pages.write(tmp_path, pages.recorded() if rows is None else rows), [question])[0]


# Who there is.


def test_cards_are_found_by_index_uuid_bus_address_and_serial(tmp_path: Path) -> None:
    rows = pages.cards("h100", 3)
    uuid, serial = rows[2]["uuid"].decode(), rows[2]["serial"].decode()
    address = f"{rows[2]['pci_domain']:04x}:{rows[2]['pci_bus']:02x}:{rows[2]['pci_device']:02x}.0"
    index = "N.nvmlDeviceGetIndex({})"
    found = nvml.ask(
        pages.write(tmp_path, rows),
        [
            "N.nvmlDeviceGetCount()",
            index.format("N.nvmlDeviceGetHandleByIndex(2)"),
            index.format(f"N.nvmlDeviceGetHandleByUUID({uuid!r})"),
            index.format(f"N.nvmlDeviceGetHandleByPciBusId({address!r})"),
            index.format(f"N.nvmlDeviceGetHandleByPciBusId({'0000' + address.upper()!r})"),
            index.format(f"N.nvmlDeviceGetHandleBySerial({serial!r})"),
            index.format(f"N.nvmlDeviceGetHandleByUUIDV({uuid!r}, N.NVML_UUID_TYPE_ASCII)"),
        ],
    )

    assert found == [3, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("N.nvmlDeviceGetHandleByIndex(1)", "ERR 2 Invalid Argument"),
        ("N.nvmlDeviceGetHandleByUUID('GPU-0')", "ERR 6 Not Found"),
        ("N.nvmlDeviceGetHandleByPciBusId('0000:99:00.0')", "ERR 6 Not Found"),
        ("N.nvmlDeviceGetHandleByPciBusId('here')", "ERR 2 Invalid Argument"),
        ("N.nvmlDeviceGetHandleBySerial('0')", "ERR 6 Not Found"),
    ],
)
def test_cards_that_are_not_there_are_not_found(question: str, answer: str, tmp_path: Path) -> None:
    assert ask_one(tmp_path, question) == answer


@pytest.mark.parametrize(
    "handle", ["0", "1", "0xdeadbeef", "2**64 - 1", "ctypes.cast(card, ctypes.c_void_p).value + 1"]
)
def test_a_wrong_handle_is_refused_and_never_followed(handle: str, tmp_path: Path) -> None:
    wrong, room = f"ctypes.c_void_p({handle})", "ctypes.create_string_buffer(64)"
    size = "ctypes.c_uint(64)"
    questions = [
        call("nvmlDeviceGetName", wrong, room, size), call("nvmlDeviceGetMemoryInfo", wrong, room),
        call("nvmlDeviceGetMigMode", wrong, room, room), call("nvmlGpuInstanceGetInfo", wrong, room),
        call("nvmlComputeInstanceGetInfo_v2", wrong, room), call("nvmlEventSetFree", wrong),
        call("nvmlEventSetWait_v2", wrong, room, "ctypes.c_uint(0)"), call("nvmlGpmSampleFree", wrong),
        call("nvmlDeviceSetPowerManagementLimit", wrong, "ctypes.c_uint(300000)"),
    ]  # fmt: skip

    assert nvml.ask(pages.write(tmp_path, pages.recorded()), questions) == [2] * len(questions)


# How calls go wrong.


def test_missing_arguments_and_version_words_give_the_codes_measured_on_a_real_card(tmp_path: Path) -> None:
    """For each function that takes a card and a place for the answer: a place of zeroes, no card, no place.

    Where the real library crashed, this one says that the argument is wrong.
    """
    measured = {
        name: [2 if code is None else code for code in codes] for name, codes in json.loads(CODES.read_text()).items()
    }
    room = "ctypes.create_string_buffer(70000)"
    patterns = [("card", room), ("None", room), ("card", "None")]
    told = nvml.ask(
        pages.write(tmp_path, pages.recorded()), [call(name, *pattern) for name in measured for pattern in patterns]
    )

    assert len(measured) > 100
    assert {name: told[3 * place : 3 * place + 3] for place, name in enumerate(measured)} == measured


def test_nothing_is_answered_before_the_library_is_started_or_after_it_is_stopped(tmp_path: Path) -> None:
    promised = (nvml.ROOT / "native" / "nvml" / "symbols.txt").read_text().split()
    program = f"""
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
room = ctypes.create_string_buffer(70000)
early = [name for name in {promised!r} if "Init" not in name and name not in
         ("nvmlErrorString", "nvmlSystemGetNVMLVersion", "nvmlInternalGetExportTable")]
def codes():
    return {{getattr(library, name)(room, room, room, room, room, room) for name in early}}
before = codes()
assert library.nvmlInit() == library.nvmlInit_v2() == library.nvmlInitWithFlags(0) == 0
stops = [library.nvmlShutdown() for _ in range(4)]
print(json.dumps([sorted(before), stops, sorted(codes()), len(early)]))
"""
    before, stops, after, count = json.loads(nvml.run(pages.write(tmp_path, pages.recorded()), program))

    assert (before, stops, after) == ([1], [0, 0, 0, 1], [1])
    assert count == 398


def test_errors_have_their_names(tmp_path: Path) -> None:
    names = nvml.ask(
        pages.write(tmp_path, pages.recorded()), [f"N.nvmlErrorString({code})" for code in (0, 3, 15, 18, 27, 31)]
    )

    assert names == [
        "Success", "Not Supported", "GPU is lost", "Driver/library version mismatch", "System is not in ready state",
        "Unknown Error",
    ]  # fmt: skip


def test_text_that_does_not_fit_and_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    name = "ctypes.create_string_buffer(96)"
    clocks = "N._nvmlGetFunctionPointer('nvmlDeviceGetSupportedMemoryClocks')(card, ctypes.byref(count), room)"
    bring = "[[count := ctypes.c_uint({}), room := (ctypes.c_uint * 4)(), {}][2], count.value, list(room)]"
    told = nvml.ask(
        pages.write(tmp_path, pages.recorded()),
        [
            call("nvmlDeviceGetName", "card", name, "ctypes.c_uint(11)"),
            call("nvmlDeviceGetName", "card", name, "ctypes.c_uint(12)"),
            *(bring.format(count, clocks) for count in (0, 1, 2, 4)),
        ],
    )

    assert told[:2] == [7, 0]
    assert told[2:4] == [[7, 2, [0] * 4]] * 2
    assert told[4:] == [[0, 2, [3201, 2201, 0, 0]]] * 2


@pytest.mark.parametrize(("word", "code"), [("0x02000028", 0), ("0x01000028", 13), ("0x02000020", 13), ("0", 13)])
def test_the_second_form_of_memory_takes_one_version_only(word: str, code: int, tmp_path: Path) -> None:
    """The real library does not answer 25 here, but that there is no such function."""
    room = f"(ctypes.c_uint * 10)({word})"

    assert ask_one(tmp_path, call("nvmlDeviceGetMemoryInfo_v2", "card", room)) == code


# What there is to see.


def test_the_first_form_of_memory_counts_what_the_driver_keeps_as_used(tmp_path: Path) -> None:
    first, second = nvml.ask(
        pages.write(tmp_path, pages.recorded(memory_used=5 << 30)),
        ["N.nvmlDeviceGetMemoryInfo(card)", "N.nvmlDeviceGetMemoryInfo(card, version=N.nvmlMemory_v2)"],
    )

    assert second["used"] == 5 << 30
    assert second["used"] + second["free"] + second["reserved"] == second["total"] == first["total"]
    assert (first["used"], first["free"]) == (second["used"] + second["reserved"], second["free"])


def test_a_card_without_error_correction_says_so(tmp_path: Path) -> None:
    rows = pages.recorded(inforom_ecc="", row_remap_banks=0)
    questions = [
        "N.nvmlDeviceGetEccMode(card)",
        "N.nvmlDeviceGetTotalEccErrors(card, 0, 0)",
        "N.nvmlDeviceGetRemappedRows(card)",
    ]

    assert nvml.ask(pages.write(tmp_path, rows), questions) == ["ERR 3 Not Supported"] * 3


def test_errors_of_the_memory_are_counted_everywhere_alike(tmp_path: Path) -> None:
    field = "[f.value.ullVal for f in N.nvmlDeviceGetFieldValues(card, [3, 4, 5, 6])]"
    told = nvml.ask(
        pages.write(tmp_path, pages.recorded(ecc_corrected=7, ecc_uncorrected=2)),
        [
            "[N.nvmlDeviceGetTotalEccErrors(card, kind, 0) for kind in (0, 1)]",
            "[N.nvmlDeviceGetMemoryErrorCounter(card, kind, 1, 2) for kind in (0, 1)]",
            "[N.nvmlDeviceGetDetailedEccErrors(card, kind, 0).deviceMemory for kind in (0, 1)]",
            field,
        ],
    )

    assert told == [[7, 2], [7, 2], [7, 2], [7, 2, 7, 2]]


def test_samples_come_oldest_first_and_only_those_not_yet_seen(tmp_path: Path) -> None:
    rows = pages.recorded(sample_count=layout.SAMPLES + 2)
    for number in range(2, layout.SAMPLES + 2):
        rows[0]["samples"][number % layout.SAMPLES]["time_us"] = 1000 + number
        rows[0]["samples"][number % layout.SAMPLES]["power_mw"] = number
    reading = "[[sample.timeStamp, sample.sampleValue.uiVal] for sample in N.nvmlDeviceGetSamples(card, 0, {})[1]]"
    everything, later, nothing = nvml.ask(
        pages.write(tmp_path, rows), [reading.format(0), reading.format(1127), reading.format(5000)]
    )

    assert everything == [[1000 + number, number] for number in range(2, layout.SAMPLES + 2)]
    assert later == [[1128, 128], [1129, 129]]
    assert nothing == "ERR 6 Not Found"


def test_links_of_a_machine_with_switches_are_up_and_end_in_switches(tmp_path: Path) -> None:
    told = nvml.ask(
        pages.write(tmp_path, pages.cards("h100", 8, link_bytes=18 * 2 * 4096 * 1024)),
        [
            "[N.nvmlDeviceGetNvLinkState(card, link) for link in range(18)]",
            "N.nvmlDeviceGetNvLinkState(card, 18)",
            "N.nvmlDeviceGetNvLinkVersion(card, 0)",
            "N.nvmlDeviceGetNvLinkRemoteDeviceType(card, 0)",
            "len({N.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId for link in range(18)})",
            "[f.value.uiVal for f in N.nvmlDeviceGetFieldValues(card, [91, 90, 147, (165, 3)])]",
            "[f.value.ullVal for f in N.nvmlDeviceGetFieldValues(card, [(138, 5), (139, 5), (138, 0xffffffff)])]",
            "[f.nvmlReturn for f in N.nvmlDeviceGetFieldValues(card, [(138, 17), (138, 18)])]",
            "N.nvmlDeviceGetP2PStatus(card, N.nvmlDeviceGetHandleByIndex(7), 2)",
            "[info := N.c_nvmlGpuFabricInfo_v3_t(), N.nvmlDeviceGetGpuFabricInfoV(card, ctypes.byref(info))][1]",
            "[info.state, info.status]",
        ],
    )

    assert told[:5] == [[1] * 18, "ERR 2 Invalid Argument", 6, 2, 4]
    assert told[5:] == [[18, 26562, 18, 1], [4096, 4096, 18 * 4096], [0, 3], 0, 0, [3, 0]]


def test_a_card_alone_has_no_links(tmp_path: Path) -> None:
    told = nvml.ask(
        pages.write(tmp_path, pages.recorded()),
        [
            "N.nvmlDeviceGetNvLinkVersion(card, 0)",
            "[info := N.c_nvmlGpuFabricInfo_v2_t(), N.nvmlDeviceGetGpuFabricInfoV(card, ctypes.byref(info))][1]",
            "info.state",
        ],
    )

    assert told == ["ERR 3 Not Supported", 0, 0]


def test_cards_near_one_another_share_processors(tmp_path: Path) -> None:
    rows = pages.cards("h100", 4, virtualization=0)
    for row in rows:
        row["numa"] = row["index"] // 2
        row["first_cpu"], row["cpus"] = row["numa"] * 48, 48
    told = nvml.ask(
        pages.write(tmp_path, rows),
        [
            "[N.nvmlDeviceGetTopologyCommonAncestor(card, N.nvmlDeviceGetHandleByIndex(other)) for other in range(4)]",
            "[list(map(N.nvmlDeviceGetIndex, N.nvmlDeviceGetTopologyNearestGpus(card, level))) for level in (40, 50)]",
            "[N.nvmlDeviceGetIndex(near) for near in N.nvmlSystemGetTopologyGpuSet(50)]",
            "[third := N.nvmlDeviceGetHandleByIndex(2), list(N.nvmlDeviceGetCpuAffinity(third, 2))][1]",
            "list(N.nvmlDeviceGetCpuAffinityWithinScope(third, 1, N.NVML_AFFINITY_SCOPE_SOCKET))",
            "list(N.nvmlDeviceGetMemoryAffinity(third, 1, N.NVML_AFFINITY_SCOPE_NODE))",
        ],
    )

    assert told[:3] == [[0, 40, 50, 50], [[1], [2, 3]], [2, 3]]
    assert told[3:] == [[0xFFFF000000000000, 0xFFFFFFFF], [0xFFFF000000000000], [2]]


def test_gpm_measures_between_two_samples(tmp_path: Path) -> None:
    program = """
import json, os
from pathlib import Path
import numpy as np
import pynvml as N
from simgpu.page import layout
N.nvmlInit()
card = N.nvmlDeviceGetHandleByIndex(0)
page = np.memmap(next(Path(os.environ["SIMGPU_PAGES"]).glob("*/page")), layout.DTYPE, "r+")
first, second = N.nvmlGpmSampleAlloc(), N.nvmlGpmSampleAlloc()
N.nvmlGpmSampleGet(card, first)
page["written_ns"] += 2_000_000_000
page["pcie_rx_bytes"] += 40 << 20
page["busy_ppm"], page["tensor_ppm"] = 500_000, 250_000
N.nvmlGpmSampleGet(card, second)
request = N.c_nvmlGpmMetricsGet_t(version=1, numMetrics=4, sample1=first, sample2=second)
for place, metric in enumerate((1, 5, 21, 3)):
    request.metrics[place].metricId = metric
N.nvmlGpmMetricsGet(request)
supported = N.nvmlGpmQueryDeviceSupport(card).isSupportedDevice
N.nvmlGpmSampleFree(first), N.nvmlGpmSampleFree(second)
again = []
try:
    N.nvmlGpmSampleFree(first)
except N.NVMLError as error:
    again = error.value
print(json.dumps([supported, [(m.nvmlReturn, m.value) for m in request.metrics[:4]], again]))
"""
    root = pages.write(tmp_path, pages.recorded())

    assert json.loads(nvml.run(root, program)) == [1, [[0, 25.0], [0, 12.5], [0, 20.0], [3, 0.0]], 2]


# What cards differ in.


def test_fans_turn_alike_and_are_counted(tmp_path: Path) -> None:
    told = nvml.ask(
        pages.write(tmp_path, pages.cards("rtx-4090", fan_speed=45)),
        [
            "N.nvmlDeviceGetNumFans(card)",
            "N.nvmlDeviceGetFanSpeed(card)",
            "[N.nvmlDeviceGetFanSpeed_v2(card, fan) for fan in range(2)]",
            "N.nvmlDeviceGetFanSpeed_v2(card, 2)",
        ],
    )
    assert told == [2, 45, [45, 45], "ERR 2 Invalid Argument"]


@pytest.mark.parametrize(
    ("model", "brand"), [("h200", "NVIDIA"), ("t4", "NVIDIA"), ("rtx-a6000", "NVIDIA_RTX"), ("rtx-4090", "GEFORCE")]
)
def test_a_card_has_the_brand_that_the_tool_prints(model: str, brand: str, tmp_path: Path) -> None:
    question = f"N.nvmlDeviceGetBrand(card) == N.NVML_BRAND_{brand}"
    assert ask_one(tmp_path, question, pages.cards(model)) is True


def test_ecc_that_is_off_is_known_and_counts_nothing(tmp_path: Path) -> None:
    told = nvml.ask(
        pages.write(tmp_path, pages.cards("rtx-a6000")),
        [
            "N.nvmlDeviceGetEccMode(card)",
            "N.nvmlDeviceGetDefaultEccMode(card)",
            "N.nvmlDeviceGetTotalEccErrors(card, 0, 0)",
        ],
    )
    assert told == [[0, 0], [0], "ERR 3 Not Supported"]


def test_every_clock_of_the_memory_has_a_state(tmp_path: Path) -> None:
    told = nvml.ask(
        pages.write(tmp_path, pages.cards("rtx-4090")),
        [
            "N.nvmlDeviceGetSupportedMemoryClocks(card)",
            "N.nvmlDeviceGetSupportedPerformanceStates(card)",
            "N.nvmlDeviceGetApplicationsClock(card, N.NVML_CLOCK_SM)",
        ],
    )
    assert told == [[10501, 10251, 5001, 810, 405], [8, 5, 3, 2, 0], "ERR 3 Not Supported"]


def test_without_a_window_on_the_bus_nothing_is_mapped(tmp_path: Path) -> None:
    assert ask_one(tmp_path, "N.nvmlDeviceGetBAR1MemoryInfo(card)", pages.cards("gh200")) == "ERR 3 Not Supported"


# Cards in parts.

MIG: Final = ("3g.71gb", "1g.18gb", "1g.18gb+me")


def test_a_divided_card_shows_its_instances(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=MIG)
    rows[0]["instances"][0]["memory_used"] = 3 << 30
    told = nvml.ask(
        pages.write(tmp_path, rows),
        [
            "N.nvmlDeviceGetMigMode(card)",
            "N.nvmlDeviceGetMaxMigDeviceCount(card)",
            "[N.nvmlDeviceGetName(N.nvmlDeviceGetMigDeviceHandleByIndex(card, i)) for i in range(3)]",
            "N.nvmlDeviceGetMigDeviceHandleByIndex(card, 3)",
            "N.nvmlDeviceGetUtilizationRates(card)",
        ],
    )
    assert told == [
        [1, 1], 7, ["NVIDIA H200 MIG 3g.71gb", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 1g.18gb"],
        "ERR 6 Not Found", "ERR 3 Not Supported",
    ]  # fmt: skip
    part = "N.nvmlDeviceGetHandleByUUID({!r})".format(rows[0]["instances"][0]["uuid"].decode())
    about = nvml.ask(
        tmp_path,
        [
            f"N.nvmlDeviceIsMigDeviceHandle({part})",
            f"N.nvmlDeviceGetUUID({part})",
            f"N.nvmlDeviceGetUUID(N.nvmlDeviceGetDeviceHandleFromMigDeviceHandle({part}))",
            f"N.nvmlDeviceGetGpuInstanceId({part}), N.nvmlDeviceGetComputeInstanceId({part})",
            f"N.nvmlDeviceGetAttributes_v2({part})",
            f"N.nvmlDeviceGetMemoryInfo({part}).used",
            f"N.nvmlDeviceGetPowerUsage({part})",
        ],
    )

    first = rows[0]["instances"][0]
    assert about[:4] == [1, first["uuid"].decode(), rows[0]["uuid"].decode(), [int(first["gpu_instance"]), 0]]
    assert (about[4]["multiprocessorCount"], about[4]["gpuInstanceSliceCount"]) == (60, 3)
    assert about[5:] == [3 << 30, "ERR 3 Not Supported"]


def test_a_container_with_two_instances_of_a_card_sees_one_card_with_two(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=MIG, open=1, processes=layout.ALL_PROCESSES)
    rows[0]["instances"]["open"], rows[0]["instances"]["memory_used"] = 1, [1 << 30, 2 << 30, 3 << 30, *[0] * 5]
    part, running = "N.nvmlDeviceGetMigDeviceHandleByIndex(card, {})", "N.nvmlDeviceGetComputeRunningProcesses"
    told = nvml.ask(
        pages.write_parts(tmp_path, rows, 2, 0),
        [
            "N.nvmlDeviceGetCount()",
            "[N.nvmlDeviceGetUUID(N.nvmlDeviceGetMigDeviceHandleByIndex(card, i)) for i in range(2)]",
            "N.nvmlDeviceGetMigDeviceHandleByIndex(card, 2)",
            "[N.nvmlDeviceGetGpuInstanceId(N.nvmlDeviceGetMigDeviceHandleByIndex(card, i)) for i in range(2)]",
            *(f"sum(p.usedGpuMemory for p in {running}({part.format(i)})) >> 30" for i in range(2)),
        ],
    )

    theirs = [rows[0]["instances"][place] for place in (0, 2)]
    assert told[0] == 1
    assert told[1] == [item["uuid"].decode() for item in theirs]
    assert told[2] == "ERR 6 Not Found"
    assert told[3] == [int(item["gpu_instance"]) for item in theirs]
    assert told[4:] == [1, 3]


def test_pages_of_a_card_that_differ_while_it_changes_are_joined_within_bounds(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=MIG)
    pages.write_parts(tmp_path, rows, 2)
    instances = rows[0]["instances"]
    instances[2] = 0
    rows["instance_count"], rows["bare_count"] = 1, 1
    pages.write(tmp_path, rows)
    numbers = [int(item["gpu_instance"]) for item in instances[:2]]
    assert _numbers(tmp_path) == sorted([*numbers, 8])
    instances[1:] = instances[1]
    instances["gpu_instance"][1:] = range(9, 16)
    rows["bare_count"] = 7
    pages.write(tmp_path, rows)
    assert _numbers(tmp_path) == sorted([numbers[0], *range(9, 16)])  # and no place for another


def _numbers(root: Path) -> list[int]:
    """The GPU instances that nvidia-smi lists."""
    return sorted(map(int, re.findall(r"MIG \S+ +\d+ +(\d+) ", smi.say(root, "mig", "-lgi"))))


def test_a_divided_card_says_what_still_fits(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=MIG)
    told = nvml.ask(
        pages.write(tmp_path, rows),
        [
            "{i: N.nvmlDeviceGetGpuInstanceRemainingCapacity(card, i) for i in (19, 20, 15, 14, 9, 5, 0)}",
            "N.nvmlDeviceGetGpuInstanceRemainingCapacity(card, 1)",
        ],
    )

    # Half of the memory is one instance's, and two of the other slices are taken.
    assert told == [{"19": 2, "20": 0, "15": 1, "14": 1, "9": 0, "5": 0, "0": 0}, "ERR 2 Invalid Argument"]


def test_instances_are_described_as_the_driver_describes_them(tmp_path: Path) -> None:
    rows = pages.cards("h200", 1, mig=MIG)
    program = """
import ctypes, json
import pynvml as N
N.nvmlInit()
card = N.nvmlDeviceGetHandleByIndex(0)
found, count = (N.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint(8)
N.nvmlDeviceGetGpuInstances(card, 9, found, ctypes.byref(count))
info = N.nvmlGpuInstanceGetInfo(found[0])
inner = N.nvmlGpuInstanceGetComputeInstanceById(found[0], 0)
compute = N.nvmlComputeInstanceGetInfo(inner)
profile = N.nvmlGpuInstanceGetComputeInstanceProfileInfo(found[0], 0, 0)
places, many = (N.c_nvmlGpuInstancePlacement_t * 8)(), ctypes.c_uint()
N.nvmlDeviceGetGpuInstancePossiblePlacements(card, 15, places, ctypes.byref(many))
print(json.dumps([count.value, info.profileId, info.placement.start, info.placement.size, compute.placement.size,
                  profile.name.decode() if isinstance(profile.name, bytes) else profile.name, profile.instanceCount,
                  [(p.start, p.size) for p in places[:many.value]]]))
"""
    told = json.loads(nvml.run(pages.write(tmp_path, rows), program))

    first = rows[0]["instances"][0]
    assert told[:5] == [1, 9, int(first["start"]), int(first["slices"]), 4]
    assert told[5:] == ["MIG 1c.3g.71gb", 3, [[0, 2], [2, 2], [4, 2], [6, 2]]]


# Pages that cannot be trusted.


def test_without_cards_there_is_no_driver(tmp_path: Path) -> None:
    assert nvml.ask(tmp_path, []) == ["ERR 9 Driver Not Loaded"]
    assert nvml.ask(tmp_path / "nowhere", []) == ["ERR 9 Driver Not Loaded"]


def test_a_page_of_another_major_version_is_a_driver_of_another_version(tmp_path: Path) -> None:
    told = nvml.ask(pages.write(tmp_path, pages.recorded(major=layout.MAJOR + 1)), [])

    assert [answer.split()[1] for answer in told] == ["18"]


@pytest.mark.parametrize(
    ("rows", "written_ns"),
    [
        (pages.outdated(pages.recorded()), 0),
        (pages.recorded(), 2**62),
        (pages.recorded(boot="00000000-1111-2222-3333-444444444444"), None),
        (pages.recorded(sequence=7), None),
        (pages.recorded(magic=0), None),
    ],
    ids=["stale", "of a time to come", "of an earlier start of the machine", "torn", "not a page"],
)
def test_a_card_whose_page_cannot_be_believed_is_lost(rows: Any, written_ns: int | None, tmp_path: Path) -> None:
    questions = [
        "N.nvmlDeviceGetCount()",
        "N.nvmlDeviceGetPowerUsage(card)",
        "N.nvmlDeviceGetName(card)",
        "N.nvmlSystemGetDriverVersion()",
    ]
    told = nvml.ask(pages.write(tmp_path, rows, written_ns=written_ns), questions)

    assert told == [1, "ERR 15 GPU is lost", "ERR 15 GPU is lost", "ERR 15 GPU is lost"]


def test_pages_of_newer_and_older_writers_are_read_as_far_as_both_know_them(tmp_path: Path) -> None:
    rows = pages.recorded(minor=layout.MINOR + 1, size=layout.DTYPE.itemsize + 64)
    root = pages.write(tmp_path / "newer", rows)
    page = root / pages.RECORDED["uuid"] / writer.FILE
    page.write_bytes(page.read_bytes() + b"\xff" * 64)
    assert layout.DTYPE.fields is not None
    known = layout.DTYPE.fields["samples"][1]
    older = pages.write(tmp_path / "older", pages.recorded(size=known, sample_count=5))
    page = older / pages.RECORDED["uuid"] / writer.FILE
    page.write_bytes(page.read_bytes()[:known])
    questions = ["N.nvmlDeviceGetName(card)", "N.nvmlDeviceGetSamples(card, 0, 0)"]

    assert nvml.ask(root, questions)[0] == "NVIDIA H200"
    assert nvml.ask(older, questions) == ["NVIDIA H200", "ERR 6 Not Found"]
