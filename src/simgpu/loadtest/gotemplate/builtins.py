"""The functions that Go itself gives to templates; `and` and `or` are the executor's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simgpu.loadtest.gotemplate import printing, values
from simgpu.loadtest.gotemplate.errors import TemplateError


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list | dict):
        return len(value)
    raise TemplateError(f"len of type {values.type_name(value)}")


def _index(value: Any, *indexes: Any) -> Any:
    if value is None:
        raise TemplateError("index of untyped nil")
    for index in indexes:
        if isinstance(value, list):
            value = value[_place(index, len(value) - 1)]
        elif isinstance(value, str):
            raw = value.encode()
            value = raw[_place(index, len(raw) - 1)]
        elif isinstance(value, dict):
            if not isinstance(index, str):
                raise TemplateError(f"value has type {values.type_name(index)}; should be string")
            value = value.get(index)
        else:
            raise TemplateError(f"can't index item of type {values.type_name(value)}")
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    whole: Any = value.encode() if isinstance(value, str) else value
    if not isinstance(whole, list | bytes) or len(bounds) > 2:
        raise TemplateError(f"can't slice item of type {values.type_name(value)}")
    start, end = 0, len(whole)
    places = [_place(bound, len(whole)) for bound in bounds]
    start, end = (*places, start, end)[:2] if len(places) == 2 else (places[0] if places else 0, end)
    if start > end:
        raise TemplateError(f"invalid slice index: {start} > {end}")
    part = whole[start:end]
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _place(index: Any, highest: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TemplateError(f"cannot index slice/array with type {values.type_name(index)}")
    if not 0 <= index <= highest:
        raise TemplateError(f"index out of range: {index}")
    return index


def _printf(form: Any, *arguments: Any) -> str:
    if not isinstance(form, str):
        raise TemplateError(f"wrong type for value; expected string; got {values.type_name(form)}")
    return printing.sprintf(form, list(arguments))


def _le(first: Any, second: Any) -> bool:
    return values.less(first, second) or values.equal(first, [second])


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int | None]] = {
    "eq": (lambda first, *others: values.equal(first, list(others)), 2, None),
    "ne": (lambda first, second: not values.equal(first, [second]), 2, 2),
    "lt": (values.less, 2, 2),
    "le": (_le, 2, 2),
    "gt": (lambda first, second: not _le(first, second), 2, 2),
    "ge": (lambda first, second: not values.less(first, second), 2, 2),
    "not": (lambda value: not values.truth(value), 1, 1),
    "len": (_length, 1, 1),
    "index": (_index, 1, None),
    "slice": (_slice, 1, 3),
    "print": (lambda *arguments: printing.sprint(list(arguments)), 0, None),
    "printf": (_printf, 1, None),
    "println": (lambda *arguments: printing.sprintln(list(arguments)), 0, None),
}
