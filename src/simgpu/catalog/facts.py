"""The base of all structures of the catalog, and types of their fields."""

from __future__ import annotations

from typing import Annotated

import msgspec

Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]  # a thousand times as many fit into 32 bits, as on a state page
Positive = Annotated[float, msgspec.Meta(ge=0.001, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything in a catalog file: immutable, and an unknown field is an error."""
