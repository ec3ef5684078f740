"""`print`, `printf` and `println`, as Go formats."""

from __future__ import annotations

import re
from typing import Any

from simgpu.loadtest.gotemplate import values
from simgpu.loadtest.gotemplate.errors import TemplateError

_MAX_WIDTH = 10_000
_UNSUPPORTED = {"int": "TpqUO", "float64": "TpxXb"}  # by kind; of others, types and pointers
_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>.)?", re.DOTALL)


def sprint(arguments: list[Any]) -> str:
    """Join values; a space stands between two that are both not strings."""
    parts: list[str] = []
    for place, value in enumerate(arguments):
        if place and not isinstance(value, str) and not isinstance(arguments[place - 1], str):
            parts.append(" ")
        parts.append(values.text(value))
    return "".join(parts)


def sprintln(arguments: list[Any]) -> str:
    """Join values with spaces, and end the line."""
    return " ".join(values.text(value) for value in arguments) + "\n"


def sprintf(form: str, arguments: list[Any]) -> str:
    """Format values; mistakes are written into the result, as Go does."""
    waiting = iter(arguments)
    used = 0
    parts: list[str] = []
    place = 0
    while (start := form.find("%", place)) >= 0:
        parts.append(form[place:start])
        found = _VERB.match(form, start)
        assert found is not None  # noqa: S101 - it begins with a percent sign
        place = found.end()
        verb = found["verb"]
        if verb is None:
            parts.append("%!(NOVERB)")
        elif verb == "%":
            parts.append("%")
        elif verb in "*[":
            raise TemplateError(f"printf: {found[0]!r} is not supported")
        else:
            try:
                value = next(waiting)
            except StopIteration:
                parts.append(f"%!{verb}(MISSING)")
                continue
            used += 1
            parts.append(_format(found, verb, value))
    parts.append(form[place:])
    if used < len(arguments):
        extra = ", ".join(_typed(value) for value in arguments[used:])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _typed(value: Any) -> str:
    return "<nil>" if value is None else f"{values.type_name(value)}={values.text(value)}"


def _format(found: re.Match[str], verb: str, value: Any) -> str:
    width = int(found["width"] or 0) if len(found["width"]) < 7 else _MAX_WIDTH + 1
    given = found["precision"]
    precision = None if given is None else int(given or 0) if len(given) < 7 else _MAX_WIDTH + 1
    if width > _MAX_WIDTH or (precision or 0) > _MAX_WIDTH:
        raise TemplateError(f"printf: {found[0]!r}: a width or precision above {_MAX_WIDTH:,}")
    flags = found["flags"]
    if "#" in flags:
        raise TemplateError(f"printf: {found[0]!r}: the flag # is not supported")
    if isinstance(value, list | dict):
        return _container(found, verb, value)
    if verb in _UNSUPPORTED.get(values.kind(value), "Tp"):
        raise TemplateError(f"printf: {found[0]!r} of a {values.type_name(value)} is not supported")
    shown = _verb(verb, value, flags, precision)
    if shown is None and len(found[0]) > 2:
        raise TemplateError(f"printf: {found[0]!r} of a {values.type_name(value)} is not supported")
    if shown is None:
        return f"%!{verb}({_typed(value)})"
    return _padded(shown, flags, width, numeric=isinstance(value, int | float) and not isinstance(value, bool))


def _container(found: re.Match[str], verb: str, value: list[Any] | dict[str, Any]) -> str:
    if isinstance(value, list):
        return f"[{' '.join(_format(found, verb, item) for item in value)}]"
    pairs = (f"{_format(found, verb, key)}:{_format(found, verb, item)}" for key, item in sorted(value.items()))
    return f"map[{' '.join(pairs)}]"


def _padded(shown: str, flags: str, width: int, *, numeric: bool) -> str:
    if "-" in flags:
        return shown.ljust(width)
    if "0" in flags:
        sign = shown[0] if numeric and shown[:1] in {"-", "+", " "} else ""
        return sign + shown[len(sign) :].rjust(width - len(sign), "0")
    return shown.rjust(width)


def _verb(verb: str, value: Any, flags: str, precision: int | None) -> str | None:
    """Return a value as a verb formats it; None if it cannot."""
    if isinstance(value, str):
        return _string(verb, value, precision)
    if isinstance(value, bool):
        return values.text(value) if verb in "tv" else None
    if isinstance(value, int):
        return _signed(_integer(verb, value, precision), value < 0, flags)
    if isinstance(value, float):
        return _signed(_float(verb, value, precision), value < 0, flags)
    return "<nil>" if verb == "v" else None


def _signed(shown: str | None, negative: bool, flags: str) -> str | None:  # noqa: FBT001 - of a number
    if shown is None or negative:
        return shown
    return f"+{shown}" if "+" in flags else f" {shown}" if " " in flags else shown


def _string(verb: str, value: str, precision: int | None) -> str | None:
    if verb in "vs":
        return value if precision is None else value[:precision]
    if verb in "xX":
        raw = value.encode()[:precision].hex()
        return raw.upper() if verb == "X" else raw
    return quoted(value if precision is None else value[:precision]) if verb == "q" else None


_SHORT = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def quoted(value: str) -> str:
    """Return a Go string literal."""
    parts = []
    for char in value:
        if char in '"\\':
            parts.append(f"\\{char}")
        elif char in _SHORT:
            parts.append(_SHORT[char])
        elif char == " " or (char.isprintable() and not char.isspace()):
            parts.append(char)
        else:
            code = ord(char)
            parts.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(parts)}"'


def _integer(verb: str, value: int, precision: int | None) -> str | None:
    if verb in "dv":
        shown = f"{abs(value)}"
    elif verb in "xXob":
        shown = f"{abs(value):{verb}}"
    elif verb == "c":
        return chr(value) if 0 <= value < 0x110000 and not 0xD800 <= value < 0xE000 else "\ufffd"
    else:
        return None
    if precision is not None:
        shown = "" if precision == value == 0 else shown.rjust(precision, "0")
    return f"-{shown}" if value < 0 else shown


def _float(verb: str, value: float, precision: int | None) -> str | None:
    if verb in "fF":
        return f"{value:.{6 if precision is None else precision}f}"
    if verb in "eE":
        return f"{value:.{6 if precision is None else precision}{verb}}"
    if verb == "v" and precision is None:
        return values.float_text(value)
    if verb in "gGv":
        if precision is None:
            return values.float_text(value) if verb != "G" else values.float_text(value).upper()
        return f"{value:.{max(precision, 1)}{'g' if verb == 'v' else verb}}"
    return None
