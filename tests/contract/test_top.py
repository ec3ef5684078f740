"""`simgpu top` in a terminal, with a fleet behind it that is served over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.dashboard.answers import FleetTotals
from simgpu.dashboard.serving import Dashboard
from simgpu.dashboard.sources import FleetSource
from simgpu.top import feeds
from tests.fixtures import terminals
from tests.fixtures.dashboards import ServedFleet
from tests.fixtures.http import NOWHERE, Scripted
from tests.fixtures.proxied import api_server
from tests.fixtures.terminals import DOWN, END, ENTER, ESCAPE, Terminal

SIMGPU = str(Path(sys.executable).parent / "simgpu")
GOLDEN = Path(__file__).parents[1] / "golden" / "top"


class Background:
    """A fleet that is served, and moves on, in a thread of its own; it can be stopped and served again."""

    def __init__(self, nodes: int) -> None:
        self.fleet = ServedFleet(nodes)
        for _ in range(20):
            self.fleet.step(1.0)
        self.port = 0
        self.url = ""
        self.moves = self.leads = True
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        ready = threading.Event()
        self._stop.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    async def _serve(self, ready: threading.Event) -> None:
        async with self._serving() as self.url:
            self.port = int(self.url.rpartition(":")[2])
            ready.set()
            while not self._stop.is_set():
                await asyncio.sleep(0.1)
                if self.moves:
                    self.fleet.step(0.1)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[str]:
        held = self.fleet
        source = FleetSource(lambda: held.fleet if self.leads else None, held._facts())
        held.dashboard = Dashboard(source)  # the one before is closed
        async with held.serving(self.port) as url:
            yield url

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)


@pytest.fixture
def served() -> Iterator[Callable[..., Background]]:
    started: list[Background] = []

    def start(nodes: int = 20, *, moves: bool = True) -> Background:
        started.append(Background(nodes))
        started[-1].moves = moves
        started[-1].start()
        return started[-1]

    yield start
    for item in started:
        item.stop()


async def command(*arguments: str, **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        SIMGPU, "top", *arguments, env={**os.environ, **environ}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("name", "columns", "options"),
    [
        ("nodes-140", "140", ["--sort", "name"]),
        ("nodes-60", "60", ["--filter", "inference"]),
        ("gpus-100", "100", ["--view", "gpus", "--sort", "faults"]),
        ("pods-120", "120", ["--view", "pods"]),
    ],
)
async def test_one_screen_is_printed_and_fits(
    name: str, columns: str, options: list[str], served: Callable[..., Background]
) -> None:
    background = served(moves=False)
    code, text, said = await command(background.url, "--once", *options, COLUMNS=columns, LINES="25")
    assert (code, said) == (0, "")
    assert max(map(len, text.splitlines())) <= int(columns)
    assert len(text.splitlines()) <= 24
    text = re.sub(r"GPUs +http://.*", "GPUs  URL and time", text, count=1)
    text = re.sub(r"(\d+[dhms])+$", "AGE", text, flags=re.MULTILINE)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "if this is meant, run again with UPDATE_GOLDEN=1 and look at the difference"


async def test_scripts_get_totals_nodes_and_pods(served: Callable[..., Background]) -> None:
    background = served(1200, moves=False)  # more than one part of a list
    code, text, _ = await command(f"{background.url}/metrics", "-o", "json")
    found: dict[str, Any] = json.loads(text)
    assert code == 0
    assert {*found["fleet"]["totals"]} == {*FleetTotals.__struct_fields__}
    assert len(found["nodes"]) == found["fleet"]["totals"]["nodes"] == 1200
    assert sum(node["allocated"] for node in found["nodes"]) == found["fleet"]["totals"]["allocated"]
    assert {"Pending", "Running"} == {pod["phase"] for pod in found["pods"]}


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a server of somebody else, which answers with a page, or rudely."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            rude = self.path.startswith("/rude")
            self.send_response(500 if rude else 200)
            self.send_header("Content-Type", "application/json" if rude else "text/html")
            self.end_headers()
            self.wfile.write(b'{"error": "\\u001b]52;c;eA==\\u0007"}' if rude else b"<h1>hello</h1>")

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_what_is_wrong_with_an_address_is_said(stranger: str, tmp_path: Path) -> None:
    for arguments, expected, says in (
        (("http://127.0.0.1:1", "--once"), 1, "127.0.0.1:1"),
        ((stranger, "--once"), 1, "not SimGPU's: it answers with text/html"),
        ((f"{stranger}/rude", "--once"), 1, "/rude: ·]52;c;eA==·"),
        (("ftp://here", "--once"), 2, "URL: 'ftp://here': must be http://HOST:PORT"),
        (("http://here:99999", "--once"), 2, "the port must be a number up to 65535"),
        ((stranger,), 2, "--once: is required without a terminal"),
        ((stranger, "--once", "--sort", "colour"), 2, "--sort: no column 'colour'; there are: utilization"),
        ((stranger, "--kubeconfig", "x", "--once"), 2, "--kubeconfig: cannot be combined with a URL"),
        (("--once",), 1, "no cluster named simgpu"),
    ):
        code, out, said = await command(*arguments, XDG_STATE_HOME=str(tmp_path))
        assert (code, out) == (expected, "")
        assert says in said
        assert "Traceback" not in said
        assert "\x1b" not in said


async def test_a_redirect_to_what_is_no_url_is_said(scripted: Scripted) -> None:
    scripted.script = [NOWHERE]
    async with feeds.UrlFeed(scripted.target.server).open() as feed:
        with pytest.raises(feeds.FeedError, match=scripted.target.server):
            await feed.get("/fleet")


def names(terminal: Terminal) -> list[str]:
    """The first words of the lines of the list."""
    found = [line.split()[0] for line in terminal.lines if re.match(r" (training|inference|research)-", line)]
    assert found
    return found


def test_keys_sort_filter_and_look_closer_and_the_window_may_change(served: Callable[..., Background]) -> None:
    background = served()
    with terminals.opened([SIMGPU, "top", background.url], 120, 30) as terminal:
        terminal.shows("20 nodes", "UTILISATION ▼", "training-0000", "q quit")
        terminal.press(b"s" * 6)
        terminal.shows("sorted by name")
        assert names(terminal) == sorted(names(terminal), key=lambda name: name[-4:])
        terminal.press(b"r")
        terminal.until(lambda terminal: names(terminal)[0].endswith("0019"), "the order turned around")
        terminal.press(b"/", b"nowhere", ENTER)
        terminal.shows("nothing matches 'nowhere'", "only: nowhere")
        terminal.press(ESCAPE)
        terminal.until(lambda terminal: "only: nowhere" not in terminal.text, "the end of the filter")
        terminal.press(b"/", b"infer", ENTER)
        terminal.shows("only: infer")
        assert {name.split("-")[0] for name in names(terminal)} == {"inference"}
        terminal.press(ESCAPE)
        terminal.until(lambda terminal: "only: infer" not in terminal.text, "the end of the filter")
        terminal.press(b"r")
        terminal.until(lambda terminal: names(terminal)[0] == "training-0000", "the first order")
        terminal.press(DOWN, DOWN, DOWN, ENTER)
        terminal.shows("training-0003   pool training", "GPU HEALTH", "lost", "GpuUnhealthy")
        terminal.press(DOWN, DOWN, ENTER)
        terminal.shows("training-0003 GPU 2", "SM clock", "Counters")
        terminal.resize(70, 40)
        terminal.until(lambda terminal: all(len(line) <= 70 for line in terminal.lines), "narrow lines")
        terminal.shows("training-0003 GPU 2")
        terminal.press(ESCAPE)
        terminal.shows("pool training")
        terminal.resize(160, 50)
        terminal.press(b"3")
        terminal.shows("pretrain-0", "0/60 nodes are available", "NAMESPACE")
        terminal.press(b" ")
        terminal.shows(" paused")
        terminal.press(b"2", END)
        terminal.shows("HEALTH", " paused")
        terminal.press(ENTER)
        terminal.shows("SM clock", " paused")  # not read before the pause
        terminal.press(ESCAPE)
        terminal.shows("HEALTH", " paused")
        terminal.press(b" ")
        terminal.until(lambda terminal: " paused" not in terminal.text, "it goes on")
        terminal.press(b"?")
        terminal.shows("turn the order around")
        terminal.press(ESCAPE)
        terminal.shows("HEALTH")
        terminal.press(b"q")
        assert terminal.ends() == 0


def test_a_signal_ends_it_and_the_terminal_is_as_before(served: Callable[..., Background]) -> None:
    background = served()
    with terminals.opened([SIMGPU, "top", background.url], 100, 24) as terminal:
        terminal.shows("training-0000")
        terminal.process.terminate()
        assert terminal.ends() == 0
        while terminal.read():
            pass
        assert b"\x1b[?1049l" in terminal.printed  # back from the alternate screen


def test_old_data_is_marked_until_the_server_is_back(served: Callable[..., Background]) -> None:
    background = served()
    with terminals.opened([SIMGPU, "top", background.url], 100, 24) as terminal:
        terminal.shows("training-0000")
        background.stop()
        terminal.shows("no data:", "training-0000")
        background.start()
        terminal.until(lambda terminal: "no data" not in terminal.text, "the notice is gone")
        terminal.press(b"\x03")
        assert terminal.ends() == 0


async def test_a_cluster_is_read_through_its_api_server(served: Callable[..., Background], tmp_path: Path) -> None:
    background = served(moves=False)
    async with api_server(background.url, tmp_path) as file:
        code, text, said = await command("--kubeconfig", str(file), "--once", COLUMNS="120", LINES="30")
        assert (code, said) == (0, "")
        assert "gpu-operator/nvidia-dcgm-exporter-kwok" in text
        assert "training-0000" in text
        code, text, _ = await command("--kubeconfig", str(file), "-o", "json")
        assert (code, len(json.loads(text)["nodes"])) == (0, 20)
    async with api_server(f"{background.url}/nowhere", tmp_path) as file:
        code, _, said = await command("--kubeconfig", str(file), "--once")
        assert (code, "is its dashboard enabled?" in said) == (1, True)


async def test_a_controller_that_does_not_lead_yet_is_waited_for(
    served: Callable[..., Background], tmp_path: Path
) -> None:
    background = served(moves=False)
    background.leads = False

    def look(file: Path) -> int:
        with terminals.opened([SIMGPU, "top", "--kubeconfig", str(file)], 120, 30) as terminal:
            terminal.shows(" simgpu ")
            assert "training-0000" not in terminal.text
            background.leads = background.moves = True
            terminal.shows("training-0000")
            terminal.press(b"q")
            return terminal.ends()

    async with api_server(background.url, tmp_path) as file:
        code, _, said = await command("--kubeconfig", str(file), "--once")
        assert (code, "Traceback" in said) == (1, False)
        assert await asyncio.to_thread(look, file) == 0
