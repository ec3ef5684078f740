"""The border to the HTTP library: whatever it raises is an error of ours."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import ssl
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import client_exceptions, http_exceptions
from yarl import URL

from simgpu.kube import errors, wire

_KEY = aiohttp.client_reqrep.ConnectionKey("h", 1, False, True, None, None, None)
_INFO = aiohttp.RequestInfo(URL("http://h"), "GET", None, URL("http://h"))  # type: ignore[arg-type]


def kinds() -> Iterator[type[Exception]]:
    """All exceptions that the library defines, and those that it lets through from below."""
    for module in (client_exceptions, http_exceptions, aiohttp, ssl, asyncio, builtins):
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Exception) and not issubclass(kind, Warning):
                yield kind


_ARGUMENTS: tuple[tuple[object, ...], ...] = (
    (_KEY, OSError(1, "x")), (_INFO, ()), ("path", _KEY, OSError(1, "x")), ("x", [ValueError()]), (), ("x",),
    ("x", "y"), ("x", 0, 1, "y"), (b"x", b"y", "h", 1), ("utf-8", b"x", 0, 1, "y"), ("x", "y", 0, 1, "z"),
)  # fmt: skip


def raised(kind: type[Exception]) -> Exception:
    """An instance that can be printed, whatever its constructor asks for."""
    for arguments in _ARGUMENTS:
        try:
            error = kind(*arguments)
            str(error)
        except (TypeError, AttributeError):
            continue
        return error
    raise AssertionError(f"no arguments for {kind}")


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=repr))
def test_every_exception_of_the_library_is_a_lost_connection(kind: type[Exception]) -> None:
    error = raised(kind)
    with (
        pytest.raises(errors.ConnectError, match=r"^https://server: ") as found,
        wire.lost_connection("https://server"),
    ):
        raise error
    assert found.value.__cause__ is error
    connecting = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    assert found.value.sent == (not connecting)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
def test_what_ends_a_task_is_no_lost_connection(kind: type[BaseException]) -> None:
    with pytest.raises(kind), wire.lost_connection("https://server"):
        raise kind


def test_our_own_errors_stay_what_they_are() -> None:
    with pytest.raises(errors.NotFound), wire.lost_connection("https://server"):
        raise errors.NotFound(404, "NotFound", "no such pod")
