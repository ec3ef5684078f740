"""What leads to an API server: kubeconfigs, files and variables of a pod, and what credential plugins print."""

from __future__ import annotations

import datetime
import functools
import math
import os
import re
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

from simgpu.cluster import pki
from simgpu.kube import auth, kubeconfig, resources
from simgpu.kube import errors as kube_errors
from simgpu.kube.kubeconfig import ClientConfig
from tests.fuzz.target import Target, awaited, encoded, scratch, text

_SEPARATOR = b"\0|\0"
_FILES = 3  # kubeconfigs of an input
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BREAKS = re.compile("[\0-\x08\x0a-\x1f\x7f]")
_KUBECONFIG = """
apiVersion: v1
current-context: a
contexts: [{name: a, context: {cluster: b, user: c, namespace: d}}]
clusters: [{name: b, cluster: {server: "https://127.0.0.1:6443", tls-server-name: x, proxy-url: "http://p:1",
  certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==}}]
users: [{name: c, user: {token: t, tokenFile: f, as: u, as-groups: [g], as-user-extra: {k: [v]},
  exec: {command: x, apiVersion: client.authentication.k8s.io/v1, args: [y], env: [{name: n, value: v}]}}}]
"""
_CLUSTER = "clusters: [{name: b, cluster: {server: 'http://a'}}]"
_USERS = (
    "users: [{name: c, user: {tokenFile: f, as: u, as-uid: i, as-user-extra: {a.io/b: [v, w]}}}]",
    "users: [{name: c, user: {exec: {command: x, apiVersion: client.authentication.k8s.io/v1}}}]",
)
_CONTEXT = "{current-context: a, contexts: [{name: a, context: {cluster: b, user: c}}]}"
_CREDENTIAL = (
    '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t",'
    '"expirationTimestamp":"2030-01-01T00:00:00Z","clientCertificateData":"c","clientKeyData":"k"}}'
)
_CERTIFICATE, _KEY = b"@CERTIFICATE@", b"@KEY@"  # those of an input become a pair that can be used
_PAIR = _CREDENTIAL.replace('"c"', f'"{_CERTIFICATE.decode()}"').replace('"k"', f'"{_KEY.decode()}"')


async def _kubeconfig(data: bytes) -> None:
    """Kubeconfigs together lead to a server with credentials, or are refused with a file and the field."""
    *parts, secret = (*data.split(_SEPARATOR, _FILES), b"")[: _FILES + 1] if _SEPARATOR in data else (data, b"t")
    paths = [scratch() / f"kubeconfig-{number}" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    try:
        config = kubeconfig.load(environ={"KUBECONFIG": os.pathsep.join(map(str, paths))})
    except kube_errors.ConfigError as error:
        assert any(str(path) in str(error) for path in paths)
        str(error).encode()
        return
    await _check(config, secret)


async def _service_account(data: bytes) -> None:
    """Variables and files of a pod lead to a server with a token, or are refused."""
    host, port, namespace, ca, token = (data.split(_SEPARATOR, 4) + [b""] * 4)[:5]
    folder = scratch() / "account"
    folder.mkdir(exist_ok=True)
    for name, content in (("namespace", namespace), ("ca.crt", _filled(ca).replace(b"\\n", b"\n")), ("token", token)):
        (folder / name).write_bytes(content)
    environ = {"KUBERNETES_SERVICE_HOST": text(host), "KUBERNETES_SERVICE_PORT": text(port)}
    try:
        config = kubeconfig.in_cluster(environ, folder)
    except kube_errors.ConfigError as error:
        str(error).encode()
        return
    await _check(config, token)


async def _credential(data: bytes) -> None:
    """What a credential plugin prints is a credential for requests, or is refused with the plugin or the field."""
    plugin = kubeconfig.Exec("plugin", "client.authentication.k8s.io/v1")
    await _check(ClientConfig("https://a", verify=False, exec=plugin), _filled(data))


async def _check(config: ClientConfig, secret: bytes) -> None:
    """Check that requests can be made; `secret` is the content of a token file, or what a plugin prints."""
    assert config.server.startswith(("http://", "https://"))
    assert urlsplit(config.server).hostname
    assert "" not in (config.tls_server_name, config.proxy_url)
    resources.PODS.path("a", namespace=config.namespace)
    path = scratch() / "token"
    path.write_bytes(secret)
    os.environ["SSL_CERT_FILE"] = os.devnull  # the system's authorities take long to read
    credentials = auth.Credentials(config, clock=lambda: 0.0, wall_clock=lambda: 1.7e9)

    async def output(*_plugin: object) -> bytes:
        return secret

    def token(_named: Path) -> str:
        return read(path)

    read = auth._read_token
    with mock.patch.multiple(auth, _output=output, _read_token=token):
        try:
            grant = await credentials.current()
        except kube_errors.ConfigError as error:
            str(error).encode()
            return
        assert await credentials.current() is grant
    assert math.isinf(credentials._expires) or credentials._expires > 0
    assert (grant.ssl is not None) == config.server.startswith("https")
    for name, value in grant.headers:
        assert _HEADER.fullmatch(name)
        assert not _BREAKS.search(value)
        value.encode()


def _filled(data: bytes) -> bytes:
    """Return an input with a certificate and its key in place of their marks, as JSON has them."""
    if _CERTIFICATE not in data and _KEY not in data:
        return data
    return data.replace(_CERTIFICATE, _pair()[0]).replace(_KEY, _pair()[1])


@functools.cache
def _pair() -> tuple[bytes, bytes]:
    folder = Path(scratch() / "pki")
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    certificate, key = ((folder / name).read_bytes().replace(b"\n", b"\\n") for name in ("admin.crt", "admin.key"))
    return certificate, key


def _joined(*parts: str) -> bytes:
    return _SEPARATOR.join(encoded(parts))


_FULL = ("10.0.0.1", "443", "team", _CERTIFICATE.decode(), "a token\n")

TARGETS = (
    Target(
        "kubeconfigs", awaited(_kubeconfig),
        (
            *encoded([_KUBECONFIG]), _joined(_CONTEXT, _CLUSTER, _USERS[0], "a token"),
            _joined(_CONTEXT, _CLUSTER, _USERS[1], _CREDENTIAL),
        ),
        ("\0|\0", "namespace", "as-user-extra", "as-groups", "tokenFile", "exec", "proxy-url"),
    ),
    Target(
        "exec-credentials", awaited(_credential), encoded([_CREDENTIAL, _PAIR]), (_CERTIFICATE.decode(), _KEY.decode())
    ),
    Target(
        "service-accounts", awaited(_service_account), (_joined(*_FULL), _joined("fd00::1", "6443", "", "", "t")),
        ("\0|\0", "https://", _CERTIFICATE.decode()),
    ),
)  # fmt: skip
