"""Which permissions are taken away from accounts: all that any manifest grants, each once, and nothing else with it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures import accounts, audit
from tests.fixtures.audit import Permission
from tests.fixtures.cluster import eventually
from tests.permissions import roles, taking
from tests.permissions.taking import Case, Decision, How, Outcome

ROOT = Path(__file__).parents[2]
RENDERED = sorted((ROOT / "tests" / "golden" / "chart").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
SOURCES = (".py", ".yaml", ".yml", ".json", ".tpl", ".txt", ".sh")
NODES = Permission("list", "nodes", "")
MAPS = Permission("delete", "configmaps", "gpu-operator")
RUNAI = Permission("get", "namespaces", "", "runai")


def role(*rules: dict[str, Any], namespace: str = "") -> roles.Body:
    place = {"namespace": namespace} if namespace else {}
    return {"kind": "Role" if namespace else "ClusterRole", "metadata": {"name": "r", **place}, "rules": [*rules]}


def rule(resource: str, *verbs: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": [*verbs], **more}


def found(path: Path) -> Iterator[roles.Body]:
    """Every role in a file, wherever it is in it."""
    text = path.read_text()
    for document in yaml.safe_load_all(text) if "Role" in text else ():  # others may be templates
        items = document.get("items", [document]) if isinstance(document, dict) else []
        yield from (item for item in items if item.get("kind") in ("Role", "ClusterRole"))


def test_each_rule_of_each_role_of_the_examples_is_taken_away() -> None:
    written = [(path, rule) for path in EXAMPLES for body in found(path) for rule in body["rules"]]
    known = roles.of_examples()
    assert len(written) == sum(len(roles.rules(bodies)) for bodies in known.values()) > 20
    for path, wanted in written:
        assert any(wanted in body["rules"] for bodies in known.values() for body in bodies if "rules" in body), path


def test_only_the_chart_and_load_tests_make_roles() -> None:
    files = [path for top in ("src", "deploy") for path in (ROOT / top).rglob("*") if path.suffix in SOURCES]
    assert {str(path.relative_to(ROOT)) for path in files if "rbac.authorization.k8s.io" in path.read_text()} == {
        "deploy/chart/templates/cleanup.yaml",
        "deploy/chart/templates/rbac.yaml",
        "src/simgpu/loadtest/dependencies/kinds.py",  # for kwok.py beside it
    }
    kinds = re.compile(r"\b(CLUSTER_)?ROLE(_BINDING)?S\b")
    used = {path.name for path in files if path.suffix == ".py" and kinds.search(path.read_text())}
    assert used == {"kinds.py", "kwok.py"}


def test_each_permission_of_a_role_is_taken_away_once() -> None:
    for account, bodies in (roles.of_examples() | roles.of_load_tests()).items():
        taken = roles.permissions(bodies)
        assert {permission for part in taken for permission in part} == accounts.allowed(bodies), account
        assert len(set(taken)) == len(taken), f"{account} is granted something twice"
        assert all(len(part) == 1 for part in taken)


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_chart_has_no_roles_of_other_accounts(path: Path) -> None:
    assert {body["metadata"]["name"] for body in found(path)} <= {*roles.ACCOUNTS}


def test_an_account_keeps_whatever_is_not_taken_away() -> None:
    bodies = [
        role(rule("nodes", "list", "watch"), rule("events", "create")),
        role(rule("configmaps", "list", "delete"), namespace="gpu-operator"),
    ]
    for part in (*roles.permissions(bodies), *roles.rules(bodies)):
        assert accounts.allowed(roles.without(bodies, part)) == accounts.allowed(bodies) - part
    assert accounts.allowed(roles.without(bodies, frozenset())) == accounts.allowed(bodies)


def test_a_permission_that_is_granted_only_for_some_names_stays_so() -> None:
    body = role(rule("namespaces", "get", "list", resourceNames=["runai", "other"]))
    taken = frozenset({Permission("get", "namespaces", "", "runai")})
    [left] = roles.without([body], taken)
    assert accounts.allowed([left]) == accounts.allowed([body]) - taken
    assert all(len(part) == 1 for part in roles.permissions([body]))
    moved = roles.moved(taken, {"runai": "here"})
    assert [str(Case("a", moved))] == ["a without get of namespaces here"]


def test_a_permission_for_one_name_is_another_than_for_all_names() -> None:
    named = accounts.allowed([role(rule("namespaces", "get", resourceNames=["runai"]))])
    widened = accounts.allowed([role(rule("namespaces", "get"))])
    assert named == {Permission("get", "namespaces", "", "runai")} != widened
    acts = audit.acts([written("get", 200, resource="namespaces", name="runai")], namespace="here")
    assert audit.used(acts, named) == named
    assert audit.used(acts, widened) == widened
    others = audit.acts([written("get", 200, resource="namespaces", name="kube-system")], namespace="here")
    assert audit.used(others, named) == widened, "which is more than it may"


def test_accounts_side_by_side_have_roles_of_their_own() -> None:
    moved = [
        body
        for bodies in roles.of_examples().values()
        for namespace in ("one", "two")
        for body in roles.placed(bodies, taking.places(namespace, f"{namespace}-reservations"))
    ]
    names = [(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in moved]
    assert len({*names}) == len(names)
    assert "gpu-operator" not in json.dumps(moved)


def test_rules_that_only_an_example_has_are_taken_away_too() -> None:
    chart, example = [role(rule("nodes", "list"))], [role(rule("nodes", "list"), rule("pods", "list"))]
    assert roles.rules(roles.joined(chart, example)) == [{NODES}, {Permission("list", "pods", "")}]


def test_a_case_is_named_by_what_is_missing() -> None:
    assert str(Case("simgpu-cleanup", frozenset({MAPS}))) == (
        "simgpu-cleanup without delete of configmaps in gpu-operator"
    )
    assert str(Case("simgpu-agent")) == "simgpu-agent"


def written(
    verb: str,
    code: int,
    *,
    account: str = "simgpu-agent",
    resource: str = "nodes",
    namespace: str = "",
    name: str = "",
    decision: str = "forbid",
) -> str:
    """A line of the API server's log."""
    user = {"username": f"system:serviceaccount:here:{account}"}
    target = {"resource": resource, "namespace": namespace, "name": name}
    annotations = {"authorization.k8s.io/decision": decision}
    status = {"code": code}
    event = {"user": user, "verb": verb, "objectRef": target, "responseStatus": status, "annotations": annotations}
    return json.dumps(event)


LISTING = Case("simgpu-agent", frozenset({NODES}))


async def decide(tmp_path: Path, doing: Coroutine[Any, Any, None], case: Case = LISTING) -> Decision:
    async with asyncio.timeout(20):
        return await taking.decide(doing, tmp_path, "here", case, {"gpu-operator": "here"})


async def write(tmp_path: Path, *lines: str) -> None:
    """Write lines to the log, and go on for a long time."""
    with (tmp_path / "audit.log").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    await asyncio.sleep(3600)


async def test_a_case_is_decided_by_the_first_request_that_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text(f"{written('watch', 403)}\n")  # from before the case
    lines = (
        written("list", 403, account="other"),
        written("create", 403, resource="selfsubjectaccessreviews"),
        written("get", 200),
        written("list", 403),
    )
    assert await decide(tmp_path, write(tmp_path, *lines)) == Decision(How.REQUEST, "403: list nodes")


@pytest.mark.parametrize(
    ("line", "taken", "how"),
    [
        (written("list", 403), NODES, How.REQUEST),
        (written("watch", 403), NODES, None),
        (written("list", 403, resource="nodes/status"), NODES, None),
        (written("list", 403, namespace="there"), NODES, How.REQUEST),  # of all namespaces
        (written("delete", 403, resource="configmaps", namespace="here"), MAPS, How.REQUEST),
        (written("delete", 403, resource="configmaps", namespace="there"), MAPS, None),
        (written("get", 403, resource="namespaces", name="runai"), RUNAI, How.REQUEST),
        (written("get", 403, resource="namespaces", name="other"), RUNAI, None),
        (written("patch", 403, resource="events"), Permission("patch", "events", ""), How.REQUEST),
        (written("patch", 403, resource="events"), Permission("create", "events", ""), None),
        (written("patch", 403, resource="events", decision="allow"), Permission("create", "events", ""), How.CREATION),
        (written("patch", 403, resource="events", decision="allow"), Permission("patch", "events", ""), None),
        (written("create", 403, resource="events"), Permission("patch", "events", ""), None),
    ],
)
async def test_only_a_request_for_what_was_taken_away_counts(
    tmp_path: Path, line: str, taken: Permission, how: How | None
) -> None:
    case = Case("simgpu-agent", frozenset({taken}))
    decision = await decide(tmp_path, write(tmp_path, line), case)
    assert decision.how is how
    assert bool(decision.mistake) is (how is None)
    assert Outcome(case, decision, 1.0).wrong is (how is None)


async def test_a_case_is_wrong_if_something_else_was_rejected_too(tmp_path: Path) -> None:
    lines = (written("list", 403), written("list", 403, resource="pods"))
    decision = await decide(tmp_path, write(tmp_path, *lines))
    assert decision == Decision(mistake="403 for what was not taken away: list pods")


async def test_an_account_that_lacks_nothing_must_not_be_rejected(tmp_path: Path) -> None:
    case = Case("simgpu-agent")
    assert Outcome(case, await decide(tmp_path, write(tmp_path, written("list", 403)), case), 1.0).wrong


CLASSES = Case("simgpu-controller", frozenset({Permission("patch", "resource.k8s.io/deviceclasses", "")}))


async def test_a_case_is_decided_by_what_is_not_done_where_the_program_asks_first(tmp_path: Path) -> None:
    async def assert_it() -> None:
        raise AssertionError("left behind: lease\nand more")

    async def act() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(assert_it())

    what = "not done: left behind: lease"
    assert await decide(tmp_path, assert_it(), CLASSES) == Decision(How.NOT_DONE, what)
    assert await decide(tmp_path, act(), CLASSES) == Decision(How.NOT_DONE, what)
    assert await decide(tmp_path, act()) == Decision(mistake=what)


async def test_a_time_limit_makes_a_case_wrong(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    decision = await decide(tmp_path, eventually(never, seconds=0), CLASSES)
    assert decision == Decision(mistake="not done: not within 0 s; last answer: False")
    assert Outcome(CLASSES, decision, 1.0).wrong


async def test_a_case_in_which_everything_is_done_is_not_noticed(tmp_path: Path) -> None:
    async def act() -> None:
        (tmp_path / "audit.log").write_text(f"{written('list', 200)}\n")

    decision = await decide(tmp_path, act())
    assert decision == Decision()
    assert Outcome(LISTING, decision, 1.0).wrong
    assert not Outcome(Case("simgpu-agent"), decision, 1.0).wrong


async def test_a_mistake_of_a_test_is_not_taken_for_a_missing_permission(tmp_path: Path) -> None:
    async def act() -> None:
        raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        await decide(tmp_path, act())


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text("earlier\n")
    tail = audit.Tail(tmp_path)
    with log.open("a") as file:
        file.write("one\ntw")
    assert tail.read() == ["one"]
    with log.open("a") as file:
        file.write("o\n")
    assert tail.read() == ["two"]
    assert tail.read() == []
