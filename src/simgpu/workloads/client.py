"""The client: finds the devices, sends the document, waits for the verdict."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgpu import errors, vocabulary

_LONGEST_ANSWER = 1 << 16


class Lost(errors.SimgpuError):
    """The connection went away before a verdict came."""


def devices_by_glob(pattern: str, index_regex: str | None) -> list[str]:
    """Base names of the files that match; with a regular expression, the device numbers in them."""
    found = sorted(glob.glob(pattern))  # noqa: PTH207 - the pattern may be absolute or not
    if not found:
        raise errors.InputError("--devices", f"{pattern!r} matches no file")
    names = [os.path.basename(path) for path in found]  # noqa: PTH119 - text, not files to open
    if index_regex is None:
        return names
    try:
        expression = re.compile(index_regex)
    except re.error as error:
        raise errors.InputError("--index-regex", f"{index_regex!r}: {error}") from None
    matches = [(path, expression.search(path)) for path in found]
    missing = [path for path, match in matches if match is None]
    if missing:
        raise errors.InputError("--index-regex", f"{index_regex!r} does not match {missing[0]}")
    return [match.group(1) if match.groups() else match.group(0) for _, match in matches if match]


def devices_by_name(names: str, max_index: int, environment: Mapping[str, str]) -> list[str]:
    """Names given; `INDEX` in them becomes the job's completion index, modulo `max_index`."""
    if max_index > 0:
        index = environment.get(vocabulary.COMPLETION_INDEX_ENV)
        if index is None or not re.fullmatch(r"-?\d{1,18}", index):
            raise errors.InputError("--max-index", f"needs JOB_COMPLETION_INDEX to be a number, and it is {index!r}")
        names = names.replace("INDEX", str(int(index) % max_index))
    return [name for name in names.split(",") if name]


def activities(text: str) -> list[dict[str, int]]:
    """`LOAD:FLUCTUATION:SECONDS`, several separated by commas."""
    result = []
    for item in text.split(","):
        parts = item.split(":")
        if len(parts) != 3 or not all(re.fullmatch(r"\d{1,9}", part.strip()) for part in parts):
            raise errors.InputError("--activity", f"{item!r}: must be LOAD:FLUCTUATION:SECONDS, whole numbers")
        load, fluctuation, seconds = (int(part) for part in parts)
        if load > 100 or fluctuation > load:
            raise errors.InputError("--activity", f"{item!r}: load is at most 100 and fluctuation at most load")
        result.append({"Load": load, "Fluctuation": fluctuation, "Seconds": seconds})
    return result


async def run(document: dict[str, Any], socket: Path, *, reconnect: float = 0.0) -> tuple[int, str]:
    """Send the document and wait. With `reconnect`, a lost connection is made again within so many seconds."""
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
                raise errors.SimgpuError(f"{socket}: {error.strerror or error}; is the exporter running?") from None
        if loop.time() >= until:
            raise Lost(f"{socket}: the exporter did not come back within {reconnect:g} s")
        await asyncio.sleep(min(0.2, reconnect / 10))


async def _once(document: dict[str, Any], socket: Path) -> tuple[int, str]:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(json.dumps(document).encode())
        await writer.drain()
        answer = await reader.read(_LONGEST_ANSWER)
    except (ConnectionError, EOFError):
        answer = b""
    finally:
        writer.close()
    if not answer:
        raise Lost(f"{socket}: the exporter went away")
    return verdict(answer)


def verdict(answer: bytes) -> tuple[int, str]:
    """Exit code and message of either protocol."""
    text = answer.decode(errors="replace").strip()
    if re.fullmatch(r"-?\d{1,9}", text):
        return int(text), ""
    try:
        value = json.loads(text)
        if value.get("lost"):
            raise Lost(str(value["message"]))
        return int(value["exit"]), str(value["message"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise errors.SimgpuError(f"the exporter's answer makes no sense: {text[:80]!r}") from None
