"""Ways to show who we are to a real API server."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.kube import errors, kubeconfig, resources, views
from simgpu.kube.client import Client
from simgpu.kube.wire import Retries
from tests.fixtures.cluster import Cluster


class IssuedToken(views.Object, frozen=True):
    status: dict[str, Any]


TOKENS = resources.Resource("TokenRequest", "serviceaccounts", IssuedToken)


def document(cluster: Cluster) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
    return parsed


async def nodes_seen_with(document: dict[str, Any], folder: Path) -> int:
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    async with Client(kubeconfig.load(path), retries=Retries(attempts=1)) as client:
        return len(await client.list(resources.NODES))


async def test_an_exec_plugin_that_prints_a_certificate(cluster: Cluster, tmp_path: Path) -> None:
    config = document(cluster)
    user = config["users"][0]["user"]
    pair = {name: base64.b64decode(user[f"client-{name}-data"]).decode() for name in ("certificate", "key")}
    status = {"clientCertificateData": pair["certificate"], "clientKeyData": pair["key"]}
    printed = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"print({printed!r})\n")
    version = "client.authentication.k8s.io/v1"
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(plugin)]}}
    assert await nodes_seen_with(config, tmp_path) >= 3


async def test_a_server_of_unknown_authority_is_refused_unless_told_otherwise(cluster: Cluster, tmp_path: Path) -> None:
    config = document(cluster)
    entry = config["clusters"][0]["cluster"]
    del entry["certificate-authority-data"]
    with pytest.raises(errors.ConnectError, match="certificate verify failed"):
        await nodes_seen_with(config, tmp_path)
    entry["insecure-skip-tls-verify"] = True
    assert await nodes_seen_with(config, tmp_path) >= 3


async def test_the_servers_name_can_be_given(cluster: Cluster, tmp_path: Path) -> None:
    config = document(cluster)
    config["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes.default.svc"
    assert await nodes_seen_with(config, tmp_path) >= 3
    config["clusters"][0]["cluster"]["tls-server-name"] = "somebody.else"
    with pytest.raises(errors.ConnectError):
        await nodes_seen_with(config, tmp_path)


async def test_impersonation_is_what_the_server_judges_by(cluster: Cluster, tmp_path: Path) -> None:
    config = document(cluster)
    config["users"][0]["user"]["as"] = "nobody-in-particular"
    with pytest.raises(errors.Forbidden, match="nobody-in-particular"):
        await nodes_seen_with(config, tmp_path)


async def test_a_token_that_nobody_issued_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    config = document(cluster)
    config["users"][0]["user"] = {"token": "invented"}
    with pytest.raises(errors.Unauthorized):
        await nodes_seen_with(config, tmp_path)


async def test_a_service_accounts_token_file(cluster: Cluster, client: Client, namespace: str, tmp_path: Path) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    issued = await client.create(TOKENS, body, name="default", namespace=namespace, subresource="token")
    (tmp_path / "token").write_text(issued.status["token"])
    config = document(cluster)
    config["users"][0]["user"] = {"tokenFile": "token"}
    with pytest.raises(errors.Forbidden, match=f"system:serviceaccount:{namespace}:default"):
        await nodes_seen_with(config, tmp_path)
