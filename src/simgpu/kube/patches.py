"""Merge patches (RFC 7386): joining two into one, and whether one would change an object."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

Patch = dict[str, Any]


def fold(first: Patch, second: Patch) -> Patch | None:
    """Return one merge patch equal to `first` followed by `second`; None if there is none.

    That is if the first removes or overwrites what the second merges into: a merge patch cannot express "replace".
    """
    folded = dict(first)
    for name, value in second.items():
        if isinstance(value, dict) and name in folded:
            before = folded[name]
            inner = fold(before, value) if isinstance(before, dict) else None
            if inner is None:
                return None
            folded[name] = inner
        else:
            folded[name] = value
    return folded


# Whether a patch would change anything


def differs(observed: msgspec.Struct, patch: Patch) -> bool:
    """Return whether a merge patch would change the object; fields that the view does not hold count as changed."""
    shown = _fields(type(observed))
    for name, wanted in patch.items():
        if name not in shown:
            return True
        if _value_differs(getattr(observed, shown[name]), wanted):
            return True
    return False


@functools.cache
def _fields(view: type[msgspec.Struct]) -> dict[str, str]:
    """Return the fields of a view by their JSON names."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(view)}


def _value_differs(seen: Any, wanted: Any) -> bool:
    """Return whether merging `wanted` into a field with the value `seen` would change it."""
    if isinstance(seen, msgspec.Struct) and isinstance(wanted, dict):
        return differs(seen, wanted)
    if isinstance(seen, dict) and isinstance(wanted, dict):
        return _map_differs(seen, wanted)
    return not _same(seen, wanted)


def _map_differs(seen: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return the same for a map, of which a view holds every entry."""
    for name, value in wanted.items():
        if value is None:
            if name in seen:
                return True
        elif name not in seen:
            return True
        elif isinstance(seen[name], dict) and isinstance(value, dict):
            if _map_differs(seen[name], value):
                return True
        elif seen[name] != value:
            return True
    return False


def _same(seen: Any, wanted: Any) -> bool:
    """Return whether a field that is replaced whole has the wanted value; a default equals an absent field."""
    if isinstance(wanted, list | tuple) and isinstance(seen, list | tuple):
        return len(seen) == len(wanted) and all(_same(one, other) for one, other in zip(seen, wanted, strict=True))
    if isinstance(seen, msgspec.Struct):
        return _struct_same(seen, wanted or {})
    if not seen and not wanted:
        return True
    return bool(seen == wanted)


def _struct_same(seen: msgspec.Struct, wanted: Any) -> bool:
    shown = _fields(type(seen))
    if not isinstance(wanted, dict) or not wanted.keys() <= shown.keys():
        return False
    return all(_same(getattr(seen, field), wanted.get(name)) for name, field in shown.items())
