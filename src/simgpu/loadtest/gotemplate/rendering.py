"""Renders templates of YAML, and rejects variables whose text would add structure to it.

The text that the template itself has may be any YAML. The text of a variable may only be part of a scalar: with a plain
word in its place, the documents must have the same shape. So a value such as `a: b` or one with a line break is
rejected, unless the template quotes it (`YamlQuote`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simgpu import yaml_text
from simgpu.loadtest.gotemplate import executing
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.executing import Library, OutputPiece
from simgpu.loadtest.gotemplate.parsing import Node

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/=+-]*|")  # cannot be anything but part of a scalar
_PLACEHOLDER = "x"


class Template:
    """A parsed template of YAML."""

    def __init__(self, text: str, library: Library) -> None:
        self.nodes: tuple[Node, ...] = executing.parse(text, library)
        self._library = library

    def render(self, data: Mapping[str, Any]) -> str:
        """Return the text; raises TemplateError if a variable adds structure."""
        pieces = executing.execute(self.nodes, data, self._library)
        text = "".join(piece.text for piece in pieces)
        if any(piece.foreign and not _PLAIN.fullmatch(piece.text) for piece in pieces):
            _check_shape(text, pieces)
        return text

    def documents(self, data: Mapping[str, Any]) -> list[Any]:
        """Return the YAML documents of the text."""
        try:
            return yaml_text.parse_all(self.render(data))
        except TemplateError:
            raise
        except ValueError as error:
            raise TemplateError(str(error)) from None


def _check_shape(text: str, pieces: Sequence[OutputPiece]) -> None:
    neutral = "".join(_PLACEHOLDER if piece.foreign and piece.text else piece.text for piece in pieces)
    try:
        same = _shape(yaml_text.parse_all(text)) == _shape(yaml_text.parse_all(neutral))
    except ValueError:
        same = False
    if not same:
        suspects = (piece.text for piece in pieces if piece.foreign and not _PLAIN.fullmatch(piece.text))
        raise TemplateError(f"a variable changes the structure of the YAML; one of: {_listed(suspects)}")


def _listed(texts: Any) -> str:
    return ", ".join(repr(text[:60]) for text in list(dict.fromkeys(texts))[:5])


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    if isinstance(value, list):
        return tuple(_shape(item) for item in value)
    return None
