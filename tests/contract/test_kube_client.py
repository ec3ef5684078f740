"""The client against a server that misbehaves."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from simgpu.kube import auth, errors, kubeconfig, resources
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.wire import Retries, Sizes
from tests.fixtures.http import Answer, Scripted, answer, cut, status

FAST = Retries(attempts=4, backoff=Backoff(first_seconds=0.001, max_seconds=0.05))
NODE = {"metadata": {"name": "n", "resourceVersion": "7"}, "status": {"capacity": {"cpu": "32"}}, "unknown": [1, {}]}


def client(server: Scripted, **changes: object) -> Client:
    return Client(msgspec.structs.replace(server.target, **changes), retries=FAST, timeout_seconds=5)


def authorization(grant: auth.Grant) -> str:
    return dict(grant.headers)["Authorization"]


async def test_unknown_fields_are_ignored(scripted: Scripted) -> None:
    scripted.script = [answer(NODE)]
    async with client(scripted) as opened:
        node = await opened.get(resources.NODES, "n")
        assert opened.requests == {("get", "nodes"): 1}
    assert (node.metadata.name, node.status.capacity) == ("n", {"cpu": "32"})


@pytest.mark.parametrize(
    "fault",
    [
        status(429, headers={"Retry-After": "0"}),
        status(500),
        status(503, headers={"Retry-After": "0"}),
        status(504),
        cut(),
    ],
    ids=["429", "500", "503", "504", "cut"],
)
async def test_a_passing_fault_is_waited_out(scripted: Scripted, fault: object) -> None:
    scripted.script = [fault, fault, answer(NODE)]  # type: ignore[list-item]
    async with client(scripted) as opened:
        assert (await opened.get(resources.NODES, "n")).metadata.resource_version == "7"
    assert len(scripted.seen) == 3


async def test_a_lasting_fault_is_raised_as_what_it_is(scripted: Scripted) -> None:
    scripted.script = [status(503, "going down")] * 4
    async with client(scripted) as opened:
        with pytest.raises(errors.ServerError, match="going down"):
            await opened.get(resources.NODES, "n")
    assert len(scripted.seen) == 4


@pytest.mark.parametrize("fault", [status(500), cut()], ids=["500", "cut"])
async def test_a_create_that_may_have_happened_is_not_repeated(scripted: Scripted, fault: object) -> None:
    scripted.script = [fault]  # type: ignore[list-item]
    async with client(scripted) as opened:
        with pytest.raises((errors.ServerError, errors.ConnectError)):
            await opened.create(resources.NODES, {"metadata": {"name": "n"}})
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    "fault",
    [
        status(429, headers={"Retry-After": "0"}),
        status(403, 'nodes "n" is forbidden: not yet ready to handle request', reason="Forbidden"),
    ],
    ids=["429", "starting"],
)
async def test_a_create_that_the_server_refused_for_now_is_repeated(scripted: Scripted, fault: Answer) -> None:
    scripted.script = [fault, answer(NODE, code=201)]
    async with client(scripted) as opened:
        assert (await opened.create(resources.NODES, {"metadata": {"name": "n"}})).metadata.name == "n"


async def test_a_dry_run_is_marked_as_one_and_can_be_repeated(scripted: Scripted) -> None:
    scripted.script = [cut(), answer(NODE, code=201), answer(NODE)]
    async with client(scripted) as opened:
        await opened.create(resources.NODES, {"metadata": {"name": "n"}}, dry_run=True)
        await opened.merge_patch(resources.NODES, "n", {"metadata": {"labels": {}}}, dry_run=True)
    assert [(item.method, dict(item.query)) for item in scripted.seen] == [
        ("POST", {"dryRun": "All"}), ("POST", {"dryRun": "All"}), ("PATCH", {"dryRun": "All"}),
    ]  # fmt: skip


async def test_the_servers_retry_after_is_kept_to(scripted: Scripted) -> None:
    scripted.script = [status(429, headers={"Retry-After": "0.04"}), answer(NODE)]
    async with client(scripted) as opened:
        started = asyncio.get_running_loop().time()
        await opened.get(resources.NODES, "n")
        assert asyncio.get_running_loop().time() - started >= 0.04


async def test_pages_are_joined_and_an_expired_token_starts_over_in_one_request(scripted: Scripted) -> None:
    first = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [NODE]}
    rest = {"metadata": {"resourceVersion": "9"}, "items": [NODE, NODE]}
    scripted.script = [answer(first), answer(rest)]
    async with client(scripted) as opened:
        assert len(await opened.list(resources.NODES, page_size=1)) == 3
        scripted.script = [answer(first), status(410, reason="Expired"), answer(rest)]
        listing = await opened.listing(resources.NODES, page_size=1)
    assert (len(listing.items), listing.resource_version) == (2, "9")
    assert "limit" not in scripted.seen[-1].query


async def test_a_list_whose_parts_never_end_is_an_error(scripted: Scripted) -> None:
    scripted.script = [answer({"metadata": {"continue": "same"}, "items": [NODE]})] * 3
    async with client(scripted) as opened:
        with pytest.raises(errors.UnreadableAnswer, match="refers to itself"):
            await opened.list(resources.NODES, page_size=1)


async def test_an_object_that_does_not_fit_its_view_does_not_spoil_the_list(scripted: Scripted) -> None:
    odd = {"metadata": {"name": "odd"}, "status": {"capacity": "none"}}
    scripted.script = [answer({"metadata": {}, "items": [NODE, odd, NODE]})]
    async with client(scripted) as opened:
        assert [node.metadata.name for node in await opened.list(resources.NODES)] == ["n", "n"]


class Long:
    """An answer of 64 MiB, unless its reader leaves before."""

    def __init__(self, code: int = 200, beginning: bytes = b"") -> None:
        self.cut = asyncio.Event()
        self._code, self._beginning = code, beginning

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=self._code)
        await response.prepare(request)
        try:
            await response.write(self._beginning)
            for _ in range(64):
                await response.write(b"x" * (1 << 20))
        except ConnectionError:
            self.cut.set()
        return response


SMALL = Sizes(item=100_000, listing=400_000, error=300)


def limited(scripted: Scripted, *script: Answer) -> Client:
    scripted.script = [*script]
    return Client(scripted.target, retries=FAST, sizes=SMALL, timeout_seconds=600)


@pytest.mark.parametrize("listing", [False, True], ids=["object", "list"])
async def test_an_answer_that_is_too_long_is_an_error_that_says_how_much_is_read(
    scripted: Scripted, listing: bool
) -> None:
    long = Long()
    most = SMALL.listing if listing else SMALL.item
    async with asyncio.timeout(20), limited(scripted, long) as opened:
        with pytest.raises(errors.UnreadableAnswer, match=f"^{scripted.target.server}: .*more than {most} bytes"):
            await (opened.list(resources.NODES) if listing else opened.get(resources.NODES, "n"))
        await long.cut.wait()
    assert len(scripted.seen) == 1, "it would not become shorter"


async def test_an_answer_as_large_as_the_limit_is_read(scripted: Scripted) -> None:
    page = {"metadata": {"resourceVersion": "9"}, "items": [NODE]}
    padding = SMALL.listing - len(json.dumps({**page, "padding": ""}))
    async with limited(scripted, answer({**page, "padding": "x" * padding})) as opened:
        assert [item.metadata.name for item in await opened.list(resources.NODES)] == ["n"]


async def test_of_a_failure_that_is_too_long_the_beginning_is_shown(scripted: Scripted) -> None:
    failures = [Long(403, b"<html>no entry"), Long(403, b"<html>no entry")]
    async with asyncio.timeout(20), limited(scripted, *failures) as opened:
        with pytest.raises(errors.Forbidden, match=r"^<html>no entryxxx"):
            await opened.get(resources.NODES, "n")
        with pytest.raises(errors.Forbidden, match=r"^<html>no entryxxx"):
            await anext(opened.stream(resources.NODES, {}, silence_seconds=600.0))
        for item in failures:
            await item.cut.wait()


async def test_a_long_stream_is_read_as_fast_as_it_comes_though_small_events_gather(scripted: Scripted) -> None:
    size, read = 32 << 20, 0

    async def send(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        return web.Response(body=b"x" * size)

    scripted.script = [send]
    async with client(scripted) as opened, asyncio.timeout(60):
        async for chunk in opened.stream(resources.NODES, {}, silence_seconds=600.0, gather_seconds=3.0):
            read += len(chunk)
    assert read == size


async def test_patches_carry_their_content_types(scripted: Scripted) -> None:
    scripted.script = [answer(NODE)] * 3
    async with client(scripted) as opened:
        await opened.merge_patch(resources.NODES, "n", {"metadata": {"labels": {"a": None}}}, subresource="status")
        await opened.json_patch(resources.NODES, "n", [{"op": "test", "path": "/a", "value": 1}])
        await opened.apply(resources.NODES, "n", {"metadata": {"labels": {"a": "b"}}}, manager="me", force=True)
    assert [request.headers["Content-Type"] for request in scripted.seen] == [
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
    ]
    assert scripted.seen[0].path == "/api/v1/nodes/n/status"
    assert dict(scripted.seen[2].query) == {"fieldManager": "me", "force": "true"}
    assert json.loads(await scripted.seen[2].read())["kind"] == "Node"


async def test_deleting_what_is_not_there_is_no_error(scripted: Scripted) -> None:
    scripted.script = [status(404), answer({})]
    async with client(scripted) as opened:
        assert await opened.delete(resources.NODES, "n") is False
        assert await opened.delete(resources.NODES, "n", uid="u-1") is True
    assert json.loads(await scripted.seen[1].read())["preconditions"] == {"uid": "u-1"}


async def test_nobody_there_is_a_connect_error_that_names_the_server() -> None:
    target = kubeconfig.ClientConfig(server="http://127.0.0.1:9")
    async with Client(target, retries=Retries(attempts=1)) as opened:
        with pytest.raises(errors.ConnectError, match=r"http://127.0.0.1:9"):
            await opened.get(resources.NODES, "n")


async def test_a_token_file_is_read_again_after_401(scripted: Scripted, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    scripted.script = [answer(NODE), status(401), answer(NODE)]
    async with client(scripted, token_file=token) as opened:
        await opened.get(resources.NODES, "n")
        token.write_text("new\n")
        await opened.get(resources.NODES, "n")
    assert [request.headers["Authorization"] for request in scripted.seen] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_token_file_is_read_again_when_its_minute_is_over(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    now = [0.0]
    credentials = auth.Credentials(kubeconfig.ClientConfig(server="http://x", token_file=token), clock=lambda: now[0])
    assert authorization(await credentials.current()) == "Bearer one"
    token.write_text("two")
    assert authorization(await credentials.current()) == "Bearer one"
    now[0] = 61.0
    assert authorization(await credentials.current()) == "Bearer two"


def plugin(path: Path, body: str) -> kubeconfig.Exec:
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    return kubeconfig.Exec(command=str(path), api_version=version, env=[kubeconfig.EnvVar("WHO", "me")])


PRINT = """
import json, os, pathlib
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path(__file__ + ".count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {"token": f"{os.environ['WHO']}-{number}", "expirationTimestamp": "2030-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


EXPIRY = 1893456000.0  # as the plugin prints it


@pytest.mark.parametrize("stepped", [0.0, -3600.0, 3600.0])
async def test_an_exec_plugin_is_run_once_and_again_when_its_token_expires(tmp_path: Path, stepped: float) -> None:
    now, wall = [0.0], [EXPIRY - 900.0]
    target = kubeconfig.ClientConfig(server="http://x", exec=plugin(tmp_path / "plugin", PRINT))
    credentials = auth.Credentials(target, clock=lambda: now[0], wall_clock=lambda: wall[0])
    assert authorization(await credentials.current()) == "Bearer me-1"
    both = await asyncio.gather(credentials.current(), credentials.current())
    assert [authorization(grant) for grant in both] == ["Bearer me-1"] * 2
    wall[0] += stepped  # somebody sets the clock: the token lasts no longer and no shorter
    now[0] = 880.0
    assert authorization(await credentials.current()) == "Bearer me-1"
    now[0] = 900.0
    assert authorization(await credentials.current()) == "Bearer me-2"


async def test_an_exec_plugin_whose_tokens_seem_expired_is_not_run_for_every_request(tmp_path: Path) -> None:
    now = [0.0]
    target = kubeconfig.ClientConfig(server="http://x", exec=plugin(tmp_path / "plugin", PRINT))
    credentials = auth.Credentials(target, clock=lambda: now[0], wall_clock=lambda: EXPIRY + 3600.0)
    assert [authorization(await credentials.current()) for _ in range(3)] == ["Bearer me-1"] * 3
    now[0] = 11.0
    assert authorization(await credentials.current()) == "Bearer me-2"


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00", "9999-12-31T23:59:59Z", "2030-01-01T00:00:00"])
async def test_an_exec_plugin_may_print_any_time_of_expiry(tmp_path: Path, moment: str) -> None:
    body = PRINT.replace("2030-01-01T00:00:00Z", moment)
    target = kubeconfig.ClientConfig(server="http://x", exec=plugin(tmp_path / "plugin", body))
    assert authorization(await auth.Credentials(target).current()) == "Bearer me-1"


async def test_an_exec_plugin_is_run_again_after_401(scripted: Scripted, tmp_path: Path) -> None:
    scripted.script = [status(401), answer(NODE)]
    async with client(scripted, exec=plugin(tmp_path / "plugin", PRINT)) as opened:
        await opened.get(resources.NODES, "n")
    assert [request.headers["Authorization"] for request in scripted.seen] == ["Bearer me-1", "Bearer me-2"]


@pytest.mark.parametrize("changes", [{"command": "a\0b"}, {"env": [kubeconfig.EnvVar("A=B", "c")]}])
async def test_an_exec_plugin_that_no_system_can_start_is_an_error_of_the_configuration(
    changes: dict[str, Any],
) -> None:
    wanted = kubeconfig.Exec(**{"command": "true", "api_version": "client.authentication.k8s.io/v1", **changes})
    with pytest.raises(errors.ConfigError, match="cannot be started"):
        await auth.run_plugin(wanted, kubeconfig.ClientConfig(server="http://x"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import sys; sys.exit('no luck')", "exit code 1: no luck"),
        ("print('hello')", "did not print an ExecCredential"),
        ("print('{\"status\": {}}')", "neither a token nor a certificate"),
    ],
)
async def test_an_exec_plugin_that_fails_says_why(tmp_path: Path, body: str, says: str) -> None:
    target = kubeconfig.ClientConfig(server="http://x", exec=plugin(tmp_path / "plugin", body))
    with pytest.raises(errors.ConfigError, match=says):
        await auth.Credentials(target).current()


async def test_an_exec_plugin_that_is_not_there_gives_its_hint(tmp_path: Path) -> None:
    missing = kubeconfig.Exec(
        command=str(tmp_path / "no"), api_version="client.authentication.k8s.io/v1", install_hint="get it"
    )
    with pytest.raises(errors.ConfigError, match=r"No such file or directory; get it"):
        await auth.Credentials(kubeconfig.ClientConfig(server="http://x", exec=missing)).current()


async def test_groups_to_impersonate_are_all_sent(scripted: Scripted) -> None:
    scripted.script = [answer(NODE)]
    who = (("Impersonate-User", "jane"), ("Impersonate-Group", "dev"), ("Impersonate-Group", "ops"))
    async with client(scripted, impersonate=who) as opened:
        await opened.get(resources.NODES, "n")
    assert scripted.seen[0].headers.getall("Impersonate-Group") == ["dev", "ops"]
