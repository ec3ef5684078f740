"""The client of the workload socket: finds devices, sends a document, waits for the exit code."""

from __future__ import annotations

import asyncio
import glob
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simgpu import errors, vocabulary

_MAX_ANSWER_BYTES = 1 << 16


class Lost(errors.SimgpuError):
    """The connection closed before an answer came."""


class Unreachable(errors.SimgpuError):
    """No exporter listens on the socket."""


def devices_by_glob(pattern: str, index_regex: str | None) -> list[str]:
    """Return the base names of matching files; with a regular expression, its first group or whole match in each."""
    found = sorted(glob.glob(pattern))  # noqa: PTH207 - the pattern may be absolute or not
    if not found:
        raise errors.InputError("--devices", f"{pattern!r} matches no file")
    names = [os.path.basename(path) for path in found]  # noqa: PTH119 - text, not files to open
    if index_regex is None:
        return names
    try:
        expression = re.compile(index_regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise errors.InputError("--index-regex", f"{index_regex!r}: {error}") from None
    matches = ((path, expression.search(path)) for path in found)
    indices = {path: match[min(1, expression.groups)] if match else None for path, match in matches}
    missing = [path for path, index in indices.items() if index is None]
    if missing:
        raise errors.InputError("--index-regex", f"{index_regex!r} does not match {missing[0]}")
    return [index for index in indices.values() if index is not None]


def devices_by_name(names: str, max_index: int, environment: Mapping[str, str]) -> list[str]:
    """Return the names of a comma-separated list; `INDEX` becomes the job's completion index modulo `max_index`."""
    if max_index > 0:
        index = environment.get(vocabulary.COMPLETION_INDEX_ENV)
        if index is None or not re.fullmatch(r"-?\d{1,18}", index):
            raise errors.InputError("--max-index", f"JOB_COMPLETION_INDEX must be a number, not {index!r}")
        names = names.replace("INDEX", str(int(index) % max_index))
    return [name for name in names.split(",") if name]


def activities(text: str) -> list[dict[str, int]]:
    """Return the activities of a comma-separated list of `LOAD:FLUCTUATION:SECONDS`, load in percent."""
    result = []
    for item in text.split(","):
        parts = [part.strip() for part in item.split(":")]
        if len(parts) != 3 or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
            raise errors.InputError("--activity", f"{item!r}: must be LOAD:FLUCTUATION:SECONDS, whole numbers")
        load, fluctuation, seconds = (int(part) for part in parts)
        if load > 100 or fluctuation > load:
            raise errors.InputError("--activity", f"{item!r}: load is at most 100 and fluctuation at most load")
        result.append({"Load": load, "Fluctuation": fluctuation, "Seconds": seconds})
    return result


def limits(items: Iterable[str], *, field: str) -> dict[str, float]:
    """Return limits by name, each given as `NAME=NUMBER`."""
    found: dict[str, float] = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or not math.isfinite(number):
            raise errors.InputError(field, f"{item!r}: must be NAME=NUMBER")
        found[name] = number
    return found


async def run(document: dict[str, Any], socket: Path, *, reconnect: float = 0.0) -> tuple[int, str]:
    """Send the document, wait, and return exit code and message; for `reconnect` seconds, retry a lost connection."""
    until = 0.0
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await _once(document, socket)
        except Lost:
            if not reconnect:
                raise
            until = loop.time() + reconnect
        except OSError as error:
            if not until:
                raise Unreachable(f"{socket}: {error.strerror or error}; is the exporter running?") from None
        if loop.time() >= until:
            raise Lost(f"{socket}: could not reconnect to the exporter within {reconnect:g} s")
        await asyncio.sleep(min(0.2, reconnect / 10))


async def _once(document: dict[str, Any], socket: Path) -> tuple[int, str]:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(json.dumps(document).encode())
        await writer.drain()
        answer = await reader.read(_MAX_ANSWER_BYTES)
    except (ConnectionError, EOFError):
        answer = b""
    finally:
        writer.close()
    if not answer:
        raise Lost(f"{socket}: the exporter closed the connection")
    return verdict(answer)


def verdict(answer: bytes) -> tuple[int, str]:
    """Return exit code and message of an answer in either protocol."""
    text = answer.decode(errors="replace").strip()
    if re.fullmatch(r"-?\d{1,9}", text):
        return int(text), ""
    try:
        value = json.loads(text)
        if value.get("lost"):
            raise Lost(str(value["message"]))
        return int(value["exit"]), str(value["message"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise errors.SimgpuError(f"invalid answer from the exporter: {text[:80]!r}") from None
