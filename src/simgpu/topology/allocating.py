"""How pods get GPUs: by the extended resource, through dynamic resource allocation, or both; and DRA's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors
from simgpu.topology import checking
from simgpu.vocabulary import ALLOCATIONS, BOTH, DRA, EXTENDED, MAX_SHARES

_Shares = Literal["disabled", "memory", "unlimited"] | Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARES)]


class DraOptions(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """How DRA offers GPUs, named as options of NVIDIA's driver.

    With `dynamic_mig`, MIG devices are offered beside each GPU that can be divided. With `consumable_shares`, several
    claims get a part of one GPU: of its memory, of `unlimited` parts, or of so many.
    """

    dynamic_mig: bool = msgspec.field(default=False, name="dynamicMIG")
    consumable_shares: _Shares = "disabled"

    def __post_init__(self) -> None:
        if self.dynamic_mig and self.consumable_shares != "disabled":
            raise ValueError("consumableShares and dynamicMIG exclude each other")


class GpuAllocation(msgspec.Struct, frozen=True):
    """How pods get the GPUs of a node."""

    way: str = EXTENDED
    options: DraOptions = DraOptions()

    @property
    def by_claims(self) -> bool:
        """Whether GPUs are offered through DRA."""
        return self.way in (DRA, BOTH)

    @property
    def by_count(self) -> bool:
        """Whether GPUs are offered as the extended resource."""
        return self.way in (EXTENDED, BOTH)

    @property
    def divides(self) -> bool:
        """Whether claims divide GPUs into MIG instances."""
        return self.by_claims and self.options.dynamic_mig


DEFAULT = GpuAllocation()


def parse_way(text: Any, *, field: str) -> str:
    """Return one of the ways to get GPUs; raises `InputError` for another text."""
    if text not in ALLOCATIONS:
        raise errors.InputError(field, f"{errors.shown(text)}: must be one of {', '.join(ALLOCATIONS)}")
    return str(text)


def read(holder: Mapping[str, Any], where: str, check: checking.Checker, *, otherwise: GpuAllocation) -> GpuAllocation:
    """Return `allocation` and `dra` of a pool, a node or a whole topology; `otherwise` where they are left out."""
    way, options = otherwise.way, otherwise.options
    try:
        if holder.get("allocation") is not None:
            way = parse_way(holder["allocation"], field=f"{where}allocation")
        if holder.get("dra") is not None:
            options = checking.converted(holder["dra"], DraOptions, field=f"{where}dra")
    except errors.InputError as error:
        check.mistake(error.field, error.problem)
    return GpuAllocation(way, options)
