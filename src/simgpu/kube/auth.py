"""Turns a `kubeconfig.Target` into what each request needs: headers, and a TLS context.

`Credentials.current()` is asked before every request and answers from memory while what it has is fresh:
token files are read again once a minute, exec plugins run again when what they printed expires or when the
server answered 401. The wall clock is read only to learn how long a credential is good for: it may be set later.
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

from simgpu.kube import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from simgpu.kube.kubeconfig import Exec, Target

TOKEN_FILE_SECONDS = 60.0
EXEC_TIMEOUT_SECONDS = 60.0
_EXPIRY_MARGIN_SECONDS = 10.0
_LEAST_SECONDS = 10.0  # between two runs of a plugin, where the wall clock is ahead and all it prints has expired
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Grant(msgspec.Struct, frozen=True):
    """What a request carries to show who we are."""

    headers: tuple[tuple[str, str], ...]  # pairs: groups to impersonate come several times
    ssl: ssl.SSLContext | None


class Credentials:
    """The identity of one target, renewed when it has to be."""

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._target = target
        self._clock = clock
        self._wall_clock = wall_clock
        self._grant: Grant | None = None
        self._expires = float("inf")
        self._renewing = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._context_pair: tuple[bytes | None, bytes | None] = (None, None)

    async def current(self) -> Grant:
        """A grant that is fresh now."""
        if self._grant is not None and self._clock() < self._expires:
            return self._grant
        async with self._renewing:
            if self._grant is None or self._clock() >= self._expires:
                self._grant, self._expires = await self._renew()
            return self._grant

    def rejected(self, grant: Grant) -> bool:
        """The server answered 401 to `grant`: forget it. True if another try can bring a different one."""
        if self._target.exec is None and self._target.token_file is None:
            return False
        if self._grant is grant:
            self._grant = None
        return True

    async def _renew(self) -> tuple[Grant, float]:
        """A new grant, and until when it is good."""
        target = self._target
        token, certificate, key = target.token, target.certificate, target.key
        expires = float("inf")
        if target.token_file is not None:
            token = _read_token(target.token_file)
            expires = self._clock() + TOKEN_FILE_SECONDS
        elif target.exec is not None and token is None:
            printed = await run_plugin(target.exec, target)
            token = printed.token
            if printed.client_certificate_data and printed.client_key_data:
                certificate, key = printed.client_certificate_data.encode(), printed.client_key_data.encode()
            if printed.expiration_timestamp is not None:
                left = _timestamp(printed.expiration_timestamp) - self._wall_clock() - _EXPIRY_MARGIN_SECONDS
                expires = self._clock() + max(left, _LEAST_SECONDS)
        headers = target.impersonate
        if token:
            headers = (*headers, ("Authorization", f"Bearer {token}"))
        return Grant(headers, self._tls(certificate, key)), expires

    def _tls(self, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext | None:
        """The context for a pair; the same one for the same pair, as connections are kept by it."""
        if not self._target.server.startswith("https"):
            return None
        if self._context is None or self._context_pair != (certificate, key):
            self._context, self._context_pair = tls_context(self._target, certificate, key), (certificate, key)
        return self._context


def _timestamp(moment: datetime.datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)).timestamp()


def tls_context(target: Target, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """A client context that trusts the target's authority and shows the certificate, if there is one."""
    try:
        context = ssl.create_default_context(cadata=target.ca.decode() if target.ca else None)
    except (ssl.SSLError, ValueError) as error:
        raise errors.ConfigError(f"{target.server}: certificate-authority: not a PEM certificate ({error})") from None
    if not target.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        _load_pair(context, target, certificate, key)
    return context


def _load_pair(context: ssl.SSLContext, target: Target, certificate: bytes, key: bytes) -> None:
    # OpenSSL reads pairs from files only; the file is private and gone as soon as it is read.
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(certificate.rstrip() + b"\n" + key)
        pair.flush()
        try:
            context.load_cert_chain(pair.name)
        except (ssl.SSLError, OSError) as error:
            raise errors.ConfigError(
                f"{target.server}: client-certificate, client-key: not a usable pair ({error})"
            ) from None


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigError(f"tokenFile: cannot read {path}: {error}") from None
    if not token:
        raise errors.ConfigError(f"tokenFile: {path} is empty")
    return token


class Printed(msgspec.Struct, frozen=True, rename="camel"):
    """`status` of an ExecCredential."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: Printed


async def run_plugin(plugin: Exec, target: Target) -> Printed:
    """Run an exec plugin and read what it prints."""
    where = f"exec plugin {plugin.command}"
    if plugin.api_version not in _EXEC_VERSIONS:
        raise errors.ConfigError(
            f"{where}: apiVersion {plugin.api_version!r}: must be one of {', '.join(_EXEC_VERSIONS)}"
        )
    output = await _output(plugin, target, where)
    try:
        printed = msgspec.json.decode(output, type=_ExecCredential).status
    except errors.DECODING as error:
        raise errors.ConfigError(f"{where}: printed no ExecCredential: {error}") from None
    if not printed.token and not (printed.client_certificate_data and printed.client_key_data):
        raise errors.ConfigError(f"{where}: printed neither a token nor a certificate with its key")
    return printed


async def _output(plugin: Exec, target: Target, where: str) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            _program(plugin, target),
            *(plugin.args or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(plugin, target),
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise errors.ConfigError(f"{where}: cannot be run: {error.strerror}{hint}") from None
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_SECONDS):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise errors.ConfigError(f"{where}: no answer within {EXEC_TIMEOUT_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = complaint.decode("utf-8", "replace").strip()[-300:]
        raise errors.ConfigError(f"{where}: exit code {process.returncode}: {said}")
    return output


def _program(plugin: Exec, target: Target) -> str:
    """A command with a slash is relative to the kubeconfig; a bare one comes from PATH."""
    if os.sep in plugin.command and target.exec_directory is not None:
        return str(target.exec_directory / plugin.command)
    return plugin.command


def _cluster_info(target: Target) -> dict[str, object]:
    info: dict[str, object] = {"server": target.server, "insecure-skip-tls-verify": not target.verify}
    if target.ca:
        info["certificate-authority-data"] = base64.b64encode(target.ca).decode()
    if target.tls_server_name:
        info["tls-server-name"] = target.tls_server_name
    if target.proxy_url:
        info["proxy-url"] = target.proxy_url
    return info


def _environment(plugin: Exec, target: Target) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(target)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    given = {item.name: item.value for item in plugin.env or ()}
    return {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
