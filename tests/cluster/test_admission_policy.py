"""The chart's admission policy: agents change only what belongs to their node, and each validation is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from simgpu.kube.client import Client
from tests.fixtures import served_types, zones
from tests.fixtures.admission import Agents, Attempt, DryRuns, Place, dry_runs
from tests.fixtures.chart import Helm
from tests.fixtures.cluster import Cluster, eventually, new_namespace

# What agents are told, by what they try to change, in the order of the policy's validations.
MESSAGES = {
    "": "an agent's token must be bound to the pod on its node",
    "nodes": "an agent may change its own node only",
    "pods": "an agent may change pods of its own node only",
    "resourceslices": "an agent may change ResourceSlices of its own node only",
    "noderesourcetopologies": "an agent may change the NodeResourceTopology of its own node only",
    "configmaps": "an agent may change the ConfigMap of its own node only",
}
UNBOUND, NODES, *_ = range(len(MESSAGES))


@pytest.fixture
async def place(client: Client, namespace: str) -> AsyncIterator[Place]:
    async with new_namespace(client) as reservations, served_types.served(client, zones.TYPE):
        made = Place(client, namespace, reservations)
        try:
            await made.fill()
            yield made
        finally:
            await made.empty()


@pytest.fixture
async def runs(cluster: Cluster) -> AsyncIterator[DryRuns]:
    async with dry_runs(cluster.kubeconfig) as made:
        yield made


def flat(attempts: dict[str, list[Attempt]]) -> list[Attempt]:
    return [attempt for some in attempts.values() for attempt in some]


def rejected(attempts: dict[str, list[Attempt]], *, but: str = "none") -> dict[str, str]:
    """Each attempt with what an agent is told; those on one resource are allowed."""
    return {str(item): MESSAGES[of] if of != but else "" for of, some in attempts.items() for item in some}


async def in_force(runs: DryRuns, token: str, attempt: Attempt) -> None:
    """Wait until a policy rejects an attempt: the API server looks for new ones about once a second."""
    await eventually(lambda: runs.denied(token, attempt))


async def test_agents_change_only_what_belongs_to_their_node(helm: Helm, place: Place, runs: DryRuns) -> None:
    agents = Agents(helm, place)
    own, other, nobody = place.of_node(place.own), place.of_node(place.other), place.of_nobody()
    events = {(verb, "events") for verb in ("create", "patch")}
    assert {attempt.permission for attempt in flat(own)} == agents.writes - events, "else something is not tried"
    assert agents.messages == [*MESSAGES.values()]
    async with agents.installed():
        bound, unbound, long = [await agents.token(node) for node in (place.own, "", place.long)]
        await in_force(runs, bound, other["nodes"][0])
        assert await runs.all_denied(bound, flat(own)) == dict.fromkeys(map(str, flat(own)), "")
        assert await runs.all_denied(bound, flat(other)) == rejected(other)
        assert await runs.all_denied(bound, flat(nobody)) == rejected(nobody)
        for some in (own, nobody):
            assert {*(await runs.all_denied(unbound, flat(some))).values()} == {MESSAGES[""]}
        # The view's name has only the beginning of such a name.
        views = {"configmaps": place.of_view(place.own)}
        mine = place.of_view(place.long)
        assert await runs.all_denied(long, flat(views)) == rejected(views)
        assert await runs.all_denied(long, mine) == dict.fromkeys(map(str, mine), "")
        assert await runs.all_denied(bound, mine) == rejected({"configmaps": mine})


async def test_without_any_of_its_validations_agents_change_what_it_is_about(
    helm: Helm, place: Place, runs: DryRuns
) -> None:
    other, nobody = place.of_node(place.other), place.of_nobody()
    del nobody["configmaps"]  # which a token without a node may not change all the same

    async def lacking(number: int, resource: str) -> None:
        agents = Agents(helm, place, lacking=number)
        async with agents.installed():
            bound, unbound = [await agents.token(node) for node in (place.own, "")]
            await in_force(runs, bound, other["pods" if number == NODES else "nodes"][0])
            assert await runs.all_denied(bound, flat(other)) == rejected(other, but=resource)
            found = await runs.all_denied(unbound, flat(nobody))
            assert {*found.values()} == {"" if number == UNBOUND else MESSAGES[""]}

    async with asyncio.TaskGroup() as group:
        for number, resource in enumerate(MESSAGES):
            group.create_task(lacking(number, resource))
