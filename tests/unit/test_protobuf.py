"""Our protocol buffers against the real library."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from simgpu.node import dra_messages, messages, nri_messages, ttrpc
from simgpu.node.protobuf import Message

ALL = [
    item for module in (messages, dra_messages, nri_messages, ttrpc) for item in vars(module).values()
    if isinstance(item, type) and issubclass(item, Message) and item is not Message
]  # fmt: skip
_KINDS = {str: 9, bytes: 12, bool: 8, int: 3}


@functools.cache
def real(message: type[Message]) -> Any:
    """The library's class for a message of ours."""
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", package="test", syntax="proto3")
    for item in ALL:
        _describe(file.message_type.add(name=item.__name__), item)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call, unused-ignore]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test.{message.__name__}"))


def _describe(made: Any, message: type[Message]) -> None:
    for name, hint in typing.get_type_hints(message, include_extras=True).items():
        kind, number = typing.get_args(hint)
        field = made.field.add(name=name, number=number, label=1)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple:
            field.label, kind = 3, arguments[0]
        elif origin is types.UnionType:
            kind = arguments[0]
        elif origin is dict:
            entry = made.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=9)
            value = entry.field.add(name="value", number=2, label=1, type=_KINDS.get(arguments[1], 11))
            if value.type == 11:
                value.type_name = f".test.{arguments[1].__name__}"
            field.label, field.type, field.type_name = 3, 11, f".test.{message.__name__}.{entry.name}"
            continue
        field.type = _KINDS.get(kind, 11)
        if field.type == 11:
            field.type_name = f".test.{kind.__name__}"


def plain(message: Message) -> dict[str, Any]:
    """A message as the library's constructor takes it."""
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return plain(value) if isinstance(value, Message) else value


def made_of(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return st.lists(made_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(), made_of(arguments[1]), max_size=3)
    if origin is types.UnionType:
        return st.none() | made_of(arguments[0])
    if kind is int:
        return st.integers(-(2**63), 2**63 - 1)
    if kind in (str, bytes, bool):
        return st.from_type(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: made_of(typing.get_args(hint)[0]) for name, hint in hints.items()})


anything: st.SearchStrategy[Message] = st.one_of(*map(made_of, ALL))


@given(anything)
def test_the_real_library_reads_what_we_write(message: Message) -> None:
    assert real(type(message)).FromString(message.encode()) == real(type(message))(**plain(message))


@given(anything)
def test_we_read_what_the_real_library_writes(message: Message) -> None:
    assert type(message).decode(real(type(message))(**plain(message)).SerializeToString()) == message


@given(anything)
def test_what_a_newer_kubelet_adds_is_skipped(message: Message) -> None:
    added = b"\xfa\x01\x03new" + b"\xf8\x01\x07" + b"\xf9\x0112345678" + b"\xfd\x011234"  # fields 31, all kinds
    assert type(message).decode(added + message.encode() + added) == message


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_an_error_or_a_message(data: bytes) -> None:
    try:
        messages.AllocateRequest.decode(data)
    except ValueError:
        return


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\xff", b"\x0b", b"\x80" * 11])
def test_a_message_that_is_cut_short_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="invalid protocol buffer"):
        messages.AllocateRequest.decode(data)
