"""Credentials of clients, as headers and TLS take them."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from simgpu.cluster import pki
from simgpu.kube import auth, errors
from simgpu.kube.kubeconfig import ClientConfig, Exec


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auth") / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    return folder


@pytest.fixture(scope="module")
def pair(certificates: Path) -> tuple[bytes, bytes]:
    """A client certificate and its key."""
    return (certificates / "admin.crt").read_bytes(), (certificates / "admin.key").read_bytes()


def test_a_certificate_with_its_key_is_presented(pair: tuple[bytes, bytes]) -> None:
    auth.tls_context(ClientConfig("https://a"), *pair)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_bundle_of_authorities_may_have_comments_in_any_language(certificates: Path, encoding: str) -> None:
    bundle = "# Tanúsítvány\n".encode(encoding) + (certificates / "ca.crt").read_bytes()
    assert len(auth.tls_context(ClientConfig("https://a", ca=bundle), None, None).get_ca_certs()) == 1
    with pytest.raises(errors.ConfigError, match="not a PEM certificate"):
        auth.tls_context(ClientConfig("https://a", ca="-----BEGIN é".encode(encoding)), None, None)


@pytest.mark.parametrize("damaged", [b"\xff\xfe\x00"[:2], b" \n", "Tanúsítvány".encode("utf-16")])
def test_authorities_that_are_none_are_an_error_and_never_those_of_the_system(damaged: bytes) -> None:
    with pytest.raises(errors.ConfigError, match="not a PEM certificate"):
        auth.tls_context(ClientConfig("https://a", ca=damaged), None, None)


def test_an_encrypted_key_is_an_error_and_no_question_at_the_terminal(pair: tuple[bytes, bytes]) -> None:
    certificate, plain = pair
    key = serialization.load_pem_private_key(plain, password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    with pytest.raises(errors.ConfigError, match=r"https://a: client-key: is encrypted"):
        auth.tls_context(ClientConfig("https://a"), certificate, locked)


async def test_a_token_file_of_several_lines_is_an_error_with_its_name_before_any_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\nsecond\n")
    with pytest.raises(errors.ConfigError, match=f"^tokenFile: {path}: must be one line"):
        await auth.Credentials(ClientConfig("http://a", token_file=path)).current()
    path.write_text(" first \n")
    grant = await auth.Credentials(ClientConfig("http://a", token_file=path)).current()
    assert grant.headers == (("Authorization", "Bearer first"),)


async def test_a_token_of_a_plugin_that_is_no_header_is_an_error_with_its_name() -> None:
    printed = '{"status":{"token":"a\\nb"}}'
    plugin = Exec("echo", "client.authentication.k8s.io/v1", args=[printed])
    with pytest.raises(errors.ConfigError, match=r"^exec plugin echo: token: must be one line"):
        await auth.Credentials(ClientConfig("http://a", exec=plugin)).current()


def test_a_key_pair_that_cannot_be_stored_for_a_moment_is_an_error(
    pair: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(errors.ConfigError, match="No space left on device"):
        auth.tls_context(ClientConfig("https://a"), *pair)
