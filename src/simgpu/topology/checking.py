"""Checks of a configuration document that is read field by field: mistakes are collected, each with its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology import devices
from simgpu.vocabulary import MAX_NAME

_MAX_MISTAKES = 100

S = TypeVar("S", bound=msgspec.Struct)


class Mistakes(errors.InputError):
    """Everything that is wrong with a document."""

    def __init__(self, found: list[errors.InputError], unknown: list[str]) -> None:
        super().__init__(found[0].field, "; ".join([found[0].problem, *(str(item) for item in found[1:])]))
        self.found = found
        self.unknown = unknown


class Checker:
    """Reads fields, and collects mistakes and unknown keys of one document."""

    def __init__(self, catalog: models.Catalog) -> None:
        self.catalog = catalog
        self.unknown: list[str] = []
        self._wrong: list[errors.InputError] = []
        self._more = 0  # mistakes beyond those that are listed

    def raise_mistakes(self) -> None:
        """Raises `Mistakes` if there were any."""
        if self._more:
            self._wrong.append(errors.InputError("topology", f"and {self._more} more mistakes"))
        if self._wrong:
            raise Mistakes(self._wrong, self.unknown)

    def mistake(self, field: str, problem: str) -> None:
        """Adds a mistake; beyond the first hundred they are counted only."""
        if len(self._wrong) < _MAX_MISTAKES:
            self._wrong.append(errors.InputError(field, errors.clipped(problem)))
        else:
            self._more += 1

    def known(self, holder: Any, allowed: Sequence[str], where: str) -> None:
        """Collects keys that are not allowed: they may be mistyped, or another program's, so they are no mistakes."""
        for key in holder if isinstance(holder, dict) else ():
            if key not in allowed and len(self.unknown) < _MAX_MISTAKES:
                name = errors.clipped(str(key), MAX_NAME)
                place = f"{where}.{name}" if where else name
                self.unknown.append(f"{place}: no such key; there are: {', '.join(allowed)}")

    def mapping(self, holder: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
        """Return the mapping of a field; an empty one if there is none."""
        value = holder.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.mistake(f"{where}{name}", "must be a mapping")
            return {}
        return value

    def text(self, holder: Mapping[str, Any], name: str, where: str) -> str:
        """Return the text of a field, or its number as text; empty if there is none."""
        value = holder.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | int | float) or len(str(value)) > MAX_NAME:
            problem = f"{errors.shown(value)}: must be a text of at most {MAX_NAME} characters"
            self.mistake(f"{where}.{name}", problem)
            return ""
        return str(value)

    def size(self, memory: Any, where: str) -> int | None:
        """Return an amount of memory in MiB; None if there is none."""
        if memory is None:
            return None
        try:
            return devices.mebibytes(memory, where=where)
        except errors.InputError as error:
            self.mistake(error.field, error.problem)
            return None

    def product(self, product: str, memory: Any, where: str) -> models.Model:
        """Return a product by name with its memory, on the catalog's model of that name if there is one."""
        if memory is None and self.catalog.find(product) is None:
            self.mistake(where, f"{errors.shown(product)} is not in the catalog; specify its memory")
        return devices.named(product or "GPU", self.size(memory, where), self.catalog)


def converted(document: Any, kind: type[S], *, field: str) -> S:
    """Return a section as a struct; raises `InputError` with the field that is wrong, or with the allowed keys."""
    allowed = kind.__struct_encode_fields__
    for key in document if isinstance(document, dict) else ():
        if key not in allowed:
            raise errors.InputError(field, f"{errors.shown(key)}: no such key; there are: {', '.join(allowed)}")
    return errors.convert(document, kind, field=field)


def whole(value: Any, highest: int) -> bool:
    """Return whether a value is a whole number from 0 to `highest`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= highest
