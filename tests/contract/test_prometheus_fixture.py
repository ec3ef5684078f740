"""The Prometheus fixture scrapes a page and answers queries about it."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.prometheus import Prometheus

PAGE = b'# TYPE answer gauge\nanswer{to="everything"} 42\n'


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def target() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_prometheus_scrapes_a_page(prometheus: Callable[..., Prometheus], target: str) -> None:
    [sample] = prometheus(target).eventually('answer{to="everything"}')
    assert sample["value"][1] == "42"
    assert sample["metric"]["instance"] == target
