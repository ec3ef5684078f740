"""Instant queries of a Prometheus server."""

from __future__ import annotations

import asyncio
import math
import urllib.parse

import aiohttp
import msgspec

from simgpu import errors

MAX_BYTES = 32 << 20


class QueryError(errors.SimgpuError):
    """Prometheus did not answer, or rejected the query."""


class SeriesSample(msgspec.Struct, frozen=True):
    """One series of an answer, with its value."""

    labels: dict[str, str]
    value: float


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Result(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str = ""
    error: str = ""
    data: _Result = msgspec.field(default_factory=_Result)


async def instant(server: str, query: str, *, timeout_seconds: float = 30.0) -> list[SeriesSample]:
    """Return the samples of an instant query; those that are not finite are left out."""
    url = f"{server.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        body = await _fetch(url, timeout_seconds)
    except Exception as error:  # for malformed answers the HTTP library raises not only its own errors
        raise QueryError(f"{server}: {errors.printable(str(error)) or type(error).__name__}") from error
    if len(body) > MAX_BYTES:
        raise QueryError(f"{server}: the answer has more than {MAX_BYTES >> 20} MiB; ask for fewer series")
    return read(bytes(body), server)


async def _fetch(url: str, timeout_seconds: float) -> bytearray:
    """Return an answer, or the beginning of one that is too large."""
    body = bytearray()
    async with (
        asyncio.timeout(timeout_seconds),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_seconds)) as session,
        session.get(url) as response,
    ):
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MAX_BYTES:
                break
    return body


def read(body: bytes, server: str) -> list[SeriesSample]:
    """Return the samples in an answer of a server; raises `QueryError`."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QueryError(f"{server}: not an answer of Prometheus: {error}") from None
    if answer.status != "success":
        raise QueryError(f"{server}: {answer.error or answer.status}")
    samples = [SeriesSample(series.metric, _number(series.value[1])) for series in answer.data.result]
    return [sample for sample in samples if math.isfinite(sample.value)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
