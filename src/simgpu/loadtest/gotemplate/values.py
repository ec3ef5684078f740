"""Values of templates: which are true, how they compare, and how Go prints them.

Go's nil and a missing key are None; lists and maps are Python's. A string that came from outside of the template is
`Foreign`, and so is every string that a function makes of one.
"""

from __future__ import annotations

import math
from typing import Any

from simgpu.loadtest.gotemplate.errors import TemplateError

NO_VALUE = "<no value>"
_MAX_DEPTH = 32


class Foreign(str):
    """A string that came from variables."""

    __slots__ = ()


def foreign(value: Any, depth: int = 0) -> Any:
    """Return a value in which all strings are Foreign."""
    if depth > _MAX_DEPTH:
        raise TemplateError(f"a variable is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return Foreign(value)
    if isinstance(value, list | tuple):
        return [foreign(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(key): foreign(item, depth + 1) for key, item in value.items()}
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise TemplateError(f"a variable of type {type(value).__name__}: must be a string, number, boolean, list or map")


def has_foreign(value: Any) -> bool:
    """Return whether there is a Foreign string in a value."""
    if isinstance(value, Foreign):
        return True
    if isinstance(value, list):
        return any(has_foreign(item) for item in value)
    return isinstance(value, dict) and any(has_foreign(item) for item in value.values())


def kind(value: Any) -> str:
    """Return the kind of a value by which it can be compared; empty for others."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float64"
    return "string" if isinstance(value, str) else ""


def type_name(value: Any) -> str:
    """Return the name of a value's type in Go."""
    if isinstance(value, list):
        return "[]interface {}"
    if isinstance(value, dict):
        return "map[string]interface {}"
    return kind(value) or "<nil>"


def truth(value: Any) -> bool:
    """Return whether a value is not the zero of its type."""
    return bool(value)


def text(value: Any) -> str:  # noqa: PLR0911 - one for each type
    """Return a value as `%v` prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "<nil>"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, list):
        return f"[{' '.join(text(item) for item in value)}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{text(value[key])}' for key in sorted(value, key=_bytes))}]"
    return str(value)


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def float_text(value: float) -> str:
    """Return a float in its shortest form, with an exponent below 1e-4 and from a million on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    mantissa, _, exponent = f"{value!r}".partition("e")
    digits, power = _decompose(mantissa, int(exponent or 0))
    sign = "-" if value < 0 else ""
    if power < -4 or power >= 6:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    if len(digits) <= power + 1:
        return f"{sign}{digits}{'0' * (power + 1 - len(digits))}"
    return f"{sign}{digits[: power + 1]}.{digits[power + 1 :]}"


def _decompose(mantissa: str, exponent: int) -> tuple[str, int]:
    """Return significant digits and the power of ten of the first."""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).rstrip("0")
    stripped = digits.lstrip("0")
    return stripped, exponent + len(whole) - 1 - (len(digits) - len(stripped))


def equal(first: Any, others: list[Any]) -> bool:
    """`eq`: whether the first equals one of the others; values of different kinds cannot be compared."""
    for other in others:
        one, two = kind(first), kind(other)
        if one != two:
            if first is not None and other is not None:
                raise TemplateError(f"incompatible types for comparison: {type_name(first)} and {type_name(other)}")
        elif one:
            if first == other:
                return True
        elif first is None or other is None:
            if first is None and other is None:
                return True
        else:
            raise TemplateError(f"non-comparable type {type_name(other)}")
    return False


def less(first: Any, second: Any) -> bool:
    """`lt`: whether the first is less than the second."""
    one, two = kind(first), kind(second)
    if not one or not two or (one == two == "bool"):
        raise TemplateError("invalid type for comparison")
    if one != two:
        raise TemplateError(f"incompatible types for comparison: {type_name(first)} and {type_name(second)}")
    if one == "string":
        return _bytes(first) < _bytes(second)
    return bool(first < second)
