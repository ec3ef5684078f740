"""The roles of each account: all permissions in them, and the same roles without some of them.

An account has here whatever the chart grants it in a cluster that serves everything, and what the examples grant beyond
that; KWOK's account has what load tests grant it. What accounts do with it is in `acting`, `serving` and `playing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from simgpu import vocabulary
from simgpu.loadtest.dependencies import kwok
from tests.fixtures import accounts, audit
from tests.fixtures.audit import Permission
from tests.fixtures.chart import SERVED, Helm, template

CLEANUP = "simgpu-cleanup"
ACCOUNTS = (accounts.CONTROLLER, accounts.AGENT, CLEANUP)  # of the chart
KWOK = kwok.NAME
EVERYTHING = (*SERVED, "topology.node.k8s.io/v1alpha2", "scheduling.run.ai/v2alpha2")
RUNAI = "runai"
_ROLES = ("Role", "ClusterRole")

Body = dict[str, Any]


def of_chart(helm: Helm, *options: str, served: tuple[str, ...] = EVERYTHING) -> dict[str, list[Body]]:
    """Return accounts with their roles and bindings, by name, as the chart has them beside Run:ai."""
    rendered = template(helm, "--set", "runai.enabled=true", *options, served=served)
    bodies = accounts.parts(rendered, vocabulary.DEFAULT_NAMESPACE)
    return {name: [body for body in bodies if body["metadata"]["name"] == name] for name in ACCOUNTS}


def of_examples() -> dict[str, list[Body]]:
    """Return accounts with their roles and bindings, by name, as the examples have them beside Run:ai."""
    found = {name: accounts.example(name, vocabulary.DEFAULT_NAMESPACE) for name in accounts.MANIFESTS}
    beside = accounts.MANIFESTS[accounts.AGENT].with_name("agent-runai.yaml")
    found[accounts.AGENT] += accounts.parts(beside.read_text(), vocabulary.DEFAULT_NAMESPACE)
    return found


def of_load_tests() -> dict[str, list[Body]]:
    """Return accounts with their roles and bindings, by name, as load tests create them."""
    found = []
    for resource, namespace, body in kwok.account():
        place = {"namespace": namespace} if namespace else {}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        found.append({**kind, **body, "metadata": {**body["metadata"], **place}})
    return {KWOK: found}


def joined(bodies: Sequence[Body], others: Sequence[Body]) -> list[Body]:
    """Return roles with those rules, too, that only the same roles of others have."""
    further = {_key(body): body["rules"] for body in others if body["kind"] in _ROLES}
    known = accounts.allowed(bodies)

    def extended(body: Body) -> Body:
        rules = [rule for rule in further.get(_key(body), ()) if not _granted(body, rule) <= known]
        return body | {"rules": [*body["rules"], *rules]}

    return [extended(body) if body["kind"] in _ROLES else body for body in bodies]


def full(helm: Helm) -> dict[str, list[Body]]:
    """Return each account with everything that any manifest, or a load test, grants it."""
    examples = of_examples()
    granted = {name: joined(bodies, examples.get(name, ())) for name, bodies in of_chart(helm).items()}
    return granted | of_load_tests()


def rules(bodies: Iterable[Body]) -> list[frozenset[Permission]]:
    """Return the permissions of each rule."""
    return [frozenset(_granted(body, rule)) for body, rule in _rules(bodies)]


def permissions(bodies: Iterable[Body]) -> list[frozenset[Permission]]:
    """Return each permission alone: a verb on a resource."""
    return [frozenset(_granted(body, single)) for body, rule in _rules(bodies) for single in _singles(rule)]


def without(bodies: Iterable[Body], taken: AbstractSet[Permission]) -> list[Body]:
    """Return roles that lack some permissions and have all others."""

    def reduced(body: Body) -> Body:
        singles = [single for rule in body["rules"] for single in _singles(rule)]
        return body | {"rules": [single for single in singles if not _granted(body, single) <= taken]}

    return [reduced(body) if body["kind"] in _ROLES else body for body in bodies]


def placed(bodies: Iterable[Body], namespaces: Mapping[str, str]) -> list[Body]:
    """Return accounts with roles and bindings of their own names in other namespaces, given by the usual ones."""
    suffix = namespaces[vocabulary.DEFAULT_NAMESPACE]
    return [_placed(body, namespaces, suffix) for body in bodies]


def moved(taken: Iterable[Permission], namespaces: Mapping[str, str]) -> frozenset[Permission]:
    """Return permissions in other namespaces, given by the usual ones, or on these."""
    return frozenset(
        item._replace(
            namespace=namespaces.get(item.namespace, item.namespace), name=namespaces.get(item.name, item.name)
        )
        for item in taken
    )


def _placed(body: Body, namespaces: Mapping[str, str], suffix: str) -> Body:
    meta = dict(body["metadata"])
    if "namespace" in meta:
        meta["namespace"] = namespaces[meta["namespace"]]
    if body["kind"] != "ServiceAccount":
        meta["name"] = f"{meta['name']}-{suffix}"
    moved = body | {"metadata": meta}
    if "rules" in body:
        moved["rules"] = [_renamed(rule, namespaces) for rule in body["rules"]]
    if "roleRef" in body:
        moved["roleRef"] = body["roleRef"] | {"name": f"{body['roleRef']['name']}-{suffix}"}
        moved["subjects"] = [item | {"namespace": namespaces[item["namespace"]]} for item in body["subjects"]]
    return moved


def _renamed(rule: Body, namespaces: Mapping[str, str]) -> Body:
    """Return a rule whose objects, if it names any, are namespaces."""
    names = rule.get("resourceNames")
    return rule | {"resourceNames": [namespaces[name] for name in names]} if names else rule


def _key(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"].get("namespace", "")


def _rules(bodies: Iterable[Body]) -> Iterator[tuple[Body, Body]]:
    for body in bodies:
        if body["kind"] in _ROLES:
            yield from ((body, rule) for rule in body["rules"])


def _singles(rule: Body) -> Iterator[Body]:
    """Yield a rule for each verb on each resource, or on each object that is named."""
    names = [{"resourceNames": [name]} for name in rule.get("resourceNames", ())] or [{}]
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for named in names:
                    yield rule | {"apiGroups": [group], "resources": [resource], "verbs": [verb]} | named


def _granted(body: Body, rule: Body) -> set[Permission]:
    return audit.granted([rule], body["metadata"].get("namespace", ""))
