"""What workloads send: documents, the bytes of the socket, and what its server answers to our own client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
import socket
from collections.abc import Sequence

from simgpu import errors
from simgpu.machines import box, documents
from simgpu.page import showing
from simgpu.topology.devices import Device
from simgpu.workloads import client, receiving
from simgpu.workloads.server import WorkloadServer
from tests.fixtures import annotated, boxes
from tests.fuzz.target import Target, awaited, encoded, files, loop, no_error_logged, scratch

_SETTINGS = tuple(
    json.dumps({"Set": {"Device": "nvidia0", "Setting": name, "Values": values}})
    for name, values in (("power_limit", [300_000, 0]), ("sm_clocks", [210, 1500]), ("mig_mode", [1, 0]))
)
_PROTOCOL = '{"Protocol": 2, "Name": "x", "Profile": [{"Load": 50}], "Devices": ["nvidia0"], "Pod": {"Name": "p"}}'


def _document(data: bytes) -> None:
    """A document runs with finite values and leaves nothing behind, or is refused with the field."""
    try:
        document = receiving.decode(data)
    except (errors.InputError, receiving.Incomplete):
        return
    documents.protocol(document)
    with contextlib.suppress(errors.InputError):
        if documents.is_setting(document):
            documents.setting(document)
            return
        wanted = documents.read(document)
        mixed = boxes.mixed()
        numbers = mixed.admit(wanted.profile, [0, 1, 2], pod=wanted.pod)
        for second in (1.0, 2.5, 3600.0 if _chosen(data) else 10.0):
            mixed.step(second, clock=second)
            boxes.check_finite(mixed)
        mixed.drop(numbers)


class _Served:
    """A server of the workload socket, for a box whose cards may be set; clients are connected without a path."""

    def __init__(self) -> None:
        self.box = box.Box(_devices(), seed=1, hostname="sim-0")
        self.server = WorkloadServer(self.box, scratch() / "socket", settings=self._set)
        self._shown: showing.BoxPages | None = None  # from the first setting on: pages take longer than most inputs

    def _set(self, device: str, setting: str, values: Sequence[int]) -> int:
        self._shown = self._shown or showing.open_pages(self.box, scratch() / "gpus", interval=1.0, control="")
        return self._shown.set(device, setting, values)

    def close(self) -> None:
        """Leave nothing for the next input."""
        if self._shown is not None:
            self._shown.pages.close()
            shutil.rmtree(scratch() / "gpus")
        _served.cache_clear()


@functools.cache
def _devices() -> tuple[Device, ...]:
    return tuple(boxes.make("h200", 2).devices)


@functools.cache
def _served() -> _Served:
    """Return the server of inputs until one is accepted or its box is stepped: the next one has another."""
    return _Served()


async def _socket(data: bytes) -> None:
    """Whatever bytes arrive, and in whichever pieces, there is one valid answer or none, and no workload is left."""
    served, (ours, theirs) = _served(), socket.socketpair()
    theirs.setblocking(False)
    ours.setblocking(False)
    pieces = data.split(b"\0|\0")[:8]
    with no_error_logged(), ours:
        assert served.server._take(theirs)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                await loop().sock_sendall(ours, piece)
                await asyncio.sleep(0)
        ours.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while piece := await loop().sock_recv(ours, 1 << 16):
            answer += piece
        await asyncio.gather(*served.server._clients)
    accepted = bool(answer) and _check_answer(bytes(answer)) == 0
    assert not served.server.clients
    if accepted or _chosen(data):  # what was refused seldom leaves anything behind
        served.box.step(served.box.engine.now + 1.0, clock=1.0)
        boxes.check_finite(served.box)
        served.close()


def _chosen(data: bytes) -> bool:
    """Return whether this input gets the checks that take long: one in sixteen, and the same ones when repeated."""
    return len(data) % 16 == 0


def _check_answer(answer: bytes) -> int:
    code, message = client.verdict(answer)
    assert isinstance(code, int)
    message.encode()
    return code


def _answer(data: bytes) -> None:
    """An answer of the server is a code with a message, or our client reports that it is none."""
    with contextlib.suppress(errors.SimgpuError, client.Lost):
        _check_answer(data)


_DOCUMENTS = (
    *encoded([annotated.PROFILE, annotated.PHASES, *_SETTINGS, _PROTOCOL]),
    *files("examples/10-fakedev/load.json"),
)

TARGETS = (
    Target("workload-documents", _document, _DOCUMENTS),
    Target("workload-socket", awaited(_socket), (*_DOCUMENTS, _DOCUMENTS[0][:30] + b"\0|\0" + _DOCUMENTS[0][30:])),
    Target("workload-answers", _answer, encoded(["0", "-1", json.dumps({"exit": 1, "message": "m", "lost": True})])),
)
