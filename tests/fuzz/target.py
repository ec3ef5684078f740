"""A target in Python: an input from outside, as bytes, and the check that whatever it holds does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.fixtures import fuzzing

ROOT = Path(__file__).parent.parent.parent
CORPUS = Path(__file__).parent / "corpus"
SCRATCH_ENV = "SIMGPU_FUZZ_SCRATCH"
MAX_LENGTH = 1 << 14  # bytes of an input
DEEP = b'"deep":' + b"[" * 3000 + b"]" * 3000 + b","  # a member that only recursion could read


class Target(NamedTuple):
    """An input: `check` raises if it does harm, `examples` are inputs to start from, `words` what they are made of."""

    name: str
    check: Callable[[bytes], object]
    examples: tuple[bytes, ...]
    words: tuple[str, ...] = ()
    max_length: int = MAX_LENGTH

    def dictionary(self) -> str:
        """Return the words in the format of libFuzzer."""
        words = dict.fromkeys((*self.words, *fuzzing.SNIPPETS))
        return "".join(f'"{_escaped(word)}"\n' for word in words if len(word.encode()) <= _MAX_WORD)

    def seeds(self) -> Iterator[bytes]:
        """Yield inputs to start from: examples, and what was kept of earlier runs."""
        yield from self.examples
        yield from (data.replace(b"{", b"{" + DEEP, 1) for data in self.examples[:4] if b"{" in data)
        yield from kept(self.name)


_MAX_WORD = 64  # bytes: libFuzzer takes no longer ones


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def kept(name: str) -> Iterator[bytes]:
    """Yield the kept inputs of a target."""
    for path in sorted((CORPUS / name).glob("*")):
        yield path.read_bytes()


def text(data: bytes) -> str:
    """Return bytes as a text that came from the API server or a file: what is not UTF-8 is replaced."""
    return data.decode("utf-8", "replace")


def files(*patterns: str) -> tuple[bytes, ...]:
    """Return the contents of files in the project's tree."""
    found = [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"no file is like {patterns}")
    return tuple(data for data in found if len(data) <= MAX_LENGTH)


def encoded(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Return texts as inputs."""
    return tuple(item.encode() for item in texts)


def numbered(texts: Iterable[Iterable[str | bytes]]) -> tuple[bytes, ...]:
    """Return inputs whose first byte is the number of what reads the rest."""
    return tuple(
        bytes([number]) + (item.encode() if isinstance(item, str) else item)
        for number, items in enumerate(texts)
        for item in items
    )


def split(data: bytes, count: int) -> tuple[int, bytes]:
    """Return which of so many readers the first byte names, and the rest."""
    return (data[0] % count, data[1:]) if data else (0, b"")


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all inputs: one for each would take longer than most checks."""
    return asyncio.new_event_loop()


def awaited(check: Callable[[bytes], Coroutine[Any, Any, object]]) -> Callable[[bytes], object]:
    """Return a check that runs in the event loop."""
    return lambda data: loop().run_until_complete(check(data))


_LOGGERS = tuple(map(logging.getLogger, ("simgpu", "aiohttp", "asyncio", "grpclib")))


@contextlib.contextmanager
def no_error_logged() -> Iterator[None]:
    """Check that no failure is logged meanwhile: servers go on after one."""
    found = _Errors()
    for logger in _LOGGERS:
        logger.addHandler(found)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in _LOGGERS:
            logger.removeHandler(found)
            logger.propagate = True
    assert not found.records, found.format(found.records[0])


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@functools.cache
def scratch() -> Path:
    """Return a folder for files that targets read, below the one that `guided` removes at its end."""
    return Path(tempfile.mkdtemp(dir=os.environ[SCRATCH_ENV]))
