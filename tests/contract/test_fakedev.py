"""`fakedev-exporter` and `fakedev-workload` behave as the originals do."""

from __future__ import annotations

import concurrent.futures
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent
FILES = Path(__file__).parent.parent.parent / "examples" / "10-fakedev"
BODY = """\
# fakedev-exporter v0.1
xpum_frequency_mhz{dev_file="card0", pci_bdf="0000:03:00.0", pci_dev="0x4905", location="gpu", type="actual"} 435
xpum_memory_used_bytes{dev_file="card0", pci_bdf="0000:03:00.0", pci_dev="0x4905"} 4.017094656e+08
xpum_power_watts{dev_file="card0", pci_bdf="0000:03:00.0", pci_dev="0x4905"} 6.2
xpum_temperature_celsius{dev_file="card0", pci_bdf="0000:03:00.0", pci_dev="0x4905", location="gpu"} 27
xpum_frequency_mhz{dev_file="card1", pci_bdf="0000:03:01.0", pci_dev="0x4905", location="gpu", type="actual"} 435
xpum_memory_used_bytes{dev_file="card1", pci_bdf="0000:03:01.0", pci_dev="0x4905"} 4.017094656e+08
xpum_power_watts{dev_file="card1", pci_bdf="0000:03:01.0", pci_dev="0x4905"} 6.2
xpum_temperature_celsius{dev_file="card1", pci_bdf="0000:03:01.0", pci_dev="0x4905", location="gpu"} 27
"""


class Fakedev:
    """A running fakedev-exporter."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.socket = home / "socket"
        files = [
            "-devtype",
            f"{FILES}/device-type.json",
            "--devlist",
            f"{FILES}/devices.json",
            f"--identity={FILES}/identity.json",
        ]
        command = [
            str(PROGRAMS / "fakedev-exporter"),
            *files,
            "-address",
            "127.0.0.1:0",
            f"-socket={self.socket}",
            *arguments,
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "listening" in line:
                self.address = line.split()[-1]
                return
        raise AssertionError("it did not start")

    def request(self, method: str = "GET", path: str = "/metrics", data: bytes | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def say(self, message: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(message)
            return connection.recv(64)


@pytest.fixture
def fakedev(tmp_path: Path) -> Iterator[Callable[..., Fakedev]]:
    started: list[Fakedev] = []

    def start(*arguments: str) -> Fakedev:
        started.append(Fakedev(tmp_path, *arguments))
        return started[-1]

    yield start
    for item in started:
        if item.process.poll() is None:
            item.process.terminate()
        item.process.communicate(timeout=10)


def workload(running: Fakedev, *arguments: str) -> subprocess.Popen[str]:
    command = [str(PROGRAMS / "fakedev-workload"), "-socket", str(running.socket), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_the_page_is_the_originals_byte_for_byte(fakedev: Callable[..., Fakedev]) -> None:
    running = fakedev("-count", "2", "-wl-all", f"{FILES}/load.json")
    assert running.request() == (200, BODY)


def test_workloads_without_load_change_nothing_while_pages_are_read(fakedev: Callable[..., Fakedev]) -> None:
    running = fakedev("-count", "2", "-wl-all", f"{FILES}/load.json")
    idle = [workload(running, "-devnames", "card0,card1", "-activity", "0:0:0", "-repeat", "0") for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(15) as pool:
        pages = {page for _, page in pool.map(lambda _: running.request(), range(15))}
    for process in idle:
        process.kill()
        process.communicate()
    assert pages | {running.request()[1]} == {BODY}


def test_only_the_page_can_be_read_and_nothing_be_sent(fakedev: Callable[..., Fakedev]) -> None:
    running = fakedev("-count", "2")
    assert running.request(path="/metrics/foobar")[0] == 404
    for method in ("HEAD", "DELETE"):
        assert running.request(method)[0] == 405
    assert running.request("FOOBAR")[0] in (400, 405)
    assert running.request("POST", data=b"x")[0] == 405
    assert running.request("GET", data=b"x")[0] == 400
    running.process.send_signal(signal.SIGTERM)
    running.process.communicate(timeout=10)
    assert running.process.returncode == 0


@pytest.mark.parametrize(
    "message",
    [
        b"foobar", b"\0" * 200, b'{"Foobar":0}', b"",
        b'{"Name":"x","Devices":["card0"],"Profile":[{"Load":1}],"Repeat":-1}',
        b'{"Name":"x","Devices":["card0"],"Profile":[{"Load":1}],"Profile":[{"Load":-1}]}',
        b'{"Name":"x","Devices":["card0"],"Profile":[{"Load":50,"Fluctuation":75}]}',
        b'{"Name":"' + b"\0" * 65536,
    ],
)  # fmt: skip
def test_what_is_malformed_is_answered_with_a_number(fakedev: Callable[..., Fakedev], message: bytes) -> None:
    assert int(fakedev("-count", "2").say(message)) != 0


def test_a_workload_ends_with_the_exporters_answer(fakedev: Callable[..., Fakedev], tmp_path: Path) -> None:
    running = fakedev("-count", "4")
    done = workload(running, "-devnames=card1", "--activity", "50:0:1", "-name", "short")
    deadline = time.monotonic() + 10
    while not re.search(r'power_watts\{dev_file="card1".*\} 19$', running.request()[1], re.MULTILINE):
        assert time.monotonic() < deadline
    done.communicate(timeout=20)
    assert done.returncode == 0
    unknown = workload(running, "-devnames", "card9")
    unknown.communicate(timeout=20)
    assert unknown.returncode == 1
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"name": "x", "PROFILE": [{"Load": 10, "Fluctuation": 0, "Seconds": 1}], "Repeat": 1}))
    from_file = workload(running, "-devnames", "card0", "-json", str(file))
    from_file.communicate(timeout=20)
    assert from_file.returncode == 0


def test_a_workload_ends_at_a_limit_by_the_identitys_name_and_finds_devices_by_their_index(
    fakedev: Callable[..., Fakedev], tmp_path: Path
) -> None:
    running = fakedev("-count", "2", "-devtype", f"{FILES}/device-type-tiles.json")
    (tmp_path / "renderD1").touch()
    found = ["-devices", f"{tmp_path}/renderD*", "-index-regex", "renderD([0-9])"]
    limits = ["-limit", "xpum_temperature_celsius=1000,runtime=900", "--limit=xpum_frequency_mhz=900"]
    ended = workload(running, *found, *limits, "-activity", "90:0:600")
    assert (ended.communicate(timeout=30)[1], ended.returncode) == (
        "1 Limit xpum_frequency_mhz reached, terminated\n", 1,
    )  # fmt: skip
    wrong = workload(running, *found, "-limit", "height=1")
    assert "Limits.height: no such quantity; there are: usage, " in wrong.communicate(timeout=30)[1]
    on_tile = running.request()[1].count('dev_file="card1", pci_bdf="0000:03:01.0", pci_dev="0x4905", subdevice="1"')
    assert on_tile == 2


@pytest.mark.parametrize(
    ("program", "arguments", "code", "says"),
    [
        ("fakedev-exporter", ["-h"], 0, "Usage of fakedev-exporter"),
        ("fakedev-exporter", ["-frobnicate"], 2, "flag provided but not defined: -frobnicate"),
        ("fakedev-exporter", ["-count", "many"], 2, 'invalid value "many" for flag -count'),
        ("fakedev-exporter", ["-identity", "/no/such"], 1, "/no/such: No such file"),
        ("fakedev-workload", ["-devnames"], 2, "flag needs an argument: -devnames"),
        ("fakedev-workload", ["-devices", "/no/such/*"], 1, "matches no file"),
        ("fakedev-workload", ["-devnames", "x", "-activity", "1:2:3"], 1, "activity"),
        ("fakedev-workload", ["-devnames", "x", "-name="], 1, "no name"),
        ("fakedev-workload", ["-devnames", "x", "-limit", "power"], 1, "'power': must be NAME=NUMBER"),
        ("fakedev-workload", ["-devnames", "x", "-max-index", "3"], 1, "JOB_COMPLETION_INDEX"),
        ("fakedev-workload", ["-devnames", "x", "-socket", "/no/such"], 1, "/no/such"),
    ],
)
def test_options_are_read_as_go_reads_them(program: str, arguments: list[str], code: int, says: str) -> None:
    done = subprocess.run([PROGRAMS / program, *arguments], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == code
    assert says in done.stderr


def test_too_many_devices_are_refused(tmp_path: Path) -> None:
    files = [
        "-devtype",
        f"{FILES}/device-type.json",
        "-devlist",
        f"{FILES}/devices.json",
        "-identity",
        f"{FILES}/identity.json",
    ]
    command = [str(PROGRAMS / "fakedev-exporter"), *files, "-count", "9", "-socket", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert "has 4 devices, and 9 were requested" in done.stderr
