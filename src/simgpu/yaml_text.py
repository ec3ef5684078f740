"""Parses YAML of files, ConfigMaps and annotations: safely, with limits, and without duplicate keys.

PyYAML itself composes nested values by recursion in C, which crashes the process if they are nested deeply, and does
not limit how much aliases and merge keys expand. Here nodes are composed from its events in a loop that counts values;
an aliased value counts each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MAX_LENGTH = 4 << 20  # of a text, and of all its scalars together
MAX_DEPTH = 64
MAX_VALUES = 250_000
_MAX_NUMBER = 64  # characters
_SHORT = 20  # characters: the most digits of a 64-bit integer
_MAX_TAG = 256  # characters, after expansion of its prefix
_MAX_MERGES = 64  # per mapping
_MAX_MESSAGE = 300

_PREFIX = "tag:yaml.org,2002:"
_MERGE, _INT = _PREFIX + "merge", _PREFIX + "int"
_NUMBERS = frozenset((_INT, _PREFIX + "float", _PREFIX + "timestamp"))
_COLLECTIONS = {
    yaml.MappingStartEvent: (yaml.MappingNode, _PREFIX + "map"),
    yaml.SequenceStartEvent: (yaml.SequenceNode, _PREFIX + "seq"),
}

# PyYAML's constructors raise these for a value that does not fit its tag, such as an impossible date.
_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str | bytes, *, repeats: bool = False) -> Any:
    """Parse a text with one document; with `repeats`, duplicate keys are allowed and the last one counts.

    Raises `ValueError` with a one-line message if the text is not YAML or exceeds a limit.
    """
    found = _read(text, max_documents=1, repeats=repeats)
    return found[0] if found else None


def parse_all(text: str | bytes) -> list[Any]:
    """Parse all documents of a text."""
    return _read(text, max_documents=MAX_VALUES, repeats=False)


def parse_file(path: Path, *, repeats: bool = False) -> Any:
    """Parse a file; no more of it is read than the maximum length."""
    with path.open("rb") as file:
        return parse(file.read(MAX_LENGTH + 1), repeats=repeats)


def _read(text: str | bytes, *, max_documents: int, repeats: bool) -> list[Any]:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"larger than {MAX_LENGTH >> 20} MiB")
    found: list[Any] = []
    try:
        loader = _Loader(text, repeats=repeats)
        try:
            for node in loader.documents():
                if len(found) == max_documents:
                    raise _error(node, "a second document begins here; only one is expected")
                found.append(loader.construct_document(node))
        finally:
            loader.dispose()
    except _LimitExceeded as error:
        raise ValueError(_one_line(error)) from None
    except _ERRORS as error:
        raise ValueError(f"not YAML: {_one_line(error)}") from None
    return found


def _one_line(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."


def _error(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, problem, place.start_mark)


class _LimitExceeded(yaml.MarkedYAMLError):
    """A limit is exceeded."""

    def __init__(self, place: Any, problem: str) -> None:
        super().__init__(None, None, problem, place.start_mark)


class _Anchored:
    """An anchored value and its nesting depth; `node` is set once it is complete."""

    __slots__ = ("length", "levels", "node", "values")

    def __init__(self, values: int, length: int) -> None:
        self.node: yaml.Node | None = None
        self.levels = 0
        self.values = values
        self.length = length


class _Open:
    """A collection that is being read, and its nesting depth so far; `keys` are those of a mapping."""

    __slots__ = ("anchored", "children", "keys", "levels", "merges", "node")

    def __init__(self, anchored: _Anchored | None, node: yaml.CollectionNode) -> None:
        self.anchored = anchored
        self.node = node
        self.children: list[yaml.Node] = []
        self.keys: set[str] | None = set() if type(node) is yaml.MappingNode else None
        self.levels = 1
        self.merges = 0

    def contain(self, levels: int) -> None:
        """Add a child of that many levels."""
        self.levels = max(self.levels, levels + 1)


class _Loader(_Safe):  # type: ignore[misc]  # which of the two it is depends on how PyYAML was built
    def __init__(self, text: str | bytes, *, repeats: bool) -> None:
        super().__init__(text)
        self._repeats = repeats
        self._values = self._length = 0  # so far, aliases included
        self._anchored: dict[str, _Anchored] = {}
        self._plain: dict[str, yaml.ScalarNode] = {}  # by text: most keys occur many times in a document

    def documents(self) -> Iterator[yaml.Node]:
        """Yield the root node of each document."""
        while not isinstance(event := self.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchored.clear()
                yield self._compose()

    def _compose(self) -> yaml.Node:
        """Return the node that begins here, with its children."""
        opened: list[_Open] = []
        while True:
            event = self.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                node = self._scalar(event)
            elif kind in _COLLECTIONS:
                _check_depth(event, len(opened) + 1)
                opened.append(_Open(self._anchor(event), self._collection(event)))
                continue
            elif kind is yaml.AliasEvent:
                node = self._alias(event, opened)
            else:
                node = self._closed(opened, event)
            if not opened:
                return node
            inner = opened[-1]
            if inner.keys is not None and not len(inner.children) & 1:
                self._check_key(inner, inner.keys, node, event)
            inner.children.append(node)

    def _scalar(self, event: Any) -> yaml.Node:
        value = event.value
        plain = event.tag is None and event.anchor is None and event.implicit[0]
        if plain and value in self._plain:
            self._count(event, 1, len(value))
            return self._plain[value]
        anchored = self._anchor(event)
        self._count(event, 1, len(value))
        tag = self._tag(event)
        if tag in _NUMBERS and len(value) > _SHORT:
            _check_number(event, tag)
        node = yaml.ScalarNode(tag, value, event.start_mark, event.end_mark, event.style)
        if plain:
            self._plain[value] = node
        if anchored is not None:
            self._name(anchored, node)
        return node

    def _tag(self, event: Any) -> str:
        if event.tag is not None and event.tag != "!":
            return _bounded(event)
        tag: str = self.resolve(yaml.ScalarNode, event.value, event.implicit)
        return tag

    def _collection(self, event: Any) -> yaml.CollectionNode:
        self._count(event, 1, 0)
        kind, tag = _COLLECTIONS[type(event)]
        if event.tag is not None and event.tag != "!":
            tag = _bounded(event)
        return kind(tag, [], event.start_mark, None, event.flow_style)

    def _alias(self, event: Any, opened: list[_Open]) -> yaml.Node:
        anchored = self._anchored.get(event.anchor)
        if anchored is None:
            raise _error(event, "alias of an undefined anchor")
        if anchored.node is None:
            raise _LimitExceeded(event, "alias of a value that contains it")
        self._count(event, anchored.values, anchored.length)
        _check_depth(event, len(opened) + anchored.levels)
        opened[-1].contain(anchored.levels)  # an alias is never a whole document: its anchor precedes it
        return anchored.node

    def _count(self, place: Any, values: int, length: int) -> None:
        self._values += values
        self._length += length
        if self._values > MAX_VALUES:
            raise _LimitExceeded(place, f"more than {MAX_VALUES} values, those of aliases included")
        if self._length > MAX_LENGTH:
            raise _LimitExceeded(place, f"more than {MAX_LENGTH >> 20} MiB of text, that of aliases included")

    def _anchor(self, event: Any) -> _Anchored | None:
        """Register the anchor of an event, if it has one; until the value is complete, with the counts before it."""
        if event.anchor is None:
            return None
        if event.anchor in self._anchored:
            raise _error(event, "duplicate anchor")
        found = self._anchored[event.anchor] = _Anchored(self._values, self._length)
        return found

    def _name(self, anchored: _Anchored, node: yaml.Node) -> None:
        anchored.node = node
        anchored.values = self._values - anchored.values
        anchored.length = self._length - anchored.length

    def _closed(self, opened: list[_Open], event: Any) -> yaml.Node:
        done = opened.pop()
        node, children = done.node, done.children
        node.value = children if done.keys is None else list(zip(children[::2], children[1::2], strict=True))
        node.end_mark = event.end_mark
        if opened:
            opened[-1].contain(done.levels)
        if done.anchored is not None:
            done.anchored.levels = done.levels
            self._name(done.anchored, node)
        return node

    def _check_key(self, inner: _Open, keys: set[str], key: yaml.Node, event: Any) -> None:
        if type(key) is not yaml.ScalarNode:
            return
        if key.tag == _MERGE:
            inner.merges += 1
            if inner.merges > _MAX_MERGES:
                raise _LimitExceeded(event, f"more than {_MAX_MERGES} merge keys in a mapping")
        elif key.value in keys and not self._repeats:
            raise _error(event, f"duplicate key {key.value[:64]}")
        else:
            keys.add(key.value)


def _check_depth(event: Any, levels: int) -> None:
    if levels > MAX_DEPTH:
        raise _LimitExceeded(event, f"nested more than {MAX_DEPTH} levels deep")


def _bounded(event: Any) -> str:
    """Return the tag of an event."""
    tag: str = event.tag
    if len(tag) > _MAX_TAG:
        raise _LimitExceeded(event, f"a tag of {len(tag)} characters; at most {_MAX_TAG}")
    return tag


def _check_number(event: Any, tag: str) -> None:
    """Reject numbers that take long to parse, and integers of more than 64 bits.

    As keys of a mapping such integers can be chosen so that all have the same hash.
    """
    max_length = _SHORT if tag == _INT else _MAX_NUMBER
    if len(event.value) > max_length:
        raise _LimitExceeded(event, f"a number or time of {len(event.value)} characters; at most {max_length}")
