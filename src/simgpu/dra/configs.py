"""Opaque configuration of claims and classes: how the containers of a claim share a device.

Two kinds are read: NVIDIA's driver's own, and that of fake-gpu-operator. Unknown fields are errors, as in both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors
from simgpu.kube import quantity
from simgpu.vocabulary import CONFIG_API, DRA_DRIVER, MAX_CLAIM_RESULTS, MAX_OPAQUE_BYTES, OPERATOR_CONFIG_API

Interval = Literal["Default", "Short", "Medium", "Long"]

_MAX_CONFIGS = 64  # of a claim: the API allows 32 of its class and 32 of its own
_PATH = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)


class _Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class TimeSlicingConfig(_Strict, frozen=True):
    """How long each user of a device runs in turn."""

    interval: Interval = "Default"


class SpacePartitioningConfig(_Strict, frozen=True):
    """How many parts a device has."""

    partition_count: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1


class MpsConfig(_Strict, frozen=True):
    """What each client of MPS gets: percent of threads, and limits of pinned memory, by device too."""

    default_active_thread_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_CLAIM_RESULTS)] = {}

    def __post_init__(self) -> None:
        limits = [self.default_pinned_device_memory_limit, *self.default_per_device_pinned_memory_limit.values()]
        for text in limits:
            if text is not None and quantity.parse(text) <= 0:
                raise ValueError(f"{text!r}: must be above 0")


class SharingConfig(_Strict, frozen=True):
    """The strategy by which users share a device, and the settings of it."""

    strategy: Literal["TimeSlicing", "MPS", "SpacePartitioning"] = "TimeSlicing"
    time_slicing_config: TimeSlicingConfig | None = None
    space_partitioning_config: SpacePartitioningConfig | None = None
    mps_config: MpsConfig | None = None

    @property
    def interval(self) -> str:
        """The interval of time-slicing."""
        return (self.time_slicing_config or TimeSlicingConfig()).interval

    @property
    def partition_count(self) -> int:
        """The parts of space partitioning."""
        return (self.space_partitioning_config or SpacePartitioningConfig()).partition_count


class _Opaque(_Strict, frozen=True):
    api_version: str
    kind: str
    sharing: SharingConfig | None = None


DEFAULT = SharingConfig()
_SETTINGS = {
    "TimeSlicing": "timeSlicingConfig", "MPS": "mpsConfig", "SpacePartitioning": "spacePartitioningConfig",
}  # fmt: skip
_KINDS = {
    (CONFIG_API, "GpuConfig"): ("TimeSlicing", "MPS"),
    (CONFIG_API, "MigDeviceConfig"): ("TimeSlicing", "MPS"),
    (OPERATOR_CONFIG_API, "GpuConfig"): ("TimeSlicing", "SpacePartitioning"),
}  # with the strategies of each


def parse(parameters: Any, *, field: str) -> SharingConfig:
    """Return the sharing in the parameters of a configuration; raises `InputError` with the path of what is wrong."""
    if len(msgspec.json.encode(parameters)) > MAX_OPAQUE_BYTES:
        raise errors.InputError(field, f"at most {MAX_OPAQUE_BYTES} bytes are allowed")
    try:
        found = msgspec.convert(parameters, _Opaque)
    except msgspec.ValidationError as error:
        at = _PATH.fullmatch(str(error))
        path, problem = (f"{field}.{at[2]}", at[1]) if at else (field, str(error))
        raise errors.InputError(path, errors.clipped(problem)) from None
    strategies = _KINDS.get((found.api_version, found.kind))
    if strategies is None:
        known = ", ".join(f"{kind} of {version}" for version, kind in _KINDS)
        raise errors.InputError(
            field, f"{errors.shown(found.kind)} of {errors.shown(found.api_version)}: must be one of {known}"
        )
    return _checked(found.sharing or DEFAULT, strategies, field=f"{field}.sharing")


def _checked(sharing: SharingConfig, strategies: Sequence[str], *, field: str) -> SharingConfig:
    if sharing.strategy not in strategies:
        problem = f"{sharing.strategy!r}: must be one of {', '.join(strategies)}"
        raise errors.InputError(f"{field}.strategy", problem)
    given = {
        "timeSlicingConfig": sharing.time_slicing_config, "mpsConfig": sharing.mps_config,
        "spacePartitioningConfig": sharing.space_partitioning_config,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and name != _SETTINGS[sharing.strategy]:
            raise errors.InputError(f"{field}.{name}", f"has no meaning with strategy {sharing.strategy}")
    return sharing


class ClaimConfigs:
    """The configuration of an allocation. Pods of a claim are looked at often, so what is used is parsed once."""

    def __init__(self, entries: Sequence[Any], *, driver: str = DRA_DRIVER) -> None:
        numbered = [pair for pair in enumerate(entries[:_MAX_CONFIGS]) if _driver(pair[1]) == driver]
        # A claim's configuration comes before its class's, and a later one before an earlier one.
        numbered.sort(key=lambda pair: (_field(pair[1], "source") == "FromClaim", pair[0]), reverse=True)
        self._entries = numbered
        self._parsed: dict[int, SharingConfig | errors.InputError] = {}

    def of_request(self, request: str, *, where: str = "") -> SharingConfig:
        """Return how the devices of a request are shared.

        An entry without requests is for all of them, and one for a request is for its alternatives too. Only the entry
        that counts is read. Raises `InputError` with a path below `where`.
        """
        for number, item in self._entries:
            requests = _field(item, "requests") or []
            if not isinstance(requests, list):
                raise errors.InputError(f"{where}config[{number}].requests", "must be a list")
            if not requests or request in requests or request.partition("/")[0] in requests:
                if number not in self._parsed:
                    self._parsed[number] = _read(number, item)
                found = self._parsed[number]
                if isinstance(found, errors.InputError):
                    raise errors.InputError(f"{where}{found.field}", found.problem)
                return found
        return DEFAULT


def _read(number: int, item: Any) -> SharingConfig | errors.InputError:
    try:
        return parse(_field(_field(item, "opaque"), "parameters"), field=f"config[{number}].opaque.parameters")
    except errors.InputError as error:
        return error.with_traceback(None)


def _driver(item: Any) -> Any:
    return _field(_field(item, "opaque"), "driver")


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None
