"""The algebra of merge patches: joining two into one, and telling whether one would change anything."""

from __future__ import annotations

from typing import Any

import msgspec

Patch = dict[str, Any]


def fold(first: Patch, second: Patch) -> Patch | None:
    """One merge patch that does what `first` and then `second` do; None where no single patch can.

    That is where the first removes or overwrites what the second then merges into: "make it empty, then add" has
    no words in a merge patch.
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
    """Whether a merge patch would change what a view shows; fields that the view does not show count as changed."""
    return _merge_differs(msgspec.to_builtins(observed), patch)


def _merge_differs(observed: Any, patch: Patch) -> bool:
    if not isinstance(observed, dict):
        return True
    for name, value in patch.items():
        if value is None:
            if observed.get(name) is not None:
                return True
        elif isinstance(value, dict):
            seen = observed.get(name)
            if _merge_differs({} if seen is None else seen, value):
                return True
        elif not _same(observed.get(name), value):
            return True
    return False


def _same(observed: Any, wanted: Any) -> bool:
    """Equality of values that a merge patch sets whole; views leave out what is empty."""
    if isinstance(wanted, list | tuple):
        seen = observed or ()
        return (
            isinstance(seen, list | tuple)
            and len(seen) == len(wanted)
            and all(_same(one, other) for one, other in zip(seen, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        if not isinstance(observed, dict):
            return False
        names = {name for name, value in wanted.items() if not _is_empty(value)} | observed.keys()
        return all(_same(observed.get(name), wanted.get(name)) for name in names)
    return bool(observed == wanted) or (_is_empty(wanted) and observed is None)


def _is_empty(value: Any) -> bool:
    """What a view does not show: the defaults of its fields."""
    return not value
