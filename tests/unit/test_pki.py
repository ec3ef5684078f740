"""The certificates satisfy clients that are strict about them."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

from simgpu.cluster import pki

NOW = datetime.datetime.now(datetime.UTC)


def test_a_strict_client_and_the_server_trust_each_other(tmp_path: Path) -> None:
    pki.create(tmp_path / "pki", addresses=["127.0.0.1"], now=NOW)
    folder = tmp_path / "pki"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    server.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as wrapped:
            seen.append(wrapped.getpeercert()["subject"])  # type: ignore[index]

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="127.0.0.1"):
        thread.join(10)
    assert seen == [((("organizationName", "system:masters"),), (("commonName", "kubernetes-admin"),))]


def test_keys_are_private_and_an_existing_set_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=NOW)
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    before = (folder / "ca.crt").read_bytes()
    pki.create(folder, addresses=["127.0.0.1"], now=NOW)
    assert (folder / "ca.crt").read_bytes() == before
