"""What `simgpu exec` reads of a server: pages of the GPUs of a pod, which become files for nvidia-smi."""

from __future__ import annotations

import base64
import shutil
from typing import Any

import msgspec

from simgpu import errors
from simgpu.app import executing
from simgpu.dashboard import answers
from simgpu.page import layout, mapping, mirror, writer
from tests.fixtures import pages
from tests.fuzz.inputs import watchers
from tests.fuzz.target import Target, awaited, encoded, scratch

_ASKED = executing.PodCommand("ns", "p", "", ["nvidia-smi"])


async def _pages(data: bytes) -> None:
    """Pages of a server are where nvidia-smi finds them, valid and without control characters; or it is reported."""
    root = scratch() / "gpus"
    shown = mirror.MirroredPages(root, stale=executing.STALE_SECONDS)
    try:
        found = await executing._read(watchers.Answers(data), _ASKED)
        if found.state != "running":
            str(executing._refused("nvidia-smi", found)).encode()
            return
        for _ in range(2):
            executing._show(shown, found)
        for page in found.pages:
            _check_page(writer.read(root / page.id / mapping.FILE))
        assert {path.name for path in root.iterdir()} == {page.id for page in found.pages}
    except errors.SimgpuError as error:
        str(error).encode()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _check_page(row: Any) -> None:
    assert row is not None
    assert not row["control"][0]
    for field in layout.PAGE:
        if field.type.startswith("S") and field.name not in ("boot", "control"):
            assert all(bytes(text).decode("ascii").replace("\0", "").isprintable() for text in row[field.name].ravel())


def _contained(*rows: Any) -> bytes:
    names = ("GPU-11111111-2222", "MIG-1")
    listed = [
        answers.GpuPage(name, base64.b64encode(row.tobytes()).decode()) for name, row in zip(names, rows, strict=False)
    ]
    return msgspec.json.encode(answers.ContainerGpus("running", time=1.5, container="main", pages=listed))


TARGETS = (
    Target(
        "pod-pages", awaited(_pages),
        (
            _contained(pages.cards("h200")[0]), _contained(*pages.hold(pages.cards("t4", 2, **pages.LOAD), 1)),
            *encoded(['{"state":"stopped","message":"it ended"}']),
        ),
        max_length=1 << 16,
    ),
)  # fmt: skip
