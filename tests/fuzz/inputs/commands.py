"""What commands are given: options with a syntax of their own, addresses, and archives that they download."""

from __future__ import annotations

import glob
import gzip
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from simgpu import errors, vocabulary
from simgpu.app import executing
from simgpu.cli import agent, exporter
from simgpu.cluster import archives, releases
from simgpu.fakedev import flags, workload
from simgpu.machines import documents
from simgpu.top import feeds
from simgpu.topology import inline
from simgpu.web import server
from simgpu.workloads import client
from tests.fixtures import boxes, mirror
from tests.fuzz.target import Target, numbered, scratch, split

_MEMBER, _MAX_BYTES = "simgpu/program", 1 << 16
_ABSOLUTE = Path(tempfile.gettempdir()) / "simgpu-fuzz-archives"  # a member that leads to where anyone may write


def _url(given: str) -> None:
    assert feeds.base_of(given, field="URL").startswith(("http://", "https://"))


def _address(given: str) -> None:
    _, port = server.parse_address(given, field="--listen")
    assert 0 <= port < 1 << 16


def _mirror(given: str) -> None:
    releases.choose(given).host("x/y")


def _activities(given: str) -> None:
    documents.parse({"name": "x", "profile": client.activities(given)})


def _limits(given: str) -> None:
    found = client.limits(given.split(","), field="--limit")
    assert all(map(math.isfinite, found.values()))


def _devices(given: str) -> None:
    names, _, index = given.partition("\n")
    assert "" not in client.devices_by_name(names, 7, {"JOB_COMPLETION_INDEX": index})


def _gpus(given: str) -> None:
    assert inline.parse(given, boxes.CATALOG, field="--gpus").gpus


def _exporter(given: str) -> None:
    _flags(given, flags.EXPORTER)


def _workload(given: str) -> None:
    found = _flags(given, flags.WORKLOAD)
    found |= {"json": "", "devnames": found["devnames"] or "card0"}  # nothing of this machine's files
    document = workload.document(found, {"JOB_COMPLETION_INDEX": "3"})
    documents.parse(document)


def _flags(given: str, known: flags.Known) -> flags.Options:
    found = flags.parse(given.split("\n"), known)
    assert found.keys() == known.keys()
    return found


def _index(given: str) -> None:
    """Patterns that need exponential time are left out: who gives one waits for it."""
    if sum(map(given.count, "*+{")) > 1:
        return
    with mock.patch.object(glob, "glob", return_value=["card0", "card1"]):
        found = client.devices_by_glob("card*", given)
    assert [isinstance(name, str) for name in found] == [True, True]


def _pod(given: str) -> None:
    owner = exporter._pod(given)
    documents.parse({"name": "x", "profile": client.activities("1:1:1"), "pod": owner})


def _components(given: str) -> None:
    assert agent._components(given) <= {*vocabulary.COMPONENTS}


def _exec(given: str) -> None:
    pod, namespace, container = (f"{given}\0\0").split("\0")[:3]
    path = executing.gpus_path(executing.PodCommand(namespace, pod, container, ("nvidia-smi",)))
    assert path.count("/") == 4
    path.encode("ascii")


_READERS: tuple[Callable[[str], None], ...] = (
    _url, _address, _mirror, _activities, _limits, _devices, _gpus, _exporter, _workload, _index, _pod, _components,
    _exec,
)  # fmt: skip


def _option(data: bytes) -> None:
    """An option has a value, or is refused with a reason."""
    number, rest = split(data, len(_READERS))
    try:
        _READERS[number](os.fsdecode(rest))
    except (errors.SimgpuError, flags.FlagError) as error:
        str(error).encode("utf-8", "backslashreplace")


def _archive(data: bytes) -> None:
    """An archive has its member, of a limited size, or is reported; no other file is made."""
    number, rest = split(data, 2)
    folder = scratch() / "unpacked" / "here"
    folder.mkdir(parents=True, exist_ok=True)
    archive, target = scratch() / "archive.tar.gz", folder / "program"
    archive.write_bytes(rest if number else gzip.compress(rest, 1))
    _ABSOLUTE.unlink(missing_ok=True)
    before = _surroundings()
    try:
        archives.extract(archive, _MEMBER, target, max_bytes=_MAX_BYTES)
    except archives.ArchiveError as error:
        str(error).encode()
    made = _surroundings() - before
    assert made <= {str(target)}, made
    if made:
        assert not target.is_symlink()
        assert target.stat().st_size <= _MAX_BYTES
        target.unlink()


def _surroundings() -> set[str]:
    """Return the paths of all that is in the folder for files, and of what is outside of it and should not be."""
    found = {f"{folder}/{name}" for folder, inner, names in os.walk(scratch()) for name in (*inner, *names)}
    return found | {str(_ABSOLUTE)} if _ABSOLUTE.exists() else found


_PACKED = mirror.archive(**{"README": b"x", _MEMBER: b"program" * 9})
_ELSEWHERE = {"../x": b"x", "../../x": b"x", str(_ABSOLUTE): b"x"}
_LEADING_OUT = (mirror.archive(**_ELSEWHERE), mirror.archive(**_ELSEWHERE, **{_MEMBER: b"program"}))
_TEXTS = (
    ["http://127.0.0.1:9400/metrics", "[::1]:80", "example.com/api/v1/fleet"], ["127.0.0.1:9400", ":80", "[::1]:0"],
    ["https://mirror:1/releases"], ["98:1:0,20:5:30"], ["memory=8e9,runtime=60"], ["cardINDEX,card1\n3"],
    ["h200:4,t4:2"], ["-count\n0x4\n--address=:1\n-wl-all\nx"], ["-activity=98:1:0\n-limit\na=1\n-repeat\n3"],
    [r"card(\d)", "(1)|.", "."], ["ns/pod/main"], ["driver,labels"], ["pod/a\0ns\0main"],
)  # fmt: skip

TARGETS = (
    Target("command-options", _option, numbered(_TEXTS), (*flags.EXPORTER, *flags.WORKLOAD, "INDEX"), max_length=1024),
    Target("archives", _archive, numbered([[*map(gzip.decompress, (_PACKED, *_LEADING_OUT))], [_PACKED]])),
)
