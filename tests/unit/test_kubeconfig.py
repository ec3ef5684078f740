"""Reading kubeconfigs: merging, contexts, and errors that name the file and the field."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.kube import errors, kubeconfig


def config(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example.com:6443/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    return {**document, **changes}


def pem(text: str) -> bytes:
    return f"-----BEGIN {text}-----\n".encode()


def write(path: Path, document: object) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_token_context(tmp_path: Path) -> None:
    target = kubeconfig.load(write(tmp_path / "a", config()))
    assert (target.server, target.namespace, target.token) == ("https://api.example.com:6443", "team", "secret")
    assert target.verify


def test_certificates_inline_and_as_files_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "client.crt").write_bytes(pem("CERT"))
    user = {"client-certificate": "client.crt", "client-key-data": base64.b64encode(pem("KEY")).decode()}
    cluster = {"server": "https://a", "certificate-authority-data": base64.b64encode(pem("CA")).decode()}
    document = config(users=[{"name": "u", "user": user}], clusters=[{"name": "c", "cluster": cluster}])
    target = kubeconfig.load(write(tmp_path / "a", document))
    assert (target.certificate, target.key, target.ca) == (pem("CERT"), pem("KEY"), pem("CA"))


def test_the_first_of_several_files_wins_and_missing_ones_are_passed_over(tmp_path: Path) -> None:
    first = write(tmp_path / "1", {"current-context": "x", "users": [{"name": "u", "user": {"token": "first"}}]})
    second = write(tmp_path / "2", config())
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"}
    target = kubeconfig.load(environ=environ)
    assert (target.token, target.namespace) == ("first", "team")


def test_a_named_context_is_used_instead_of_the_current_one(tmp_path: Path) -> None:
    contexts = [{"name": "x", "context": {"cluster": "c"}}, {"name": "y", "context": {"cluster": "c", "user": "u"}}]
    path = write(tmp_path / "a", config(contexts=contexts))
    assert kubeconfig.load(path).token is None
    assert kubeconfig.load(path, context="y").token == "secret"


def test_a_token_wins_over_a_token_file(tmp_path: Path) -> None:
    document = config(users=[{"name": "u", "user": {"token": "given", "tokenFile": "other"}}])
    assert kubeconfig.load(write(tmp_path / "a", document)).token_file is None


def test_empty_names_of_a_proxy_and_of_the_servers_certificate_count_as_absent(tmp_path: Path) -> None:
    cluster = {"server": "https://a", "tls-server-name": "", "proxy-url": ""}
    target = kubeconfig.load(write(tmp_path / "a", config(clusters=[{"name": "c", "cluster": cluster}])))
    assert (target.tls_server_name, target.proxy_url) == (None, None)


def test_impersonation_is_carried_along(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"acme.com/Scope": ["x"]},
    }
    target = kubeconfig.load(write(tmp_path / "a", config(users=[{"name": "u", "user": user}])))
    assert target.impersonate == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-acme.com%2FScope", "x"),
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"current-context": ""}, "current-context is not set"),
        ({"current-context": "z"}, "current-context: no context named 'z' (there are: x)"),
        ({"clusters": []}, "contexts[0].context.cluster: no cluster named 'c' (there are: none)"),
        ({"users": "nobody"}, "users: must be a list"),
        ({"users": [{"user": {}}]}, "users[0].name: must be a string"),
        ({"clusters": [{"name": "c", "cluster": {"server": 5}}]}, "`clusters[0].cluster.server`"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "clusters[0].cluster"),
        ({"clusters": [{"name": "c", "cluster": {"server": "api:6443"}}]}, "must start with https:// or http://"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://[::1"}}]},
            "clusters[0].cluster.server: is not a URL",
        ),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://a:70000"}}]}, "cluster.server: is not a URL"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://a", "proxy-url": "socks5://p:1"}}]},
            "clusters[0].cluster.proxy-url: must start with https:// or http://",
        ),
        ({"users": [{"name": "u", "user": {"token": "a\nb"}}]}, "users[0].user.token: must be one line"),
        (
            {"users": [{"name": "u", "user": {"as": "jane", "as-groups": ["a\r\nb"]}}]},
            "users[0].user: Impersonate-Group: must be one line",
        ),
        (
            {"contexts": [{"name": "x", "context": {"cluster": "c", "namespace": "a/b"}}]},
            "contexts[0].context.namespace: 'a/b' is not the name of a namespace",
        ),
        ({"users": [{"name": "u", "user": {"client-certificate-data": "?"}}]}, "client-certificate-data: not base64"),
        ({"users": [{"name": "u", "user": {"client-key-data": "é"}}]}, "client-key-data: not base64"),
        ({"users": [{"name": "u", "user": {"client-key": "no.key"}}]}, "users[0].user.client-key: cannot read"),
        ({"users": [{"name": "u", "user": {"client-key": "a\0b"}}]}, "users[0].user.client-key: "),
        (
            {"users": [{"name": "u", "user": {"client-key-data": "SGk="}}]},
            "client-key-data: not in PEM format",
        ),
        (
            {"users": [{"name": "u", "user": {"client-key-data": base64.b64encode(b"-----BEGIN X").decode()}}]},
            "users[0].user.client-certificate: missing",
        ),
        ({"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, "use an exec plugin"),
        ({"users": [{"name": "u", "user": {"exec": {"command": "x"}}}]}, "users[0].user.exec"),
    ],
)
def test_a_broken_kubeconfig_names_the_file_and_the_field(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "broken", config(**changes))
    with pytest.raises(errors.ConfigError) as caught:
        kubeconfig.load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "says"), [("{", "not YAML"), ("- 1", "must hold a mapping"), (None, "No such file")])
def test_files_that_are_no_kubeconfig_at_all(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "broken"
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.ConfigError, match=says):
        kubeconfig.load(path)


def test_nothing_configured_says_what_could_be(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="set KUBECONFIG"):
        kubeconfig.load(environ={"HOME": str(tmp_path)})
    with pytest.raises(errors.ConfigError, match="no such file"):
        kubeconfig.load(environ={"KUBECONFIG": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_in_a_pod_the_service_account_is_used(tmp_path: Path, host: str, server: str) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "namespace").write_text("team\n")
    target = kubeconfig.in_cluster({"KUBERNETES_SERVICE_HOST": host}, tmp_path)
    assert (target.server, target.namespace, target.ca) == (server, "team", b"CA")
    assert target.token_file == tmp_path / "token"


def test_in_a_pod_with_an_odd_namespace_file_the_default_or_what_can_be_read_is_used(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    for content, namespace in ((b"\n", "default"), (b"team\xff", "team\ufffd")):
        (tmp_path / "namespace").write_bytes(content)
        assert kubeconfig.in_cluster({"KUBERNETES_SERVICE_HOST": "a"}, tmp_path).namespace == namespace


def test_a_key_that_stands_twice_is_read_as_kubectl_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path / "config", config())
    path.write_text(path.read_text() + "\ncurrent-context: other\ncurrent-context: main\n")
    assert kubeconfig._parse(path)["current-context"] == "main"


@pytest.mark.parametrize(
    ("environ", "content", "says"),
    [
        ({"KUBERNETES_SERVICE_HOST": "a", "KUBERNETES_SERVICE_PORT": "tcp://1"}, "ns", "KUBERNETES_SERVICE_PORT: "),
        ({"KUBERNETES_SERVICE_HOST": "a"}, "a/b", "namespace: 'a/b' is not the name of a namespace"),
        ({"KUBERNETES_SERVICE_HOST": ""}, "ns", "this is not a pod"),
    ],
)
def test_a_broken_service_account_names_what_is_wrong(
    tmp_path: Path, environ: dict[str, str], content: str, says: str
) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "namespace").write_text(content)
    with pytest.raises(errors.ConfigError, match=says):
        kubeconfig.in_cluster(environ, tmp_path)


def test_a_kubeconfig_that_may_not_be_looked_at_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", forbidden)
    for environ in ({"KUBECONFIG": str(tmp_path)}, {"HOME": str(tmp_path)}):
        with pytest.raises(errors.ConfigError, match=str(tmp_path)):
            kubeconfig.load(environ=environ)


def test_without_a_home_nothing_is_configured() -> None:
    with pytest.raises(errors.ConfigError, match="set KUBECONFIG"):
        kubeconfig.load(environ={"HOME": "~nobody-of-this-name"})
