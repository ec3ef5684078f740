"""The functions that ClusterLoader2 gives to templates.

Numbers are computed as floats, and `...Int` cuts off what is behind the point. Where Go's result would be infinite or
beyond 64 bits, these fail.
"""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from simgpu.loadtest.gotemplate import values
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.executing import Library

MAX_ITEMS = 100_000  # of a list that a function makes
MAX_FILE = 1 << 20  # bytes of an included file
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NUMBER = 64  # characters
_MAX_INT = 2**63


def library(folders: Sequence[Path], chance: random.Random) -> Library:
    """Return the functions; included files are looked up in these folders, and nowhere else."""

    def include(name: Any) -> str:
        return _include(_text(name), folders)

    def between(low: Any, high: Any) -> int:
        first, last = _whole(_float(low)), _whole(_float(high))
        return first if first >= last else chance.randint(first, last)

    def data(length: Any) -> str:
        return _random_text(length, chance)

    functions: dict[str, tuple[Callable[..., Any], int, int | None]] = {
        **_PURE,
        "IncludeFile": (include, 1, 1),
        "IncludeEmbedFile": (include, 1, 1),
        "RandInt": (lambda high: between(0, _not_negative(high)), 1, 1),
        "RandIntRange": (between, 2, 2),
        "RandData": (data, 1, 1),
        "RandDataWithSeed": (lambda length, seed: _random_text(length, random.Random(_whole(_float(seed)))), 2, 2),
    }
    return Library(functions, frozenset({"IncludeFile", "IncludeEmbedFile", "YamlQuote"}))


def _float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and len(value) <= _MAX_NUMBER and _FLOAT.fullmatch(value):
        return _finite(float(value))
    raise TemplateError(f"cannot cast {values.text(value)[:80]} to float64")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise TemplateError("the result is not a finite number")
    return value


def _whole(value: float) -> int:
    number = int(_finite(value))
    if not -_MAX_INT <= number < _MAX_INT:
        raise TemplateError(f"{value:g} is beyond 64 bits")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TemplateError(f"incorrect argument type: got: {values.type_name(value)} want: string")
    return value


def _not_negative(value: Any) -> Any:
    if _float(value) < 0:
        raise TemplateError("invalid argument: less than 0")
    return value


def _count(value: Any) -> int:
    number = _whole(_float(value))
    if not 0 <= number <= MAX_ITEMS:
        raise TemplateError(f"a list of {number} items: must be from 0 to {MAX_ITEMS:,}")
    return number


def _add(*numbers: Any) -> float:
    return _finite(sum(map(_float, numbers), 0.0))


def _multiply(*numbers: Any) -> float:
    return _finite(math.prod(map(_float, numbers), start=1.0))


def _subtract(first: Any, second: Any) -> float:
    return _finite(_float(first) - _float(second))


def _divide(first: Any, second: Any) -> float:
    divisor = _float(second)
    if divisor == 0:
        raise TemplateError("division by zero")
    return _finite(_float(first) / divisor)


def _mod(first: Any, second: Any) -> int:
    divisor = _whole(_float(second))
    if divisor == 0:
        raise TemplateError("division by zero")
    number = _whole(_float(first))
    rest = abs(number) % abs(divisor)
    return -rest if number < 0 else rest


def _if_then_else(condition: Any, then: Any, otherwise: Any) -> Any:
    if not isinstance(condition, bool):
        raise TemplateError(f"incorrect argument type: got: {values.type_name(condition)} want: bool")
    return then if condition else otherwise


def _split(value: Any) -> list[str]:
    parts = _text(value).split(",")
    if len(parts) > MAX_ITEMS:
        raise TemplateError(f"more than {MAX_ITEMS:,} parts")
    return parts


def _yaml_quote(value: Any, indent: Any) -> str:
    """Return a string as a YAML scalar whose further lines are indented by that many double spaces."""
    if isinstance(indent, bool) or not isinstance(indent, int) or not 0 <= indent <= 100:
        raise TemplateError("incorrect argument type: want: an int from 0 to 100")
    marshalled: str = yaml.safe_dump(str(_text(value)), default_style='"', width=math.inf, allow_unicode=True)
    return marshalled.replace("\n", "\n" + "  " * indent)


def _random_text(length: Any, chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits, k=_count(length)))


def _include(name: str, folders: Sequence[Path]) -> str:
    for folder in folders:
        path = (folder / name.lstrip("/")).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            with path.open("rb") as file:
                data = file.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise TemplateError(f"{name[:200]}: larger than {MAX_FILE >> 20} MiB")
            return data.decode()
    raise TemplateError(f"{name[:200]}: no such file in {', '.join(map(str, folders))}")


def _int_of(function: Callable[..., float]) -> Callable[..., int]:
    return lambda *numbers: _whole(function(*numbers))


_PURE: dict[str, tuple[Callable[..., Any], int, int | None]] = {
    "AddFloat": (_add, 0, None),
    "AddInt": (_int_of(_add), 0, None),
    "Ceil": (lambda value: _whole(math.ceil(_float(value))), 1, 1),
    "Concat": (lambda *parts: "".join(values.text(part) for part in parts), 0, None),
    "DefaultParam": (lambda value, default: default if value is None else value, 2, 2),
    "DivideFloat": (_divide, 2, 2),
    "DivideInt": (_int_of(_divide), 2, 2),
    "IfThenElse": (_if_then_else, 3, 3),
    "Loop": (lambda count: list(range(_count(count))), 1, 1),
    "Lowercase": (lambda value: _text(value).lower(), 1, 1),
    "MaxFloat": (lambda *numbers: max(map(_float, numbers)), 1, None),
    "MaxInt": (lambda *numbers: _whole(max(map(_float, numbers))), 1, None),
    "MinFloat": (lambda *numbers: min(map(_float, numbers)), 1, None),
    "MinInt": (lambda *numbers: _whole(min(map(_float, numbers))), 1, None),
    "Mod": (_mod, 2, 2),
    "MultiplyFloat": (_multiply, 0, None),
    "MultiplyInt": (_int_of(_multiply), 0, None),
    "Seq": (lambda count: [0] * _count(count), 1, 1),
    "SliceOfZeros": (lambda count: [0] * _count(count), 1, 1),
    "StringSplit": (_split, 1, 1),
    "SubtractFloat": (_subtract, 2, 2),
    "SubtractInt": (_int_of(_subtract), 2, 2),
    "YamlQuote": (_yaml_quote, 2, 2),
}
