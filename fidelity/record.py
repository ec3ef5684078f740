"""Records a real card under known loads: run it once on a machine with the card and PyTorch.

Writes `series.csv`, what NVML said about twenty-five times a second, and `phases.json`, what was run: for each phase
its load, times, the share of time in which kernels ran and the work done. Needs nothing of ours but this file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import json
import multiprocessing
import multiprocessing.sharedctypes
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COLUMNS = (
    "t", "phase", "gpu_util", "mem_util", "power_mw", "power_inst_mw", "temp_c", "mem_temp_c", "sm_mhz", "mem_mhz",
    "fb_used_mib", "throttle", "energy_mj", "power_violation_ns",
)  # fmt: skip
INSTANT_POWER, MEMORY_TEMPERATURE = 186, 82


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong), ("kind", ctypes.c_uint), ("code", ctypes.c_uint), ("value", ctypes.c_ulonglong),
    )  # fmt: skip


class Card:
    """The first card, through NVML."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._nvml.nvmlInit_v2()
        self._device = ctypes.c_void_p()
        self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))

    def _read(self, call: str, *arguments: int, kind: Any = ctypes.c_uint, count: int = 1) -> Any:
        values = (kind * count)()
        getattr(self._nvml, call)(self._device, *arguments, ctypes.byref(values))
        return values[0] if count == 1 else list(values)

    def sample(self) -> list[int]:
        """One row, in the order of the columns after `phase`."""
        gpu, memory = self._read("nvmlDeviceGetUtilizationRates", count=2)
        fields = (_FieldValue * 2)()
        fields[0].field, fields[1].field = INSTANT_POWER, MEMORY_TEMPERATURE
        self._nvml.nvmlDeviceGetFieldValues(self._device, 2, fields)
        used = self._read("nvmlDeviceGetMemoryInfo", kind=ctypes.c_ulonglong, count=3)[2]
        violation = self._read("nvmlDeviceGetViolationStatus", 0, kind=ctypes.c_ulonglong, count=2)[1]
        return [
            gpu,
            memory,
            self._read("nvmlDeviceGetPowerUsage"),
            fields[0].value & 0xFFFFFFFF,
            self._read("nvmlDeviceGetTemperature", 0),
            fields[1].value & 0xFFFFFFFF,
            self._read("nvmlDeviceGetClockInfo", 1),
            self._read("nvmlDeviceGetClockInfo", 2),
            used >> 20,
            self._read("nvmlDeviceGetCurrentClocksEventReasons", kind=ctypes.c_ulonglong),
            self._read("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong),
            violation,
        ]


def watch(path: Path, start: float, phase: Any, interval: float) -> None:
    """Samples until the phase is empty; a process of its own, so that the loads do not disturb it."""
    card = Card()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        while name := phase.value.decode():
            now = time.monotonic()
            writer.writerow([f"{now - start:.3f}", name, *card.sample()])
            time.sleep(max(0.0, interval - (time.monotonic() - now)))


class Loads:
    """What a card can be asked to do. Each method returns a function that does one piece of work and waits for it."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False
        self._kept: dict[str, Any] = {}

    def tensor(self, *shape: int, kind: str = "bfloat16") -> Any:
        """Random numbers on the card, made once for each shape."""
        key = f"{shape} {kind}"
        if key not in self._kept:
            self._kept[key] = self.torch.randn(*shape, device="cuda").to(getattr(self.torch, kind))
        return self._kept[key]

    def _synced(self, work: Callable[[], object]) -> Callable[[], None]:
        def piece() -> None:
            work()
            self.torch.cuda.synchronize()

        return piece

    def matmul(
        self, kind: str = "bfloat16", size: int = 8192, *, tf32: bool = False, batch: int = 1
    ) -> Callable[[], None]:
        """Matrix products."""
        a, b = self.tensor(size, size, kind=kind), self.tensor(size, size, kind=kind)
        out = self.torch.empty_like(a)

        def work() -> None:
            self.torch.backends.cuda.matmul.allow_tf32 = tf32
            for _ in range(batch):
                self.torch.matmul(a, b, out=out)

        return self._synced(work)

    def fp8(self, size: int = 8192) -> Callable[[], None]:
        """Eight-bit matrix products."""
        torch = self.torch
        a = self.tensor(size, size).to(torch.float8_e4m3fn)
        b = self.tensor(size, size).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return self._synced(lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))  # noqa: SLF001

    def copy(self, mib: int = 4096) -> Callable[[], None]:
        """Copies within the card's memory."""
        a = self.tensor(mib << 19)
        b = self.torch.empty_like(a)
        return self._synced(lambda: b.copy_(a))

    def zeros_copy(self, mib: int = 4096) -> Callable[[], None]:
        """Copies of zeros: nothing toggles."""
        a = self.torch.zeros(mib << 19, device="cuda", dtype=self.torch.bfloat16)
        b = self.torch.empty_like(a)
        return self._synced(lambda: b.copy_(a))

    def h2d(self, mib: int = 1024, *, back: bool = False) -> Callable[[], None]:
        """Copies from, or to, the host's pinned memory."""
        host = self.torch.empty(mib << 20, dtype=self.torch.uint8, pin_memory=True)
        card = self.torch.empty(mib << 20, dtype=self.torch.uint8, device="cuda")
        return self._synced(
            lambda: host.copy_(card, non_blocking=True) if back else card.copy_(host, non_blocking=True)
        )

    def elementwise(self) -> Callable[[], None]:
        """A chain of operations on each number, bound by memory."""
        a = self.tensor(1 << 29)
        return self._synced(lambda: self.torch.nn.functional.gelu(a))

    def reduce(self) -> Callable[[], None]:
        """Sums over large arrays: reading only."""
        a = self.tensor(1 << 30)
        return self._synced(a.sum)

    def decode(self, size: int = 16384, rows: int = 1) -> Callable[[], None]:
        """A thin matrix against a large one, as in writing text token by token."""
        big = self.tensor(size, size)
        thin = self.tensor(rows, size)

        def work() -> None:
            for _ in range(8):
                self.torch.matmul(thin, big)

        return self._synced(work)

    def both(self) -> Callable[[], None]:
        """Matrix products and copies at the same time, on two streams."""
        torch = self.torch
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        a = self.tensor(8192, 8192)
        out, target = torch.empty_like(a), torch.empty_like(self.tensor(1024 << 19))

        def work() -> None:
            with torch.cuda.stream(one):
                for _ in range(4):
                    torch.matmul(a, a, out=out)
            with torch.cuda.stream(two):
                for _ in range(6):
                    target.copy_(self.tensor(1024 << 19))

        return self._synced(work)

    def training(self, width: int = 4096, layers: int = 4, batch: int = 8, length: int = 1024) -> Callable[[], None]:
        """Steps of a small transformer, forward, backward and the optimiser."""
        torch = self.torch
        layer = torch.nn.TransformerEncoderLayer(
            width, 32, 4 * width, batch_first=True, dtype=torch.bfloat16, device="cuda", dropout=0.0
        )
        model = torch.nn.TransformerEncoder(layer, layers)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        data = self.tensor(batch, length, width)

        def work() -> None:
            model(data).float().pow(2).mean().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return self._synced(work)

    def tiny(self) -> Callable[[], None]:
        """Kernels so small that launching takes longer than running."""
        a = self.tensor(64, 64)

        def work() -> None:
            for _ in range(1000):
                self.torch.matmul(a, a)

        return self._synced(work)


def play(piece: Callable[[], None] | None, seconds: float, duty: float, period: float) -> dict[str, float]:
    """Runs one phase; says how much of the time was busy and how many pieces were done."""
    start = time.monotonic()
    busy, pieces, turn = 0.0, 0, 0
    while (now := time.monotonic()) < start + seconds:
        if piece is None:
            time.sleep(min(0.05, start + seconds - now))
            continue
        until = start + seconds if duty >= 1 else start + turn * period + duty * period
        begun = time.monotonic()
        while time.monotonic() < until:
            piece()
            pieces += 1
        busy += time.monotonic() - begun
        turn += 1
        time.sleep(max(0.0, start + turn * period - time.monotonic()))
    length = time.monotonic() - start
    return {"seconds": length, "busy": busy / length, "pieces": pieces}


@contextlib.contextmanager
def settings(commands: list[str]) -> Iterator[str]:
    """`nvidia-smi` with each of the commands; undone afterwards."""
    said = [
        subprocess.run(["nvidia-smi", *c.split()], capture_output=True, text=True, check=False).stdout for c in commands
    ]
    try:
        yield " ".join(" ".join(said).split())
    finally:
        for undo in ("-rgc", "-pl 700"):
            subprocess.run(["nvidia-smi", *undo.split()], capture_output=True, check=False)


def plan(loads: Loads) -> list[tuple[str, Callable[[], None] | None, float, float, float, list[str]]]:
    """Name, load, seconds, duty, period, settings."""
    mm, copy, fp32 = loads.matmul(), loads.copy(), loads.matmul("float32")
    rows: list[tuple[str, Callable[[], None] | None, float, float, float, list[str]]] = [("context", None, 8, 1, 1, [])]

    def add(
        name: str,
        piece: Callable[[], None] | None,
        seconds: float,
        *,
        duty: float = 1,
        period: float = 1,
        smi: list[str] | None = None,
    ) -> None:
        rows.append((name, piece, seconds, duty, period, smi or []))

    for mhz in (600, 1005, 1305, 1605, 1830):
        add(f"bf16_at_{mhz}", mm, 4, smi=[f"-lgc {mhz},{mhz}"])
    for mhz in (1005, 1500):
        add(f"fp32_at_{mhz}", fp32, 4, smi=[f"-lgc {mhz},{mhz}"])
        add(f"copy_at_{mhz}", copy, 4, smi=[f"-lgc {mhz},{mhz}"])
        add(f"context_at_{mhz}", None, 4, smi=[f"-lgc {mhz},{mhz}"])
    for watts in (400, 550):
        add(f"bf16_cap_{watts}", mm, 8, smi=[f"-pl {watts}"])
    add("rest_a", None, 6)
    for duty, period in ((0.3, 1.0), (0.6, 1.0), (0.5, 0.05), (0.4, 2.0), (0.2, 0.5)):
        add(f"bf16_{round(duty * 100)}_of_{period}", mm, 12, duty=duty, period=period)
    add("copy_50_of_0.2", copy, 8, duty=0.5, period=0.2)
    add("fp32_50_of_1.0", fp32, 8, duty=0.5, period=1.0)
    add("rest_b", None, 6)
    for name, piece in (
        ("fp16", loads.matmul("float16")), ("fp8", loads.fp8()), ("tf32", loads.matmul("float32", tf32=True)),
        ("bf16_2048", loads.matmul(size=2048, batch=32)), ("bf16_1024", loads.matmul(size=1024, batch=64)),
        ("zeros_copy", loads.zeros_copy()), ("elementwise", loads.elementwise()), ("reduce", loads.reduce()),
        ("decode_1", loads.decode()), ("decode_16", loads.decode(rows=16)), ("matmul_and_copy", loads.both()),
        ("d2h", loads.h2d(back=True)), ("training", loads.training()), ("tiny", loads.tiny()),
    ):  # fmt: skip
        add(name, piece, 7)
    add("copy", copy, 15)
    add("fp32", fp32, 12)
    add("bf16", mm, 25)
    add("rest_c", None, 25)
    return rows


def main() -> None:
    """Plays all phases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--interval", type=float, default=0.04)
    options = parser.parse_args()
    phase = multiprocessing.sharedctypes.Array(ctypes.c_char, 64)
    phase.value = b"idle"
    start = time.monotonic()
    watcher = multiprocessing.Process(target=watch, args=(options.out / "series.csv", start, phase, options.interval))
    watcher.start()
    done: list[dict[str, Any]] = []
    try:
        time.sleep(6)
        phase.value = b"opening"
        loads = Loads()
        rows = plan(loads)
        loads.torch.cuda.synchronize()
        for name, piece, seconds, duty, period, smi in rows:
            if piece is not None:
                phase.value = b"warming"
                with contextlib.suppress(RuntimeError):
                    piece()
            with settings(smi) as said:
                phase.value = name.encode()
                begun = time.monotonic() - start
                try:
                    result = play(piece, seconds, duty, period)
                except RuntimeError as error:
                    result = {"error": str(error)}  # type: ignore[dict-item]
            done.append({"name": name, "start": begun, "duty": duty, "period": period, "settings": said, **result})
            print(json.dumps(done[-1]), flush=True)
    finally:
        phase.value = b""
        watcher.join()
        (options.out / "phases.json").write_text(json.dumps(done, indent=1))


if __name__ == "__main__":
    main()
