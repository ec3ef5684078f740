"""The accounts of SimGPU's processes: the permissions of `examples/`, and kubeconfigs that lead through the proxy."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import yaml

from simgpu import vocabulary, yaml_text
from simgpu.kube import resources, views
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = {
    "simgpu-controller": EXAMPLES / "09-controller-rights" / "controller-rights.yaml",
    "simgpu-agent": EXAMPLES / "08-agent" / "agent.yaml",
}
_RBAC = "rbac.authorization.k8s.io"
_KINDS: dict[str, Resource[Any]] = {
    resource.kind: resource
    for resource in (
        resources.SERVICE_ACCOUNTS,
        Resource("ClusterRole", "clusterroles", views.Object, group=_RBAC, namespaced=False),
        Resource("ClusterRoleBinding", "clusterrolebindings", views.Object, group=_RBAC, namespaced=False),
        Resource("Role", "roles", views.Object, group=_RBAC),
        Resource("RoleBinding", "rolebindings", views.Object, group=_RBAC),
    )
}
_TOKEN_SECONDS = 24 * 3600


class _TokenRequest(views.Object, frozen=True):
    status: dict[str, str] = msgspec.field(default_factory=dict)


_TOKENS = Resource("ServiceAccount", "serviceaccounts", _TokenRequest)


def permissions(account: str, namespace: str) -> list[dict[str, Any]]:
    """Return the account, its roles and their bindings, in a namespace, as the manifest has them."""
    text = (
        MANIFESTS[account].read_text().replace(f"namespace: {vocabulary.DEFAULT_NAMESPACE}", f"namespace: {namespace}")
    )
    return [body for body in yaml_text.parse_all(text.encode()) if body["kind"] in _KINDS]


async def create(client: Client, account: str, namespace: str) -> str:
    """Create an account with its permissions. Return a token of it."""
    for body in permissions(account, namespace):
        where = body["metadata"].get("namespace", "")
        resource = _KINDS[body["kind"]]
        await client.apply(resource, body["metadata"]["name"], body, namespace=where, manager="soak", force=True)
    spec = {"spec": {"expirationSeconds": _TOKEN_SECONDS}}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", **spec}
    answer = await client.create(_TOKENS, request, namespace=namespace, name=account, subresource="token")
    return answer.status["token"]


def write_kubeconfig(path: Path, *, server: str, authority: Path, token: str) -> None:
    """Write a kubeconfig with a token."""
    data = base64.b64encode(authority.read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "soak", "cluster": {"server": server, "certificate-authority-data": data}}],
        "users": [{"name": "soak", "user": {"token": token}}],
        "contexts": [{"name": "soak", "context": {"cluster": "soak", "user": "soak"}}],
        "current-context": "soak",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
