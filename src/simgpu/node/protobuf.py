"""Protocol buffers, as much of them as the kubelet's interfaces use: structs to bytes and back.

A field is annotated with its number, as in `name: Annotated[str, 1] = ""`, and may be a string, bytes, a bool, an int,
another message, a tuple of strings, ints or messages, or a map from string to string or message. Unknown fields are
skipped, and missing fields have their defaults, so either side may be older or newer than the other.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, Union

import msgspec

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_SHORT = [bytes([value]) for value in range(0x80)]  # numbers of one byte: most lengths and all tags


class Message(msgspec.Struct, frozen=True):
    """Base of all messages: encodes and decodes itself by the field numbers of its annotations."""

    def encode(self) -> bytes:
        """Return the message in the wire format."""
        return b"".join(
            field.tag + piece
            for field in _fields(type(self)).values()
            for piece in field.encode(getattr(self, field.name))
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message of bytes in the wire format; raises ValueError for invalid ones."""
        fields, found = _fields(cls), dict[str, Any]()
        for number, wire, value in _pieces(data):
            field = fields.get(number)
            if field is not None and field.wire == wire:
                found[field.name] = field.add(found.get(field.name), field.decode(value))
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


class _Field(msgspec.Struct, frozen=True):
    """One field: how its values are encoded and decoded, and how a further value joins those before."""

    name: str
    tag: bytes
    wire: int
    encode: Callable[[Any], Iterator[bytes]]
    decode: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]


@functools.cache
def _fields(message: type[Message]) -> dict[int, _Field]:
    hints = typing.get_type_hints(message, include_extras=True)
    found = {}
    for name, hint in hints.items():
        kind, number = typing.get_args(hint)
        found[number] = _field(name, number, kind)
    return found


def _field(name: str, number: int, kind: Any) -> _Field:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[0] is int:
        return _Field(name, _tag(number, _BYTES), _BYTES, _pack, _unpack, _extend)
    if origin is tuple:
        one = _scalar(arguments[0])
        tag = _tag(number, one.wire)
        return _Field(name, tag, one.wire, lambda items: map(one.encode, items), one.decode, _append)
    if origin is dict:
        one = _scalar(arguments[1])
        return _Field(
            name, _tag(number, _BYTES), _BYTES,
            lambda items: (_entry(key, one.encode(value)) for key, value in items.items()),
            functools.partial(_read_entry, value=one), _add_entry,
        )  # fmt: skip
    if origin in (Union, types.UnionType):  # a message that may be absent
        kind = next(item for item in arguments if item is not type(None))
    one = _scalar(kind)
    return _Field(
        name, _tag(number, one.wire), one.wire, lambda value: iter([one.encode(value)] if value else []), one.decode,
        lambda _old, new: new,
    )  # fmt: skip


def _pack(items: Iterable[int]) -> Iterator[bytes]:
    """Yield the numbers of a field in one piece, as it is written since version 3."""
    if packed := b"".join(map(_varint, items)):
        yield _length_delimited(packed)


def _unpack(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        found.append(_signed(value))
    return found


def _extend(old: list[int] | None, new: list[int]) -> list[int]:
    found = [] if old is None else old
    found += new
    return found


def _append(old: list[Any] | None, new: Any) -> list[Any]:
    """Append in place: a copy per value would be quadratic."""
    found = [] if old is None else old
    found.append(new)
    return found


class _Scalar(msgspec.Struct, frozen=True):
    wire: int
    encode: Callable[[Any], bytes]
    decode: Callable[[Any], Any]


def _scalar(kind: Any) -> _Scalar:
    if kind is str:
        return _Scalar(_BYTES, lambda value: _length_delimited(value.encode()), lambda data: data.decode())
    if kind is bytes:
        return _Scalar(_BYTES, _length_delimited, bytes)
    if kind is bool:
        return _Scalar(_VARINT, _varint, bool)
    if kind is int:
        return _Scalar(_VARINT, _varint, _signed)
    return _Scalar(_BYTES, lambda value: _length_delimited(value.encode()), kind.decode)


def _entry(key: str, value: bytes) -> bytes:
    """Return an entry of a map. An empty value is written too: some readers take a missing message for null."""
    return _length_delimited(_tag(1, _BYTES) + _length_delimited(key.encode()) + _tag(2, _BYTES) + value)


def _read_entry(data: bytes, *, value: _Scalar) -> tuple[str, Any]:
    found = {number: piece for number, wire, piece in _pieces(data) if wire == _BYTES}
    return found.get(1, b"").decode(), value.decode(found.get(2, b""))


def _add_entry(old: dict[str, Any] | None, new: tuple[str, Any]) -> dict[str, Any]:
    found = {} if old is None else old
    found[new[0]] = new[1]
    return found


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _length_delimited(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if 0 <= value <= 0x7F:
        return _SHORT[value]
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _pieces(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and raw value of each field."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            yield number, wire, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            size, at = _read_varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"invalid protocol buffer: field {number} is truncated or of an unknown wire type")
        yield number, wire, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 2**64 - 1, at + place + 1
    raise ValueError("invalid protocol buffer: unterminated varint")
