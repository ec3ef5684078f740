"""Reads mappings with case-insensitive keys, and collects all mistakes with their field paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from simgpu import errors

MAX_PROBLEMS = 50
T = TypeVar("T")


class ScenarioError(errors.SimgpuError):
    """A scenario cannot be run; the message has all of its mistakes."""

    exit_code = 2


class Problems:
    """Mistakes of a scenario, each with its field path."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[str] = []

    def add(self, path: str, problem: str) -> None:
        """Add a mistake."""
        line = f"{path}: {problem}" if path else problem
        if line not in self.found:
            self.found.append(line)

    def check(self) -> None:
        """Raise ScenarioError if there are any."""
        if self.found:
            more = len(self.found) - MAX_PROBLEMS
            lines = [*self.found[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
            raise ScenarioError(f"{self.file}:\n" + "\n".join(f"  {line}" for line in lines))


class Section:
    """One mapping of a scenario. Each field is taken by its name in any case; `finish` reports those left over."""

    def __init__(self, value: Any, path: str, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self._fields: dict[str, tuple[str, Any]] = {}
        if value is None:
            value = {}
        if not isinstance(value, dict):
            problems.add(path, f"must be a mapping, not {errors.shown(value)}")
            value = {}
        for key, item in value.items():
            name = str(key).lower()
            if name in self._fields:
                problems.add(self.at(str(key)), f"given twice, also as {self._fields[name][0]}")
            self._fields[name] = (str(key), item)

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return whether a field is given and not null."""
        return self._fields.get(name.lower(), ("", None))[1] is not None

    def raw(self, name: str) -> Any:
        """Take a field as it is; None if it is not given."""
        return self._fields.pop(name.lower(), ("", None))[1]

    def take(self, name: str, parse: Callable[[Any], T], default: T) -> T:
        """Take a field; `parse` raises ValueError with what is allowed."""
        value = self.raw(name)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.problems.add(self.at(name), f"{errors.shown(value)}: {error}")
            return default

    def require(self, name: str, parse: Callable[[Any], T], default: T) -> T:
        """Take a field that must be given."""
        if not self.has(name):
            self.problems.add(self.at(name), "is missing")
        return self.take(name, parse, default)

    def sections(self, name: str) -> list[Section]:
        """Take a list of mappings."""
        return [Section(item, f"{self.at(name)}[{index}]", self.problems) for index, item in self.items(name)]

    def items(self, name: str) -> list[tuple[int, Any]]:
        """Take a list, with the index of each item."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problems.add(self.at(name), f"must be a list, not {errors.shown(value)}")
            return []
        return list(enumerate(value))

    def section(self, name: str) -> Section:
        """Take a mapping."""
        return Section(self.raw(name), self.at(name), self.problems)

    def reject(self, name: str, why: str) -> None:
        """Report a field that is not supported."""
        if self.raw(name):
            self.problems.add(self.at(name), why)

    def finish(self, known: str = "") -> None:
        """Report fields that are not known."""
        hint = f"; there are: {known}" if known else ""
        for key, _ in self._fields.values():
            self.problems.add(self.at(errors.clipped(key, 60)), f"unknown field{hint}")


def text(value: Any) -> str:
    """Accept a string, or a number as one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a string")  # noqa: TRY004 - as all parsers
    return str(value)


def flag(value: Any) -> bool:
    """Accept a boolean."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - as all parsers
    return value


def number(value: Any) -> float:
    """Accept a finite number, also as a string."""
    try:
        result = float(value) if not isinstance(value, bool) and isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise ValueError("must be a number")
    return result


def positive(value: Any) -> float:
    """Accept a number above zero."""
    result = number(value)
    if result <= 0:
        raise ValueError("must be above 0")
    return result


def count(lowest: int, highest: int) -> Callable[[Any], int]:
    """Accept a whole number in a range, also as a string or a float without a fraction."""

    def parse(value: Any) -> int:
        result = number(value)
        if result != int(result) or not lowest <= result <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return int(result)

    return parse


def choice(*allowed: str) -> Callable[[Any], str]:
    """Accept one of several words."""

    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return parse


def mapping(value: Any) -> dict[str, Any]:
    """Accept a mapping."""
    if not isinstance(value, dict):
        raise ValueError("must be a mapping")  # noqa: TRY004 - as all parsers
    return {str(key): item for key, item in value.items()}


def name(value: Any) -> str:
    """Accept the beginning of an object's name: lower-case letters, digits, dashes and dots."""
    found = text(value)
    allowed = all(char.isascii() and (char.islower() or char.isdigit() or char in "-.") for char in found)
    if not found or len(found) > 200 or not allowed or not found[0].isalnum():
        raise ValueError("must be lower-case letters, digits, '-' and '.', beginning with a letter or digit")
    return found
