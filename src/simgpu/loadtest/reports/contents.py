"""What a summary of a report holds. It may come from a file: whatever has another form is left out."""

from __future__ import annotations

from collections.abc import Iterator

_LARGEST = 1e300  # a number beyond it is no figure


def fields(content: object) -> dict[str, object]:
    """Return the members of an object; none of anything else."""
    return content if isinstance(content, dict) else {}


def items(content: object) -> list[dict[str, object]] | None:
    """Return the objects of perf data; None if a summary has another form."""
    found = fields(content).get("dataItems")
    return [fields(item) for item in found] if isinstance(found, list) else None


def label(item: dict[str, object]) -> str:
    """Return the labels of an object of perf data as one text."""
    return " ".join(str(value) for value in fields(item.get("labels")).values())


def numbers(content: object) -> Iterator[tuple[str, float]]:
    """Yield the members of an object that are numbers."""
    for key, value in fields(content).items():
        if isinstance(value, int | float) and abs(value) < _LARGEST:
            yield key, float(value)
