"""Pages that say nothing sensible: whoever asks about such a card gets an answer, or an error, and lives on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from simgpu.page import layout, writer
from tests.fixtures import nvml, pages

CARDS: Final = 16
HEADER: Final = ("magic", "major", "minor", "size", "sequence", "written_ns", "stale_ns", "boot")

# Asks everything that nvidia-ml-py can ask about a card or a part of one: numbers are small, and all else is room.
ASK_EVERYTHING: Final = """
import ctypes, inspect, json, random
import pynvml as N

NUMBERS = set(
    "apiType capability clockType computeInstanceId counter counterType cpuSetSize encoderQueryType engProfile "
    "errorType fan gpuInstanceId id index infoRomObject level limit link locationType maxGpuClockMHz maxMemClockMHz "
    "memoryClockMHz minGpuClockMHz minMemClockMHz mode nodeSetSize p2pIndex perfPolicyType pid profile profileId "
    "pstate sampling_type scope sensor sensorindex sourceFilter threshold timeStamp type version".split()
)
KINDS = ("nvmlDevice", "nvmlGpm", "nvmlGpuInstance", "nvmlComputeInstance", "nvmlSystemGet")
asked = [
    (function, [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty])
    for name, function in inspect.getmembers(N, inspect.isfunction)
    if name.startswith(KINDS)
]
choice = random.Random(3)
told = dict.fromkeys(("answers", "errors", "other"), 0)


def ask(function, *arguments):
    try:
        answer = function(*arguments)
    except N.NVMLError:
        told["errors"] += 1
    except Exception:  # rubbish is no text, and room is not every structure
        told["other"] += 1
    else:
        told["answers"] += 1
        return answer


def handles(card):
    found = {"device": [card], "gpuInstance": [], "computeInstance": []}
    for index in range(10):
        part = ask(N.nvmlDeviceGetMigDeviceHandleByIndex, card, index)
        instance = part and ask(N.nvmlDeviceGetGpuInstanceById, card, ask(N.nvmlDeviceGetGpuInstanceId, part))
        number = part and ask(N.nvmlDeviceGetComputeInstanceId, part)
        inner = instance and ask(N.nvmlGpuInstanceGetComputeInstanceById, instance, number)
        for kind, handle in zip(found, (part, instance, inner)):
            found[kind] += [handle] if handle else []
    return found


def arguments(names, known, device):
    for name in names:
        if name in NUMBERS:
            yield choice.choice((0, 1, 2, 3, 9, 19, 1000))
        elif name in ("handle", "device", "device1", "device2", "handle1", "handle2"):
            yield device
        elif name in known:
            yield choice.choice(known[name] or [None])
        elif name == "fieldIds":
            yield [(number, choice.choice((0, 1, 2, 17, 2**32 - 1))) for number in range(300)]
        else:
            yield ctypes.create_string_buffer(70000)


N.nvmlInit()
cards = [N.nvmlDeviceGetHandleByIndex(index) for index in range(N.nvmlDeviceGetCount())]
for known in map(handles, cards):
    for device in known["device"] + known["gpuInstance"]:
        for function, names in asked:
            ask(function, *arguments(names, known, device))
print(json.dumps([len(cards), told]))
"""


def test_a_page_full_of_rubbish_harms_nobody(tmp_path: Path) -> None:
    """Everything but what makes it a page is random, texts without an end and counts beyond their tables included."""
    random = np.random.default_rng(5)
    for index in range(CARDS):
        least, most = ((0, 256), (1, 128))[index % 2]  # any bytes, or such as make very long texts
        noise = np.frombuffer(random.integers(least, most, layout.DTYPE.itemsize, np.uint8), layout.DTYPE).copy()
        for field in HEADER:
            noise[field] = pages.recorded()[field]
        noise["processes"], noise["written_ns"] = (0, 1, 3)[index % 3], time.monotonic_ns()
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / writer.FILE).write_bytes(noise.tobytes())

    cards, told = json.loads(nvml.run(tmp_path, ASK_EVERYTHING))
    sys.stdout.write(f"{told}\n")

    assert cards == CARDS
    assert told["answers"] > 100 * CARDS
