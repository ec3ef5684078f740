"""Credentials of clients, as TLS takes them."""

from __future__ import annotations

import datetime

import pytest
from cryptography.hazmat.primitives import serialization

from simgpu.cluster import pki
from simgpu.kube import auth, errors
from simgpu.kube.kubeconfig import ClientConfig


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A client certificate and its key."""
    folder = tmp_path_factory.mktemp("auth") / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    return (folder / "admin.crt").read_bytes(), (folder / "admin.key").read_bytes()


def test_a_certificate_with_its_key_is_presented(pair: tuple[bytes, bytes]) -> None:
    auth.tls_context(ClientConfig("https://a"), *pair)


def test_an_encrypted_key_is_an_error_and_no_question_at_the_terminal(pair: tuple[bytes, bytes]) -> None:
    certificate, plain = pair
    key = serialization.load_pem_private_key(plain, password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    with pytest.raises(errors.ConfigError, match=r"https://a: client-key: is encrypted"):
        auth.tls_context(ClientConfig("https://a"), certificate, locked)
