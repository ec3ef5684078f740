"""Programs from release files: a real server on loopback serves them, well and badly."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import signal
import socket
import ssl
import sys
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from simgpu import errors
from simgpu.cluster import binaries, build, checksums, download, fetch, locate, origins, paths, pki, releases
from tests.fixtures.mirror import (
    Mirror,
    archive,
    beginning,
    program,
    redirect,
    release_of,
    status,
    until,
)

pytestmark = pytest.mark.skipif(releases.architecture() is None, reason="no release files for this machine")

Get = Callable[..., Awaitable[dict[str, str]]]

NAME = "kube-scheduler"  # a file of its own
VERSION = binaries.ALL[NAME].module.version
LIMITS = fetch.FetchLimits(answer_seconds=10, connect_seconds=10, stall_seconds=10, attempts=3, pause_seconds=0.001)

# The command, with the pins of the tests: what they serve is no real release.
COMMAND = """
import sys
from pathlib import Path
from simgpu.cluster import checksums
checksums.PINS = Path(sys.argv[1])
from simgpu.cli import main
sys.exit(main.run(sys.argv[2:]))
"""


class Shown:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[str] = []
        self.results: dict[str, str] = {}

    def update(self, item: str, doing: str) -> None:
        self.updates.append(f"{item}: {doing}")

    def done(self, item: str, result: str) -> None:
        self.results[item] = result

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture(autouse=True)
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a PATH with nothing in it, no proxy, and no pins; the file for pins."""
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SIMGPU_")]:
        monkeypatch.delenv(variable)
    empty = tmp_path / "checksums.txt"
    empty.write_text("# none\n")
    monkeypatch.setattr(checksums, "PINS", empty)
    monkeypatch.setattr(download, "_unreachable", {})
    return empty


@pytest.fixture
def get(mirror: Mirror) -> Get:
    """Download programs from the mirror; the reasons for those that could not be had."""

    async def run(*names: str, limits: fetch.FetchLimits = LIMITS, progress: Shown | None = None) -> dict[str, str]:
        wanted = [binaries.ALL[name] for name in names or (NAME,)]
        missed = await download.download(wanted, progress or Shown(), releases.ReleaseSource(mirror.url), limits=limits)
        return {each.binary.name: each.reason for each in missed}

    return run


def installed(name: str = NAME) -> Path:
    return build.cached(binaries.ALL[name])


def left_over() -> list[str]:
    folder = paths.cache() / "download"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def partial(name: str = NAME) -> fetch.Partial:
    return fetch.Partial(paths.cache() / "download" / release_of(name).file.name.replace("/", "_"))


async def test_a_program_is_downloaded_verified_and_ready_to_run(mirror: Mirror, get: Get) -> None:
    content, shown = mirror.publish(NAME), Shown()
    assert await get(progress=shown) == {}
    assert installed().read_bytes() == content
    assert await locate.program_version(installed(), binaries.ALL[NAME]) == binaries.parse_version(VERSION)
    assert shown.results[NAME].startswith(f"{VERSION} downloaded in")
    assert left_over() == []


async def test_the_cache_remembers_where_a_program_came_from(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    await get()
    origin = origins.origin_of(installed())
    assert origin is not None
    assert origin.url == f"{mirror.url}/{release_of(NAME).file.name}"
    assert origin.sha256 == hashlib.sha256(content).hexdigest()
    installed().write_bytes(b"another program")
    assert origins.origin_of(installed()) is None


async def test_of_an_archive_only_the_programs_that_are_wanted_are_taken(mirror: Mirror, get: Get) -> None:
    version = binaries.ALL["ctr"].module.version
    members = {f"bin/{name}": program(version) for name in ("containerd", "ctr", "containerd-shim-runc-v2", "other")}
    mirror.publish("ctr", archive(**members))
    assert await get("containerd", "ctr") == {}
    assert sorted(path.name for path in installed("ctr").parent.glob("[!.]*")) == ["containerd", "ctr"]
    assert len(mirror.requests("ctr")) == 1
    assert left_over() == []


@pytest.mark.parametrize("name", binaries.ALL)
async def test_every_program_can_be_had_in_the_layout_of_its_release(name: str, mirror: Mirror, get: Get) -> None:
    mirror.publish(name)
    assert await get(name) == {}
    assert await locate.program_version(installed(name), binaries.ALL[name]) is not None


async def test_a_checksum_is_read_from_what_github_says_of_a_release(mirror: Mirror, get: Get) -> None:
    content, file = mirror.publish("kwok"), release_of("kwok").file
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assets = [{"name": "other", "digest": None}, {"name": file.name.rpartition("/")[2], "digest": digest}]
    mirror.files[file.checksum] = json.dumps({"tag_name": "v1", "assets": assets}).encode()
    assert await get("kwok") == {}


async def test_a_file_that_differs_from_its_checksum_is_deleted_and_both_sums_are_named(
    mirror: Mirror, get: Get
) -> None:
    good = mirror.publish(NAME)
    bad = mirror.files[release_of(NAME).file.name] = good + b"# changed\n"
    reason = (await get())[NAME]
    for part in (release_of(NAME).file.name, hashlib.sha256(good).hexdigest(), hashlib.sha256(bad).hexdigest()):
        assert part in reason
    assert not installed().exists()
    assert left_over() == []
    assert len(mirror.requests(NAME)) == 1


async def test_a_pinned_checksum_counts_more_than_the_published_one(mirror: Mirror, get: Get, pins: Path) -> None:
    mirror.publish(NAME)
    pins.write_text(f"{'0' * 64}  {release_of(NAME).file.name}\n")
    assert f"{'0' * 64} is pinned" in (await get())[NAME]
    pins.write_text(f"{hashlib.sha256(program(VERSION)).hexdigest()}  {release_of(NAME).file.name}\n")
    del mirror.files[release_of(NAME).file.checksum]
    assert await get() == {}


@pytest.mark.parametrize("published", [b"", b"no sum", b"0" * 63, b"{}", b'{"assets": [{"name": "other"}]}'])
async def test_without_a_checksum_nothing_is_downloaded(published: bytes, mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.files[release_of(NAME).file.checksum] = published
    assert "has no SHA-256" in (await get())[NAME]
    assert mirror.requests(NAME) == []


async def test_a_download_is_resumed_where_the_connection_broke(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.before(NAME, beginning(content[:20]))
    assert await get() == {}
    assert mirror.requests(NAME) == [None, "bytes=20-"]
    assert installed().read_bytes() == content


async def test_a_server_that_stops_sending_is_tried_again(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.before(NAME, beginning(content[:20], then=mirror.hold))
    assert await get(limits=fetch.FetchLimits(stall_seconds=0.2, pause_seconds=0.001)) == {}
    assert mirror.requests(NAME) == [None, "bytes=20-"]


async def test_a_server_that_never_sends_is_given_up(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.before(NAME, *[until(mirror.hold)] * 2)
    reason = (await get(limits=fetch.FetchLimits(stall_seconds=0.1, pause_seconds=0.001, attempts=2)))[NAME]
    assert "the server stopped sending, after 2 attempts" in reason


async def test_a_server_that_cannot_resume_is_asked_for_all_of_it(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.ranges = False
    mirror.before(NAME, beginning(content[:20]))
    assert await get() == {}
    assert mirror.requests(NAME) == [None, "bytes=20-"]
    assert installed().read_bytes() == content


async def test_a_file_that_changed_meanwhile_is_fetched_anew(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.before(NAME, beginning(b"another version of", tag='"another"'))
    assert await get() == {}
    assert mirror.requests(NAME) == [None, "bytes=18-"]
    assert installed().read_bytes() == content


async def test_a_server_that_sends_another_range_is_asked_for_all_of_it(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)

    async def another(_: web.Request) -> web.StreamResponse:
        whole = f"bytes 0-{len(content) - 1}/{len(content)}"
        return web.Response(status=206, body=content, headers={"Content-Range": whole})

    mirror.before(NAME, beginning(content[:20]), another)
    assert await get() == {}
    assert mirror.requests(NAME) == [None, "bytes=20-", None]
    assert left_over() == []


@pytest.mark.parametrize("tags", [True, False])
async def test_a_damaged_part_from_before_costs_one_download_and_no_more(tags: bool, mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.tags = tags
    partial().restart("")
    partial().path.write_bytes(b"\0" * 20)
    assert await get() == {}
    assert mirror.requests(NAME) == ["bytes=20-", None]
    assert installed().read_bytes() == content


async def test_a_part_that_is_all_of_it_is_used_as_it_is(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    partial().restart("")
    partial().path.write_bytes(content)
    assert await get() == {}
    assert mirror.requests(NAME) == [f"bytes={len(content)}-"]


async def test_a_part_that_is_longer_than_the_file_is_thrown_away(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    partial().restart("")
    partial().path.write_bytes(content * 2)
    assert await get() == {}
    assert mirror.requests(NAME) == [f"bytes={len(content) * 2}-", None]


async def test_a_redirect_is_followed(mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)
    mirror.files["elsewhere"] = content
    mirror.before(NAME, redirect(f"{mirror.url}/elsewhere?signature=secret"))
    assert await get() == {}
    assert ("GET", "elsewhere", None) in mirror.seen


async def test_redirects_come_to_an_end(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.before(NAME, *[redirect(f"{mirror.url}/{release_of(NAME).file.name}")] * 9)
    assert "more than 5 redirects" in (await get())[NAME]


@pytest.mark.parametrize("to", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://[", ""])
async def test_a_redirect_away_from_http_is_rejected(to: str, mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.before(NAME, redirect(to))
    assert "which is not an https URL" in (await get())[NAME]


def test_a_redirect_from_https_stays_encrypted() -> None:
    with pytest.raises(fetch.FetchError, match="redirected to 'http://b/x', which is not an https URL"):
        fetch._redirected("https://a/x", "http://b/x")
    assert fetch._redirected("https://a/x", "/y") == "https://a/y"
    assert fetch._redirected("http://a/x", "https://b/y") == "https://b/y"


async def test_what_is_not_there_is_returned_with_its_address(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    reasons = await get(NAME, "etcd")
    assert list(reasons) == ["etcd"]
    assert reasons["etcd"] == f"{mirror.url}/{release_of('etcd').file.checksum}: HTTP 404 Not Found"
    assert installed().exists()


async def test_a_server_that_fails_for_a_moment_is_tried_again(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.before(NAME, status(500), status(429))
    assert await get() == {}
    assert len(mirror.requests(NAME)) == 3


async def test_a_server_that_goes_on_failing_is_given_up(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    mirror.before(NAME, *[status(503)] * 9)
    assert "HTTP 503 Service Unavailable, after 3 attempts" in (await get())[NAME]
    assert len(mirror.requests(NAME)) == 3


@pytest.mark.parametrize("announced", [True, False])
async def test_a_file_that_is_too_large_is_not_kept(announced: bool, mirror: Mirror, get: Get) -> None:
    content = mirror.publish(NAME)

    async def unannounced(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(content)
        return response

    if not announced:
        mirror.before(NAME, unannounced)
    reason = (await get(limits=fetch.FetchLimits(file_bytes=len(content) - 1)))[NAME]
    assert "larger than" in reason
    assert left_over() == []


def _link() -> tarfile.TarInfo:
    entry = tarfile.TarInfo(release_of("etcd").member)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/bin/sh"
    return entry


async def test_a_member_that_is_no_file_is_rejected(mirror: Mirror, get: Get) -> None:
    mirror.publish("etcd", archive(etcd=_link()))
    assert "is not a regular file" in (await get("etcd"))["etcd"]
    assert not installed("etcd").exists()


async def test_members_never_leave_the_archive_under_their_own_names(mirror: Mirror, get: Get, tmp_path: Path) -> None:
    outside, version = tmp_path / "outside", binaries.ALL["etcd"].module.version
    members = {str(outside): b"x", "../../outside": b"x", release_of("etcd").member: program(version)}
    mirror.publish("etcd", archive(**members))
    assert await get("etcd") == {}
    assert list(tmp_path.rglob("outside*")) == []


async def test_an_archive_that_unpacks_to_too_much_is_rejected(mirror: Mirror, get: Get) -> None:
    version = binaries.ALL["etcd"].module.version
    bomb = archive(**{"zeros": b"\0" * 2_000_000, release_of("etcd").member: program(version)})
    mirror.publish("etcd", bomb)
    assert len(bomb) < 1_000_000
    assert "more than 1000000 bytes" in (await get("etcd", limits=fetch.FetchLimits(file_bytes=1_000_000)))["etcd"]


@pytest.mark.parametrize(
    "content",
    [b"not an archive", archive(other=b"x"), archive(other=b"x" * 10_000)[:60]],
    ids=["other", "without", "cut off"],
)
async def test_an_archive_without_the_program_is_rejected(content: bytes, mirror: Mirror, get: Get) -> None:
    mirror.publish("etcd", content)
    assert release_of("etcd").file.name in (await get("etcd"))["etcd"]
    assert left_over() == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (program("1.2.3"), f"{NAME} has version 1.2.3, not {VERSION}"),
        (b"#!/bin/sh\nexit 1\n", f"{NAME} does not run, or prints no version"),
        (b"\x7fELF but of another machine", f"{NAME} does not run, or prints no version"),
    ],
)
async def test_a_program_that_does_not_run_or_is_another_version_is_rejected(
    content: bytes, reason: str, mirror: Mirror, get: Get
) -> None:
    mirror.publish(NAME, content)
    assert reason in (await get())[NAME]
    assert not installed().exists()
    assert left_over() == []


async def test_a_disk_that_fills_up_is_reported(mirror: Mirror, get: Get) -> None:
    mirror.publish(NAME)
    partial().path.parent.mkdir(parents=True)
    partial().path.symlink_to("/dev/full")
    assert "the disk is full" in (await get())[NAME]


async def test_progress_is_shown_in_mebibytes(mirror: Mirror, get: Get) -> None:
    shown = Shown()
    mirror.publish(NAME, program(VERSION, padding=3 * 1024**2))
    await get(progress=shown)
    assert f"{NAME}: downloading 3.0 MiB of 3.0 MiB" in shown.updates


async def test_no_more_files_than_the_limit_are_fetched_at_once(mirror: Mirror, get: Get) -> None:
    names = [name for name in binaries.ALL if name.startswith("kube")]
    running, most = 0, 0

    async def slow(_: web.Request) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _turn in range(20):
            await asyncio.sleep(0)
        running -= 1

    for name in names:
        mirror.publish(name)
        mirror.before(name, slow)
    assert await get(*names, limits=fetch.FetchLimits(at_once=2)) == {}
    assert most <= 2


# What ensure does with it.


async def test_without_a_server_one_line_says_so_and_no_host_is_contacted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Shown()
    with socket.socket() as unheard:  # bound, and not listening
        unheard.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unheard.getsockname()[1]}"
        gone = releases.ReleaseSource(f"http://{host}/gone")
        with pytest.raises(errors.SimgpuError, match=r"were not downloaded, and Go is not installed"):
            await locate.ensure(binaries.ALL, shown, source=gone)
    assert shown.notes == [f"release hosts cannot be reached ({host}: Connection refused)"]

    async def asked(*_: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(fetch.Fetcher, "problem", asked)
    missed = await download.download([binaries.ALL[NAME]], Shown(), gone)
    assert [each.binary.name for each in missed] == [NAME]


async def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(tmp_path: Path) -> None:
    pki.create(tmp_path / "pki", addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pki" / "apiserver.crt", tmp_path / "pki" / "apiserver.key")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    source = releases.ReleaseSource(f"https://127.0.0.1:{port}")
    [missed] = await download.download([binaries.ALL[NAME]], Shown(), source)
    assert "no secure connection: " in missed.reason
    assert "CERTIFICATE_VERIFY_FAILED" in missed.reason
    assert "SSL_CERT_FILE" in missed.reason
    server.close()
    await server.wait_closed()


async def test_a_host_that_accepts_and_keeps_silent_is_given_up(mirror: Mirror) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await mirror.hold.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    missed = await download.download(
        [binaries.ALL[NAME]],
        Shown(),
        releases.ReleaseSource(f"http://127.0.0.1:{port}"),
        limits=fetch.FetchLimits(answer_seconds=0.05),
    )
    assert missed[0].reason == f"release hosts cannot be reached (127.0.0.1:{port}: no response within 0.05 s)"
    server.close()


async def test_what_cannot_be_downloaded_is_left_to_the_build_with_one_line_for_each_reason(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "path" / "go").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "path" / "go").chmod(0o755)
    left: list[str] = []

    async def built(wanted: list[binaries.Binary], _: object) -> None:
        left.extend(binary.name for binary in wanted)

    monkeypatch.setattr(build, "build", built)
    mirror.publish(NAME)
    shown = Shown()
    found = await locate.ensure([NAME, "containerd", "ctr"], shown, source=releases.ReleaseSource(mirror.url))
    assert left == ["containerd", "ctr"]
    assert (found[NAME].source, found["ctr"].source) == ("download", "build")
    assert found[NAME].url == f"{mirror.url}/{release_of(NAME).file.name}"
    assert len(shown.notes) == 1
    assert shown.notes[0].endswith("HTTP 404 Not Found; building containerd, ctr from source instead")


# The command, as a user runs it.


async def simgpu(pins: Path, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        COMMAND,
        str(pins),
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def printed(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_simgpu_tools_takes_a_program_from_a_mirror(mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    code, out, err = await printed(await simgpu(pins, "tools", NAME, "--mirror", f"{mirror.url}/"))
    assert (code, out) == (0, f"{installed()}\n"), err
    assert "downloaded in" in err
    code, out, _ = await printed(await simgpu(pins, "tools", "-o", "json"))
    tools = {tool["name"]: tool for tool in json.loads(out)}
    assert code == 0
    assert tools[NAME] == {
        "name": NAME,
        "version": VERSION,
        "source": "cache",
        "path": str(installed()),
        "url": f"{mirror.url}/{release_of(NAME).file.name}",
    }
    assert tools["etcd"]["source"] is None
    code, out, _ = await printed(await simgpu(pins, "tools"))
    rows = {line.split()[0]: line.split(maxsplit=2)[2] for line in out.splitlines()}
    assert rows[NAME].startswith("cache, downloaded")
    assert rows["etcd"] == "not installed"


async def test_the_environment_names_a_mirror_too(mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    code, out, _ = await printed(await simgpu(pins, "tools", NAME, "-o", "json", SIMGPU_MIRROR=mirror.url))
    assert (code, json.loads(out)["source"]) == (0, "download")


@pytest.mark.parametrize("off", [["--no-download"], []])
async def test_downloads_can_be_turned_off(off: list[str], mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    setting = {} if off else {"SIMGPU_DOWNLOAD": "never"}
    code, _, err = await printed(await simgpu(pins, "tools", NAME, "--mirror", mirror.url, *off, **setting))
    assert code == 1
    assert "Go is not installed to build them" in err
    assert mirror.seen == []


async def test_a_wrong_checksum_is_reported_and_without_go_the_command_fails(mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    pins.write_text(f"{'0' * 64}  {release_of(NAME).file.name}\n")
    code, out, err = await printed(await simgpu(pins, "tools", NAME, "--mirror", mirror.url))
    assert (code, out) == (1, "")
    assert f"but {'0' * 64} is pinned; deleted" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--mirror", "ftp://x"], {}, "--mirror: 'ftp://x': must be an http or https URL"),
        (["--mirror", "mirror/releases"], {}, "--mirror"),
        ([], {"SIMGPU_MIRROR": "http://x:no"}, "SIMGPU_MIRROR"),
        ([], {"SIMGPU_DOWNLOAD": "maybe"}, "SIMGPU_DOWNLOAD: 'maybe': must be auto or never"),
    ],
)
async def test_bad_settings_are_named(
    arguments: list[str], environment: dict[str, str], reason: str, pins: Path
) -> None:
    for command in ("tools", "up"):
        code, _, err = await printed(await simgpu(pins, command, *arguments, **environment))
        assert code == 2
        assert reason in err


async def test_two_processes_download_a_file_once(mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    both = asyncio.Event()
    mirror.before(NAME, until(both))
    processes = [await simgpu(pins, "tools", NAME, "--mirror", mirror.url) for _ in range(2)]
    await mirror.asked(2, "HEAD")
    await mirror.asked(1 + 1)  # a checksum and a file: the other process has the lock to wait for
    both.set()
    for code, out, err in [await printed(process) for process in processes]:
        assert (code, out) == (0, f"{installed()}\n"), err
    assert len(mirror.requests(NAME)) == 1


async def test_a_killed_download_is_resumed(mirror: Mirror, pins: Path) -> None:
    content = mirror.publish(NAME, program(VERSION, padding=100_000))
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    mirror.before(NAME, beginning(content[:50_000], tag=tag, then=mirror.hold))
    process = await simgpu(pins, "tools", NAME, "--mirror", mirror.url)
    async with asyncio.timeout(30):
        while partial().size() < 50_000:
            await asyncio.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    assert not installed().exists()
    code, out, err = await printed(await simgpu(pins, "tools", NAME, "--mirror", mirror.url))
    assert (code, out) == (0, f"{installed()}\n"), err
    assert mirror.requests(NAME) == [None, "bytes=50000-"]
    assert installed().read_bytes() == content


async def test_a_proxy_of_the_environment_is_used(mirror: Mirror, pins: Path) -> None:
    mirror.publish(NAME)
    proxy, _, _ = mirror.url.partition("/releases")
    address = "http://release.invalid/releases"
    code, _, err = await printed(await simgpu(pins, "tools", NAME, "--mirror", address, HTTP_PROXY=proxy))
    assert code == 0, err


@pytest.mark.parametrize("version", [b"\xff", b"a\r\nHost: b", "é".encode()])
def test_the_version_of_a_part_that_can_be_no_header_counts_as_none(tmp_path: Path, version: bytes) -> None:
    partial = fetch.Partial(tmp_path / "program")
    partial.restart("")
    (tmp_path / "program.version").write_bytes(version)
    assert partial.version() == ""


async def test_a_reason_of_a_server_that_is_no_text_is_reported_as_text() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 \xff\x1b[31m\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with fetch.Fetcher(fetch.FetchLimits(attempts=1)) as fetcher:
        with pytest.raises(fetch.FetchError) as raised:
            await fetcher.read(f"http://{host}:{port}")
    listener.close()
    assert str(raised.value).isprintable()
