"""Captures: the output of `nvidia-smi -q -x`, as texts by element.

Captures are untrusted input: their size, number of elements and depth are bounded. The document type that
nvidia-smi names is accepted and never fetched; declarations and entities of a document's own are rejected. Captures of
every driver have the same form, but not the same elements; what they mean is left to `importing`.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.parsers import expat

import msgspec

from simgpu import errors

MAX_BYTES: Final = 16 * 2**20
MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 400_000

_ROOT: Final = "nvidia_smi_log"
_MEMORY_CLOCK: Final = "supported_clocks/supported_mem_clock/value"
_GRAPHICS_CLOCK: Final = "supported_clocks/supported_mem_clock/supported_graphics_clock"

# What nvidia-smi prints for features that a card lacks, and for values that it could not read.
_NOTHING: Final = {"N/A", "Not Supported"}
_UNKNOWN: Final = {
    "", "Unknown Error", "GPU requires reset", "Insufficient Permissions", "Not Found", "ERR!",
    "Requested functionality has been deprecated",
}  # fmt: skip

_NUMBER: Final = re.compile(r"(-?[0-9]{1,9}(?:\.[0-9]{1,6})?)(.*)")


class SupportedClocks(msgspec.Struct):
    """A memory clock that can be set, and the graphics clocks that go with it, all in MHz."""

    memory: float
    graphics: list[float]


class CapturedGpu(msgspec.Struct, frozen=True):
    """One card of a capture: its elements' texts by path, and the clocks that it supports."""

    index: int
    texts: dict[str, str] = {}
    clocks: list[SupportedClocks] = []

    def where(self, path: str) -> str:
        """Return an element's path as messages show it."""
        return f"gpu[{self.index}]/{path}"

    def text(self, *paths: str) -> str | None:
        """Return the text of the first of these elements that has a value; None if none has."""
        for path in paths:
            text = _plain(self.texts.get(path, ""))
            if text not in _NOTHING | _UNKNOWN:
                return text
        return None

    def lacks(self, path: str) -> bool:
        """Return whether the capture states that the card lacks a feature; a missing element does not."""
        return _plain(self.texts.get(path, "")) in _NOTHING

    def number(self, *paths: str, unit: str) -> float | None:
        """Return the number of the first of these elements that has a value; raises `InputError` for another unit."""
        for path in paths:
            if (text := self.text(path)) is not None:
                return _number(text, unit, self.where(path))
        return None

    def short_text(self, path: str, *, max_length: int) -> str | None:
        """Return a text of printable ASCII; raises `InputError` for any other, or a longer one."""
        text = self.text(path)
        if text is not None and (len(text) > max_length or not (text.isascii() and text.isprintable())):
            raise errors.InputError(self.where(path), f"must be at most {max_length} printable ASCII characters")
        return text


class Capture(msgspec.Struct, frozen=True):
    """A machine's cards, in their order, and its driver."""

    driver: str | None
    gpus: tuple[CapturedGpu, ...]


def parse(content: bytes) -> Capture:
    """Return the cards of a capture; raises `InputError` if the content is not one."""
    if len(content) > MAX_BYTES:
        raise errors.InputError("capture", f"larger than {MAX_BYTES // 2**20} MiB, which no nvidia-smi prints")
    reader = _Reader()
    try:
        reader.parser.Parse(content, True)  # noqa: FBT003 - this is all of it
    except expat.ExpatError as error:
        problem = f"not XML (line {error.lineno}: {expat.ErrorString(error.code)})"
        raise errors.InputError("capture", f"{problem}; write one with: nvidia-smi -q -x") from None
    except (ValueError, LookupError) as error:  # an unknown encoding
        raise errors.InputError("capture", f"not XML ({error}); write one with: nvidia-smi -q -x") from None
    if not reader.gpus:
        raise errors.InputError("capture", f"there is no <gpu> in its <{_ROOT}>")
    return Capture(reader.driver, tuple(reader.gpus))


class _Reader:
    """Handles the parser's events. Only elements without children have texts, and of several the first counts."""

    def __init__(self) -> None:
        self.driver: str | None = None
        self.gpus: list[CapturedGpu] = []
        self._open: list[str] = []
        self._count = 0
        self._texts: list[str] | None = None
        self.parser = expat.ParserCreate()
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._document_type
        self.parser.EntityDeclHandler = self._entity
        self.parser.SkippedEntityHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _document_type(self, _name: str, _system: str | None, _public: str | None, declares: int) -> None:
        if declares:
            raise errors.InputError("<!DOCTYPE>", "must not declare anything; nvidia-smi names its DTD only")

    def _entity(self, name: str, *_: Any) -> None:
        raise errors.InputError(f"&{name};", "entities are not allowed, but for &amp; &lt; &gt; &apos; &quot;")

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS:
            raise errors.InputError("capture", f"has more than {MAX_ELEMENTS} elements")
        if len(self._open) == MAX_DEPTH:
            raise errors.InputError(f"<{name}>", f"lies more than {MAX_DEPTH} elements deep")
        if not self._open and name != _ROOT:
            raise errors.InputError(f"<{name}>", f"must be <{_ROOT}>, which nvidia-smi -q -x prints")
        self._open.append(name)
        self._texts = []
        if self._open == [_ROOT, "gpu"]:
            self.gpus.append(CapturedGpu(len(self.gpus), {}, []))

    def _characters(self, text: str) -> None:
        if self._texts is not None:
            self._texts.append(text)

    def _end(self, _name: str) -> None:
        if self._texts is not None:
            self._take("".join(self._texts).strip())
        self._texts = None
        self._open.pop()

    def _take(self, text: str) -> None:
        _, *below = self._open or [""]
        if below == ["driver_version"]:
            self.driver = None if _plain(text) in _NOTHING | _UNKNOWN else text
        if below[:1] == ["gpu"] and len(below) > 1:
            self._take_of_gpu(self.gpus[-1], "/".join(below[1:]), text)

    def _take_of_gpu(self, gpu: CapturedGpu, path: str, text: str) -> None:
        if path == _MEMORY_CLOCK:
            gpu.clocks.append(SupportedClocks(_number(text, "MHz", gpu.where(path)), []))
        elif path == _GRAPHICS_CLOCK:
            if not gpu.clocks:
                raise errors.InputError(gpu.where(path), "must come after the <value> of its memory clock")
            gpu.clocks[-1].graphics.append(_number(text, "MHz", gpu.where(path)))
        else:
            gpu.texts.setdefault(path, text)


def _plain(text: str) -> str:
    """Removes the brackets in which some versions print missing values."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _number(text: str, unit: str, where: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lstrip(" ") != unit:
        expected = f"a number and {unit}, such as '5 {unit}'" if unit else "a number, such as '5'"
        shown = text if len(text) < 40 else f"{text[:40]}..."
        raise errors.InputError(where, f"{shown!r}: must be {expected}, or N/A")
    return float(found[1])
