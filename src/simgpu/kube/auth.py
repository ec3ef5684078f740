"""Turns a `kubeconfig.ClientConfig` into the headers and TLS context of each request.

`Credentials.current()` is called before every request and returns cached credentials until they expire: token files
are read again once a minute, exec plugins run again when their credential expires or the server answered 401. The wall
clock is read only to compute how long a credential is valid, because it may be set later.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simgpu.kube import errors, kubeconfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from simgpu.kube.kubeconfig import ClientConfig, Exec

TOKEN_FILE_SECONDS = 60.0
EXEC_TIMEOUT_SECONDS = 60.0
_EXPIRY_MARGIN_SECONDS = 10.0
_MIN_EXEC_SECONDS = 10.0  # between two runs of a plugin: with a wall clock ahead, every credential has expired
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Grant(msgspec.Struct, frozen=True):
    """The credentials of a request."""

    headers: tuple[tuple[str, str], ...]  # pairs: Impersonate-Group may be repeated
    ssl: ssl.SSLContext | None


class Credentials:
    """The credentials of one client configuration, renewed when they expire."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._clock = clock
        self._wall_clock = wall_clock
        self._grant: Grant | None = None
        self._expires = float("inf")
        self._renewing = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._context_pair: tuple[bytes | None, bytes | None] = (None, None)

    async def current(self) -> Grant:
        """Return credentials that are valid now."""
        if self._grant is not None and self._clock() < self._expires:
            return self._grant
        async with self._renewing:
            if self._grant is None or self._clock() >= self._expires:
                self._grant, self._expires = await self._renew()
            return self._grant

    def rejected(self, grant: Grant) -> bool:
        """Drop credentials that the server answered with 401. True if a retry can get different ones."""
        if self._config.exec is None and self._config.token_file is None:
            return False
        if self._grant is grant:
            self._grant = None
        return True

    async def _renew(self) -> tuple[Grant, float]:
        """Return new credentials and when they expire, by the clock."""
        config = self._config
        token, certificate, key = config.token, config.certificate, config.key
        expires = float("inf")
        if config.token_file is not None:
            token = _read_token(config.token_file)
            expires = self._clock() + TOKEN_FILE_SECONDS
        elif config.exec is not None and token is None:
            printed = await run_plugin(config.exec, config)
            token = printed.token
            kubeconfig.check_header(token or "", f"exec plugin {config.exec.command}: token")
            if printed.client_certificate_data and printed.client_key_data:
                certificate, key = printed.client_certificate_data.encode(), printed.client_key_data.encode()
            if printed.expiration_timestamp is not None:
                left = _timestamp(printed.expiration_timestamp) - self._wall_clock() - _EXPIRY_MARGIN_SECONDS
                expires = self._clock() + max(left, _MIN_EXEC_SECONDS)
        headers = config.impersonate
        if token:
            headers = (*headers, ("Authorization", f"Bearer {token}"))
        return Grant(headers, self._tls(certificate, key)), expires

    def _tls(self, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext | None:
        """Return the TLS context of a key pair: the same one for the same pair, as connections are pooled by it."""
        if not self._config.server.startswith("https"):
            return None
        if self._context is None or self._context_pair != (certificate, key):
            self._context, self._context_pair = tls_context(self._config, certificate, key), (certificate, key)
        return self._context


def _timestamp(moment: datetime.datetime) -> float:
    """Return seconds since 1970; a time without a zone is UTC."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)).timestamp()


def tls_context(config: ClientConfig, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """Return a client context that trusts the configured CA and presents the client certificate, if there is one."""
    try:
        context = ssl.create_default_context(cadata=_authorities(config.ca) if config.ca else None)
    except (ssl.SSLError, ValueError) as error:
        raise errors.ConfigError(f"{config.server}: certificate-authority: not a PEM certificate ({error})") from None
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        _load_pair(context, config, certificate, key)
    return context


def _authorities(bundle: bytes) -> str:
    """Return a bundle without what is not ASCII, as comments may be; the library takes no others.

    Raises `ValueError` if nothing is left: the library would trust the system's authorities.
    """
    if not (text := bundle.decode("ascii", "ignore").strip()):
        raise ValueError("no certificate")
    return text


def _load_pair(context: ssl.SSLContext, config: ClientConfig, certificate: bytes, key: bytes) -> None:
    def ask_for_password() -> str:  # without this, OpenSSL asks at the terminal
        raise errors.ConfigError(f"{config.server}: client-key: is encrypted; give one without a password")

    # OpenSSL reads key pairs from files only; this one is private and deleted once it is read.
    try:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(certificate.rstrip() + b"\n" + key)
            pair.flush()
            context.load_cert_chain(pair.name, password=ask_for_password)
    except (ssl.SSLError, OSError) as error:
        raise errors.ConfigError(
            f"{config.server}: client-certificate, client-key: not a usable pair ({error})"
        ) from None


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"tokenFile: cannot read {path}: {error}") from None
    if not token:
        raise errors.ConfigError(f"tokenFile: {path} is empty")
    kubeconfig.check_header(token, f"tokenFile: {path}")
    return token


class ExecCredentialStatus(msgspec.Struct, frozen=True, rename="camel"):
    """`status` of an ExecCredential."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: ExecCredentialStatus


async def run_plugin(plugin: Exec, config: ClientConfig) -> ExecCredentialStatus:
    """Run an exec plugin and return the credential that it prints."""
    where = f"exec plugin {plugin.command}"
    if plugin.api_version not in _EXEC_VERSIONS:
        raise errors.ConfigError(
            f"{where}: apiVersion {plugin.api_version!r}: must be one of {', '.join(_EXEC_VERSIONS)}"
        )
    return read_credential(await _output(plugin, config, where), where)


def read_credential(output: bytes, where: str) -> ExecCredentialStatus:
    """Return the credential that an exec plugin printed; errors begin with `where`."""
    try:
        printed = msgspec.json.decode(output, type=_ExecCredential).status
    except errors.DECODING as error:
        raise errors.ConfigError(f"{where}: did not print an ExecCredential: {error}") from None
    if not printed.token and not (printed.client_certificate_data and printed.client_key_data):
        raise errors.ConfigError(f"{where}: printed neither a token nor a certificate with its key")
    return printed


async def _output(plugin: Exec, config: ClientConfig, where: str) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            _program(plugin, config),
            *(plugin.args or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(plugin, config),
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise errors.ConfigError(f"{where}: cannot be started: {error.strerror}{hint}") from None
    except ValueError as error:  # a NUL in a word, or a variable whose name has an equals sign
        raise errors.ConfigError(f"{where}: cannot be started: {error}") from None
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_SECONDS):
            output, error_output = await process.communicate()
    except TimeoutError:
        raise errors.ConfigError(f"{where}: no answer within {EXEC_TIMEOUT_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        stderr = error_output.decode("utf-8", "replace").strip()[-300:]
        raise errors.ConfigError(f"{where}: exit code {process.returncode}: {stderr}")
    return output


def _program(plugin: Exec, config: ClientConfig) -> str:
    """Return the command to run: with a slash, relative to the kubeconfig; otherwise from PATH."""
    if os.sep in plugin.command and config.exec_directory is not None:
        return str(config.exec_directory / plugin.command)
    return plugin.command


def _cluster_info(config: ClientConfig) -> dict[str, object]:
    info: dict[str, object] = {"server": config.server, "insecure-skip-tls-verify": not config.verify}
    if config.ca:
        info["certificate-authority-data"] = base64.b64encode(config.ca).decode()
    if config.tls_server_name:
        info["tls-server-name"] = config.tls_server_name
    if config.proxy_url:
        info["proxy-url"] = config.proxy_url
    return info


def _environment(plugin: Exec, config: ClientConfig) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(config)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    given = {item.name: item.value for item in plugin.env or ()}
    return {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
