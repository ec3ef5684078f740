"""Reads kubeconfig files into one `ClientConfig`: the API server's address and the credentials for it.

Merging follows kubectl: files of `KUBECONFIG` in order, the first that defines a cluster, user, context or current
context wins, and relative paths are relative to the file that holds them. Turning a `ClientConfig` into headers and TLS
is left to `auth`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from simgpu import yaml_text
from simgpu.errors import shown
from simgpu.kube import errors, resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # what no header of a request can have
_NAME_SAFE = "!#$&'*+-.^_`|~"  # in the name of a header, besides letters and digits; others are escaped as in URLs

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    """A `clusters[].cluster` entry."""

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class EnvVar(msgspec.Struct, frozen=True):
    """An environment variable for an exec plugin."""

    name: str
    value: str


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """A `users[].user.exec` entry: a program that prints credentials."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False


class AuthInfo(msgspec.Struct, frozen=True, rename="kebab"):
    """A `users[].user` entry."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    impersonate: str | None = msgspec.field(default=None, name="as")
    impersonate_uid: str | None = msgspec.field(default=None, name="as-uid")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    impersonate_extra: dict[str, list[str]] | None = msgspec.field(default=None, name="as-user-extra")
    exec: Exec | None = None
    auth_provider: Any = None


class Context(msgspec.Struct, frozen=True):
    """A `contexts[].context` entry."""

    cluster: str
    user: str = ""
    namespace: str = "default"


class ClientConfig(msgspec.Struct, frozen=True):
    """An API server and the credentials for it; paths are absolute, inline data is decoded."""

    server: str  # URL without a trailing slash
    namespace: str = "default"
    ca: bytes | None = None  # PEM; the system's authorities if None
    verify: bool = True  # the server's certificate
    tls_server_name: str | None = None  # expected in the certificate instead of the host name
    proxy_url: str | None = None
    certificate: bytes | None = None  # PEM, of the client
    key: bytes | None = None  # PEM, of the client
    token: str | None = None
    token_file: Path | None = None
    impersonate: tuple[tuple[str, str], ...] = ()  # Impersonate-* headers
    exec: Exec | None = None
    exec_directory: Path | None = None  # that a plugin's command with a slash is relative to


class _Source(msgspec.Struct, frozen=True):
    """One entry of a kubeconfig and the file that holds it."""

    file: Path
    field: str
    body: Any


class _Merged(msgspec.Struct):
    files: list[Path]
    entries: dict[str, dict[str, _Source]]
    current_context: str = ""


def load(
    path: Path | str | None = None, *, context: str | None = None, environ: Mapping[str, str] | None = None
) -> ClientConfig:
    """Read the configuration from `path`, else `KUBECONFIG`, else the service account, else `~/.kube/config`."""
    environ = os.environ if environ is None else environ
    if path is not None:
        return from_files([Path(path)], context=context)
    listed = [Path(item) for item in environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    if listed:
        present = [item for item in listed if _exists(item)]
        if not present:
            raise errors.ConfigError(f"KUBECONFIG: no such file: {', '.join(map(str, listed))}")
        return from_files(present, context=context)
    if context is None and environ.get("KUBERNETES_SERVICE_HOST") and _exists(SERVICE_ACCOUNT / "token"):
        return in_cluster(environ)
    default = Path(environ.get("HOME") or "~", ".kube", "config")
    with contextlib.suppress(RuntimeError):  # the user has no home
        default = default.expanduser()
    if not _exists(default):
        raise errors.ConfigError(f"no Kubernetes configuration: give --kubeconfig, set KUBECONFIG, or write {default}")
    return from_files([default], context=context)


def _exists(path: Path) -> bool:
    """Return whether a file exists; one that may not be looked at does, and reading it reports why."""
    try:
        return path.exists()
    except OSError:
        return True


def in_cluster(environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> ClientConfig:
    """Return the configuration of a pod's service account; its token file is read again when it is rotated."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise errors.ConfigError("KUBERNETES_SERVICE_HOST is not set: this is not a pod")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    _check_url(server, "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT")
    file = directory / "namespace"
    namespace = _read(file, directory, "namespace").decode("utf-8", "replace").strip() if _exists(file) else ""
    _check_namespace(namespace, str(file))
    return ClientConfig(
        server=server,
        namespace=namespace or "default",
        ca=_read(directory / "ca.crt", directory, "ca.crt"),
        token_file=directory / "token",
    )


def from_files(paths: Sequence[Path], *, context: str | None = None) -> ClientConfig:
    """Merge kubeconfig files and resolve one context of them."""
    merged = _merge(paths)
    chosen = context or merged.current_context
    if not chosen:
        raise errors.ConfigError(f"{_names(paths)}: current-context is not set; name a context")
    where = _pick(merged, "contexts", chosen, "current-context" if context is None else "context")
    wanted = _convert(where, Context, "context")
    _check_namespace(wanted.namespace, f"{where.file}: {where.field}.context.namespace")
    cluster_source = _pick(merged, "clusters", wanted.cluster, f"{where.field}.context.cluster")
    cluster = _convert(cluster_source, Cluster, "cluster")
    if not wanted.user:
        return _client_config(wanted, cluster, cluster_source, AuthInfo(), cluster_source)
    user_source = _pick(merged, "users", wanted.user, f"{where.field}.context.user")
    return _client_config(wanted, cluster, cluster_source, _convert(user_source, AuthInfo, "user"), user_source)


def _merge(paths: Sequence[Path]) -> _Merged:
    merged = _Merged(files=list(paths), entries={"clusters": {}, "users": {}, "contexts": {}})
    for path in paths:
        document = _parse(path)
        merged.current_context = merged.current_context or str(document.get("current-context") or "")
        for section, known in merged.entries.items():
            for index, entry in enumerate(_section(path, document, section)):
                field = f"{section}[{index}]"
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise errors.ConfigError(f"{path}: {field}.name: must be a string")
                known.setdefault(entry["name"], _Source(path, field, entry))
    return merged


def _parse(path: Path) -> dict[str, Any]:
    try:
        document = yaml_text.parse_file(path, repeats=True)  # as kubectl reads it
    except OSError as error:
        raise errors.ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise errors.ConfigError(f"{path}: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise errors.ConfigError(f"{path}: must hold a mapping, not {type(document).__name__}")
    return document


def _section(path: Path, document: dict[str, Any], section: str) -> list[Any]:
    value = document.get(section)
    if value is None:
        return []
    if not isinstance(value, list):
        raise errors.ConfigError(f"{path}: {section}: must be a list")
    return value


def _pick(merged: _Merged, section: str, name: str, field: str) -> _Source:
    try:
        return merged.entries[section][name]
    except KeyError:
        known = ", ".join(sorted(merged.entries[section])) or "none"
        raise errors.ConfigError(
            f"{_names(merged.files)}: {field}: no {section[:-1]} named {name!r} (there are: {known})"
        ) from None


_T = TypeVar("_T")


def _convert(source: _Source, kind: type[_T], key: str) -> _T:
    try:
        return msgspec.convert(source.body.get(key) or {}, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", f"`{source.field}.{key}.").replace("`$`", f"`{source.field}.{key}`")
        raise errors.ConfigError(f"{source.file}: {source.field}.{key}: {text}") from None


def _client_config(context: Context, cluster: Cluster, at: _Source, user: AuthInfo, who: _Source) -> ClientConfig:
    if user.auth_provider is not None:
        raise errors.ConfigError(f"{who.file}: {who.field}.user.auth-provider: no longer supported; use an exec plugin")
    _check_url(cluster.server, f"{at.file}: {at.field}.cluster.server")
    if cluster.proxy_url:
        _check_url(cluster.proxy_url, f"{at.file}: {at.field}.cluster.proxy-url")
    check_header(user.token or "", f"{who.file}: {who.field}.user.token")
    certificate = _material(who, "user.client-certificate", user.client_certificate, user.client_certificate_data)
    key = _material(who, "user.client-key", user.client_key, user.client_key_data)
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise errors.ConfigError(f"{who.file}: {who.field}.user.{missing}: missing; both are needed")
    return ClientConfig(
        server=cluster.server.rstrip("/"),
        namespace=context.namespace or "default",
        ca=_material(
            at,
            "cluster.certificate-authority",
            cluster.certificate_authority,
            cluster.certificate_authority_data,
        ),
        verify=not cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or None,  # TLS takes no empty name
        proxy_url=cluster.proxy_url or None,
        certificate=certificate,
        key=key,
        token=user.token or None,
        token_file=who.file.absolute().parent / user.token_file if user.token_file and not user.token else None,
        impersonate=_impersonation(user, who),
        exec=user.exec,
        exec_directory=who.file.absolute().parent,
    )


def _check_url(url: str, where: str) -> None:
    if not url.startswith(("https://", "http://")):
        raise errors.ConfigError(f"{where}: must start with https:// or http://")
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.hostname and parts.port != 0 and url.isprintable():
            return
    except ValueError:
        pass
    raise errors.ConfigError(f"{where}: is not a URL")


def _check_namespace(name: str, where: str) -> None:
    try:
        resources.PODS.path(namespace=name)
    except ValueError:
        raise errors.ConfigError(f"{where}: {shown(name)} is not the name of a namespace") from None


def check_header(text: str, where: str) -> None:
    """Raise `ConfigError` for a text with characters that no header of a request can have, such as line breaks."""
    if _CONTROL.search(text):
        raise errors.ConfigError(f"{where}: must be one line without control characters")


def _impersonation(user: AuthInfo, who: _Source) -> tuple[tuple[str, str], ...]:
    if not user.impersonate:
        return ()
    headers = [("Impersonate-User", user.impersonate)]
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    for key, values in (user.impersonate_extra or {}).items():
        name = f"Impersonate-Extra-{urllib.parse.quote(key, safe=_NAME_SAFE, errors='replace')}"
        headers += [(name, value) for value in values]
    for name, value in headers:
        check_header(value, f"{who.file}: {who.field}.user: {name}")
    return tuple(headers)


def _material(source: _Source, field: str, path: str | None, data: str | None) -> bytes | None:
    """Return PEM bytes from the inline field (which wins, as in kubectl) or from the file field."""
    if data:
        try:
            return _pem(base64.b64decode(data, validate=True), source, f"{field}-data")
        except ValueError as error:
            raise errors.ConfigError(f"{source.file}: {source.field}.{field}-data: not base64 ({error})") from None
    if path:
        return _pem(_read(source.file.parent / path, source.file, f"{source.field}.{field}"), source, field)
    return None


def _pem(material: bytes, source: _Source, field: str) -> bytes:
    if b"-----BEGIN " not in material:
        raise errors.ConfigError(f"{source.file}: {source.field}.{field}: not in PEM format")
    return material


def _read(path: Path, file: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.ConfigError(f"{file}: {field}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise errors.ConfigError(f"{file}: {field}: {str(path)!r} is no path: {error}") from None


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
