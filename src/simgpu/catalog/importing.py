"""A card of a capture as a model file: the capture's values, on top of the closest model of the catalog.

A capture lacks some values (multiprocessors, links, MIG profiles, bandwidth), and those of an idle card if it was taken
from a busy one. These are the closest model's; where that is of another product, they are marked as estimated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from simgpu import errors
from simgpu.catalog import models
from simgpu.catalog.captures import CapturedGpu, SupportedClocks

_SHORT, _SHORTER, _LONG, _KEY = 31, 15, 95, 63  # characters
_WIDTH: Final = 100_000
_DRIVER: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")
_PCI_ID: Final = re.compile(r"(?:0x)?([0-9A-Fa-f]{8})")
_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?")
_HISTOGRAM: Final = ("max", "high", "partial", "low", "none")
_LINK: Final = "pci/pci_gpu_link_info"
_FAN: Final = {"count": 1, "idle": 30, "highest": 80, "start": 60.0}  # of a card whose closest model has none
_REASONS_IDLE: Final = (
    "clocks_event_reasons/clocks_event_reason_gpu_idle", "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle",
)  # fmt: skip
_DRAWS: Final = (
    "gpu_power_readings/average_power_draw", "gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw",
    "power_readings/power_draw",
)  # fmt: skip
_BANKS: Final = "remapped_rows/row_remapper_histogram/row_remapper_histogram"
_SAME_SIZE: Final = 0.02
_OWN: Final = ("key", "product", "vendor", "source", "aliases", "estimated", "relations", "tiles")


class Imported(msgspec.Struct, frozen=True):
    """A model file's content, the model that it is based on and why, and the base's values that the capture lacks."""

    document: dict[str, Any]
    base: models.Model
    why: str
    missing: dict[str, Any]

    @property
    def key(self) -> str:
        """The model's key, derived from the product's name."""
        return models.plain(self.document["product"]).removeprefix("nvidia-")[:_KEY] or "gpu"

    def yaml(self) -> str:
        """Return the file's text, one line per field."""
        return "".join(_line(name, _tidy(value)) for name, value in self.document.items())


def import_gpu(
    gpu: CapturedGpu, driver: str | None, catalog: models.Catalog, *, base: models.Model | None = None
) -> Imported:
    """Return the model file of one card, based on `base` or else on the closest model."""
    product = gpu.short_text("product_name", max_length=_LONG)
    if product is None:
        raise errors.InputError(gpu.where("product_name"), "is missing; a model must have a name")
    same = _same(gpu, product, catalog)
    if base is None:
        base, why = (same, "the same product") if same is not None else _closest(gpu, catalog)
    else:
        why = "as requested"
    return _Import(gpu, driver, product, base, same=base is same).result(why)


def _same(gpu: CapturedGpu, product: str, catalog: models.Catalog) -> models.Model | None:
    """The catalog's own model of a product, by its name or by its PCI device."""
    found = catalog.find(product)
    if found is not None and found.vendor == "nvidia":
        return found
    device = _pci_id(gpu, "pci/pci_device_id")
    return next((model for model in catalog.models.values() if model.pci.device.upper() == device), None)


def _closest(gpu: CapturedGpu, catalog: models.Catalog) -> tuple[models.Model, str]:
    """Of the same architecture, and if possible of the same brand, the model with the most similar memory and power."""
    known = [model for model in catalog.models.values() if model.vendor == "nvidia"]
    architecture = gpu.short_text("product_architecture", max_length=_SHORT)
    alike = [model for model in known if model.architecture == architecture]
    memory = gpu.number("fb_memory_usage/total", unit="MiB")
    power = gpu.number(*_limit("default"), unit="W")
    brand = gpu.text("product_brand")

    def distance(model: models.Model) -> tuple[bool, float]:
        near = _ratio(memory, model.memory_mib.total) + _ratio(power, model.power_w.default)
        return brand != (model.brand or "NVIDIA"), near

    why = f"the closest in memory and power of architecture {architecture}"
    return min(alike or known, key=distance), why if alike else "the closest in memory and power"


def _ratio(one: float | None, other: float) -> float:
    return abs(math.log(one / other)) if one and one > 0 else 0.0


def _limit(name: str) -> tuple[str, str]:
    return f"gpu_power_readings/{name}_power_limit", f"power_readings/{name}_power_limit"


def _pci_id(gpu: CapturedGpu, path: str) -> str | None:
    text = gpu.text(path)
    if text is None:
        return None
    found = _PCI_ID.fullmatch(text)
    if found is None:
        raise errors.InputError(gpu.where(path), f"{text[:40]!r}: must be eight hexadecimal digits, or N/A")
    return f"0x{found[1].upper()}"


class _Import:
    """Gathers the fields of one model, section by section, with those that had to be estimated."""

    def __init__(self, gpu: CapturedGpu, driver: str | None, product: str, base: models.Model, *, same: bool) -> None:
        self._gpu = gpu
        self._driver = driver
        self._product = product
        self._base = base
        self._same = same
        self._estimated: list[str] = []
        self._divided = gpu.text("mig_mode/current_mig") == "Enabled"  # it draws more, and hides some values
        idle = gpu.text("performance_state") == "P8" or gpu.text(*_REASONS_IDLE) == "Active"
        self._idle = idle and not self._divided and not gpu.number("utilization/gpu_util", unit="%")

    def result(self, why: str) -> Imported:
        """Return the whole model file."""
        document: dict[str, Any] = {
            "base": self._base.key,
            "product": self._product,
            "source": f"a capture of one {self._product} (nvidia-smi -q -x)",
            **self._names(),
            **self._sections(),
        }
        missing = dict(_missing(document, msgspec.to_builtins(self._base)))
        estimated = [*self._estimated]
        estimated += [path for path in missing if not self._same or self._base.is_estimated(path)]
        document["estimated"] = sorted(set(estimated))
        return Imported(document, self._base, why, missing)

    def _sections(self) -> dict[str, Any]:
        sections = {
            "memory_mib": self._memory(),
            "ecc": self._ecc(),
            "power_w": self._power(),
            "clocks_mhz": self._clocks(),
            "temperature_c": self._temperatures(),
            "pci": self._pci(),
            "board": self._board(),
        }
        return {name: value for name, value in sections.items() if value} | self._nullable()

    def _names(self) -> dict[str, str]:
        gpu, driver = self._gpu, self._driver
        if driver is not None and not _DRIVER.fullmatch(driver):
            raise errors.InputError("driver_version", f"{driver[:40]!r}: must be a version such as 580.105.08")
        found = {
            "brand": gpu.short_text("product_brand", max_length=23),
            "architecture": gpu.short_text("product_architecture", max_length=_SHORT),
            "driver": driver,
        }
        return {name: text for name, text in found.items() if text is not None}

    def _memory(self) -> dict[str, Any]:
        gpu, base = self._gpu, self._base.memory_mib
        total = gpu.number("fb_memory_usage/total", unit="MiB")
        reserved = gpu.number("fb_memory_usage/reserved", unit="MiB")
        found: dict[str, Any] = {}
        if total is not None:
            found["total"] = int(total)
            if reserved is None and base.reserved > total // 50:
                found["reserved"] = self._estimate("memory_mib.reserved", int(total) // 50)
        if reserved is not None:
            found["reserved"] = int(reserved)
        window = gpu.number("bar1_memory_usage/total", unit="MiB")
        if window is not None or gpu.lacks("bar1_memory_usage/total"):
            found["bar1"] = None if window is None else int(window)
        return found

    def _ecc(self) -> str | None:
        path = "ecc_mode/current_ecc"
        known = {"Enabled": "enabled", "Disabled": "disabled"}
        text = self._gpu.text(path)
        if text is None:
            return "none" if self._gpu.lacks(path) else None
        if text not in known:
            raise errors.InputError(self._gpu.where(path), f"{text[:40]!r}: must be Enabled, Disabled or N/A")
        return known[text]

    def _power(self) -> dict[str, float]:
        gpu, base = self._gpu, self._base.power_w
        found = {name: gpu.number(*_limit(name), unit="W") for name in ("default", "min", "max")}
        limits = {name: value for name, value in found.items() if value is not None}
        draw = gpu.number(*_DRAWS, unit="W")
        if self._idle and draw:
            limits["idle"] = draw
        elif not self._same and "default" in limits:
            limits["idle"] = self._estimate("power_w.idle", round(base.idle * limits["default"] / base.default, 2))
        return limits

    def _clocks(self) -> dict[str, Any]:
        gpu, base = self._gpu, self._base.clocks_mhz
        supported = [clocks for clocks in gpu.clocks if clocks.graphics]
        found: dict[str, Any] = {}
        for name, element in (("sm_max", "sm_clock"), ("memory_max", "mem_clock"), ("video_max", "video_clock")):
            if (value := gpu.number(f"max_clocks/{element}", unit="MHz")) is not None:
                found[name] = value
        if supported:
            found = {**_ranges(supported), **found}
        least = found.get("sm_min", min(base.sm_min, found.get("sm_max", base.sm_min)))
        found |= self._idle_clocks(found, least)
        least = min(least, found.get("sm_idle", least))
        if "sm_min" in found:
            found["sm_min"] = least
        elif least != base.sm_min:
            found["sm_min"] = self._estimate("clocks_mhz.sm_min", least)
        return found

    def _idle_clocks(self, found: dict[str, Any], least: float) -> dict[str, float]:
        """Clocks of the idle card, from the capture or else estimated from the base."""
        gpu, base, resting = self._gpu, self._base.clocks_mhz, dict[str, float]()
        lowest = min(found.get("memory", [found.get("memory_max", base.memory_max)]))
        guesses = {"sm": least, "memory": lowest, "video": None if self._same else base.video_idle}
        for name, element in (("sm", "sm_clock"), ("memory", "mem_clock"), ("video", "video_clock")):
            highest = found.get(f"{name}_max", getattr(base, f"{name}_max"))
            now = gpu.number(f"clocks/{element}", unit="MHz") if self._idle else None
            guess = guesses[name]
            if now and (highest is None or now <= highest):
                resting[f"{name}_idle"] = now
            elif not self._same and guess is not None:
                guess = min(guess, guess if highest is None else highest)
                resting[f"{name}_idle"] = self._estimate(f"clocks_mhz.{name}_idle", guess)
        return resting

    def _temperatures(self) -> dict[str, Any]:
        """Limits as degrees, or as distances from the highest temperature of operation, which is then an estimate."""
        gpu, found = self._gpu, dict[str, Any]()
        margins = gpu.text("temperature/gpu_temp_max_tlimit_threshold") is not None
        if margins:
            highest = self._highest_temperature()
            if not self._same:
                found["gpu_max"] = self._estimate("temperature_c.gpu_max", highest)
            for name, element in (("slowdown", "slow"), ("shutdown", "max")):
                distance = gpu.number(f"temperature/gpu_temp_{element}_tlimit_threshold", unit="C")
                if distance is not None:
                    found[name] = highest - distance
        else:
            for name, element in (("gpu_max", "max_gpu"), ("slowdown", "slow"), ("shutdown", "max")):
                if (value := gpu.number(f"temperature/gpu_temp_{element}_threshold", unit="C")) is not None:
                    found[name] = value
        if found:
            found["shown"] = "margin" if margins else "absolute"
        return {**self._ordered(found), **self._memory_limit()}

    def _highest_temperature(self) -> float:
        now, left = (self._gpu.number(f"temperature/{name}", unit="C") for name in ("gpu_temp", "gpu_temp_tlimit"))
        base = self._base.temperature_c.gpu_max
        return base if self._same or now is None or left is None else now + left

    def _ordered(self, found: dict[str, Any]) -> dict[str, Any]:
        """Some cards print a highest temperature above that at which they slow down."""
        base = self._base.temperature_c
        slowdown, shutdown = found.get("slowdown", base.slowdown), found.get("shutdown", base.shutdown)
        bounds = {
            "slowdown": min(slowdown, shutdown),
            "gpu_max": min(found.get("gpu_max", base.gpu_max), slowdown, shutdown),
        }
        for name, value in bounds.items():
            if value != found.get(name, getattr(base, name)):
                found[name] = self._estimate(f"temperature_c.{name}", value)
        return found

    def _memory_limit(self) -> dict[str, Any]:
        gpu, base = self._gpu, self._base.temperature_c.memory_max
        absolute, margin = (f"temperature/gpu_temp_max_mem_{kind}threshold" for kind in ("", "tlimit_"))
        if (value := gpu.number(absolute, unit="C")) is not None:
            return {"memory_max": value}
        if gpu.lacks(absolute) or gpu.lacks(margin):
            return {"memory_max": None}
        if gpu.text(margin) is not None and base is None:
            return {"memory_max": self._estimate("temperature_c.memory_max", 95.0)}
        return {}

    def _pci(self) -> dict[str, Any]:
        gpu = self._gpu
        found: dict[str, Any] = {
            "device": _pci_id(gpu, "pci/pci_device_id"),
            "subsystem": _pci_id(gpu, "pci/pci_sub_system_id"),
            "class_code": self._class_code(),
        }
        generation = gpu.number(f"{_LINK}/pcie_gen/max_device_link_gen", f"{_LINK}/pcie_gen/max_link_gen", unit="")
        width = gpu.number(f"{_LINK}/link_widths/max_link_width", unit="x")
        found |= {"generation": generation and int(generation), "width": width and int(width)}
        return {name: value for name, value in found.items() if value}

    def _class_code(self) -> str | None:
        codes = [self._gpu.text(f"pci/pci_{part}_class") for part in ("base", "sub")]
        if None in codes:
            return None
        for part, code in zip(("base", "sub"), codes, strict=True):
            if not re.fullmatch("(0x)?[0-9A-Fa-f]{1,2}", str(code)):
                where = self._gpu.where(f"pci/pci_{part}_class")
                raise errors.InputError(where, f"{str(code)[:40]!r}: must be one or two hexadecimal digits, or N/A")
        base, sub = (int(str(code), 16) for code in codes)
        return f"0x{base:02X}{sub:02X}"

    def _board(self) -> dict[str, str]:
        """Part numbers and versions of this card; none is taken from the base."""
        gpu = self._gpu
        elements = {
            "part_number": "board_part_number",
            "gpu_part_number": "gpu_part_number",
            "vbios": "vbios_version",
            "inforom_image": "inforom_version/img_version",
            "inforom_oem": "inforom_version/oem_object",
            "inforom_ecc": "inforom_version/ecc_object",
        }
        found = {name: gpu.short_text(path, max_length=_SHORT) or "" for name, path in elements.items()}
        for name in ("inforom_oem", "inforom_ecc"):
            if found[name] and not _VERSION.fullmatch(found[name]):
                raise errors.InputError(
                    gpu.where(elements[name]), f"{found[name]!r}: must be a version such as 6.16, or N/A"
                )
        return found

    def _nullable(self) -> dict[str, Any]:
        """Features that a card has or lacks."""
        gpu, found = self._gpu, dict[str, Any]()
        speed = gpu.number("fan_speed", unit="%")
        if speed is not None:
            found["fans"] = self._fans(int(speed))
        elif gpu.lacks("fan_speed"):
            found["fans"] = None
        banks = [gpu.number(f"{_BANKS}_{kind}", unit="bank(s)") for kind in _HISTOGRAM]
        if banks[0] is not None:
            found["row_remap_banks"] = int(sum(count or 0 for count in banks))
        elif not self._divided and (gpu.lacks("remapped_rows") or not self._same):
            found["row_remap_banks"] = None
        for name in ("addressing_mode", "c2c_mode"):
            if gpu.lacks(name):
                found[name] = "N/A"
            elif (mode := gpu.short_text(name, max_length=_SHORTER)) is not None:
                found[name] = mode
        total = gpu.number("fb_memory_usage/total", unit="MiB")
        if gpu.lacks("mig_mode/current_mig") or _ratio(total, self._base.memory_mib.total) > _SAME_SIZE:
            found["mig"] = []  # profiles are named after the memory that they have
        return found

    def _fans(self, speed: int) -> dict[str, Any]:
        base = self._base.fans
        known = self._same and base is not None
        turns = base is not None and (base.highest > 0 or speed == 0)
        found: dict[str, Any] = msgspec.to_builtins(base) if turns else {**_FAN}
        if self._idle:
            found["idle"] = max(0, min(speed, 100))
            found["highest"] = max(found["highest"], found["idle"])
        unknown = () if known else ("count", "highest", "start") if self._idle else tuple(found)
        self._estimated += [f"fans.{name}" for name in unknown]
        return found

    def _estimate(self, path: str, value: Any) -> Any:
        self._estimated.append(path)
        return value


def _ranges(supported: list[SupportedClocks]) -> dict[str, Any]:
    """The memory's clocks, and the range of the others: that of the highest memory clock, and its steps."""
    memory = sorted({clocks.memory for clocks in supported}, reverse=True)[: models.MAX_MEMORY_CLOCKS]
    first = max(supported, key=lambda clocks: clocks.memory).graphics
    found: dict[str, Any] = {
        "memory_max": memory[0], "memory": memory, "sm_max": max(first),
        "sm_min": min(clock for clocks in supported for clock in clocks.graphics),
    }  # fmt: skip
    if len(first) > 1 and max(first) > min(first):
        found["sm_step"] = max(0.5, round((max(first) - min(first)) / (len(first) - 1) * 2) / 2)
    return found


def _missing(document: dict[str, Any], base: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a model that a document based on it does not set, by path."""
    for name, value in base.items():
        path = f"{prefix}{name}"
        if value in (None, [], (), "") or (not prefix and name in _OWN):
            continue
        if name not in document:
            yield path, value
        elif isinstance(value, dict) and isinstance(document[name], dict):
            yield from _missing(document[name], value, f"{path}.")


def _line(name: str, value: Any) -> str:
    """A field as YAML: a group on one line, as the catalog's own files have it."""
    if not isinstance(value, dict):
        return yaml.safe_dump({name: value}, default_flow_style=False, sort_keys=False, width=_WIDTH)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=_WIDTH)
    return f"{name}: {text}"


def _tidy(value: Any) -> Any:
    """Whole numbers without a decimal point."""
    if isinstance(value, dict):
        return {name: _tidy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
