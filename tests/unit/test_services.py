"""The controller's Service, as `simgpu top` finds it in a cluster, and servers by their URL."""

from __future__ import annotations

import pytest

from simgpu.errors import InputError
from simgpu.kube import errors
from simgpu.loadtest import abandoned
from simgpu.top import feeds, services
from simgpu.top.feeds import FeedError


class Client:
    """A client of a server that answers everything with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def raw(self, _path: str) -> bytes:
        return self._answer


@pytest.mark.parametrize("answer", [b"", b"[]", b"\xff", b'{"items": 3}', b'{"later": ' + b"[" * 5000])
async def test_an_answer_that_is_no_list_of_services_is_reported(answer: bytes) -> None:
    with pytest.raises(FeedError, match="server: an unreadable list of Services"):
        await services.find(Client(answer), "server")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [b"", b"[]", b"\xff", b'{"groups": 3}', b'{"later": ' + b"[" * 5000])
async def test_an_answer_that_is_no_list_of_api_groups_is_reported(answer: bytes) -> None:
    with pytest.raises(errors.UnreadableAnswer):
        await abandoned._kinds(Client(answer))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://[", "http://[x]/", "http://a:x", "ftp://a", "http://"])
def test_a_url_that_leads_to_no_server_is_refused_with_the_option(url: str) -> None:
    with pytest.raises(InputError, match=r"^URL: "):
        feeds.base_of(url, field="URL")
