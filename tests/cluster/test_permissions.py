"""What accounts may do and what they do are the same: each permission is used, and nothing else is tried."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simgpu.dra import classes
from simgpu.dra.versions import ServedApi
from simgpu.kube import resources
from simgpu.kube.client import Client
from tests.fixtures import accounts, audit, pod_groups, served_types, zones
from tests.fixtures.chart import Helm
from tests.fixtures.cluster import new_namespace
from tests.fixtures.controller import Fleet
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet
from tests.permissions import acting, roles, serving, taking


@pytest.fixture
async def fleet(fleet: Fleet) -> AsyncIterator[Fleet]:
    """A fleet in a cluster that serves whatever a controller can use."""
    async with served_types.served(fleet.client, zones.TYPE, pod_groups.TYPE):
        yield fleet


@pytest.fixture
async def reservations(client: Client) -> AsyncIterator[str]:
    """A namespace of pods that reserve GPUs."""
    async with new_namespace(client) as name:
        yield name


def assert_exact(fleet: Fleet, name: str, allowed: set[audit.Permission]) -> None:
    """An account was never rejected, and used whatever it may."""
    written = audit.lines(fleet.cluster.state_home)
    done = [act for act in audit.acts(written, namespace=fleet.namespace) if act.account == name]
    assert [act for act in done if act.code == 403] == []
    assert audit.used(done, allowed) == allowed


async def test_a_controller_and_a_cleanup_use_each_permission_and_try_nothing_else(
    fleet: Fleet, reservations: str, helm: Helm
) -> None:
    places = taking.places(fleet.namespace, reservations)
    controllers = roles.placed(roles.of_examples()[accounts.CONTROLLER], places)
    cleanups = roles.placed(roles.of_chart(helm)[roles.CLEANUP], places)
    async with taking.account(fleet, controllers) as controlling, taking.account(fleet, cleanups) as cleaning:
        fleet.cluster = controlling

        async def withdraw(fleet: Fleet) -> None:
            """Controllers that run remove what is theirs, and wait."""
            await acting.clean(fleet, cleaning, wait=60)

        for name in classes.device_classes(ServedApi()):  # so that it creates them
            await fleet.client.delete(resources.DEVICE_CLASSES, name)
        node = await acting.control(fleet, withdraw=withdraw)
        for controller in fleet.controllers:
            controller.stop(signal.SIGKILL)
        # What a controller that was killed has left behind, the cleanup removes itself.
        await acting.leave_behind(fleet, node)
        await acting.clean(fleet, cleaning, wait=0.1)
        assert await acting.left(fleet, node) == []
        assert_exact(fleet, accounts.CONTROLLER, accounts.allowed(controllers))
        assert_exact(fleet, roles.CLEANUP, accounts.allowed(cleanups))


def test_the_chart_grants_what_the_examples_grant(helm: Helm) -> None:
    """So that what is shown for the one is true of the other."""
    chart, examples = (
        {name: accounts.allowed(bodies) for name, bodies in found.items()}
        for found in (roles.of_chart(helm), roles.of_examples())
    )
    beside_runai = {
        audit.Permission("patch", "pods", "runai-reservation"),
        audit.Permission("get", "namespaces", "", "runai"),
        audit.Permission("get", "monitoring.coreos.com/prometheusrules", ""),
        audit.Permission("create", "monitoring.coreos.com/prometheusrules", ""),
    }
    classes = {audit.Permission(verb, "resource.k8s.io/deviceclasses", "") for verb in ("create", "patch")}
    assert chart[accounts.AGENT] == examples[accounts.AGENT]
    assert chart[accounts.CONTROLLER] - beside_runai == examples[accounts.CONTROLLER] - classes  # Helm makes those


async def test_the_kwok_of_load_tests_uses_each_permission_and_tries_nothing_else(
    fleet: Fleet, reservations: str, kwok_program: Path
) -> None:
    places = taking.places(fleet.namespace, reservations)
    granted = roles.placed(roles.of_load_tests()[roles.KWOK], places)
    async with taking.account(fleet, granted) as seen:
        fleet.cluster = seen
        await taking.play(taking.Place(fleet, reservations), kwok_program)
        assert_exact(fleet, roles.KWOK, accounts.allowed(granted))


async def test_an_agent_uses_each_permission_and_tries_nothing_else(
    fleet: Fleet, reservations: str, kubelet: Kubelet, registry: Registry
) -> None:
    agents = roles.placed(roles.of_examples()[accounts.AGENT], taking.places(fleet.namespace, reservations))
    await serving.publish_classes(fleet)
    async with taking.account(fleet, agents) as seen:
        fleet.cluster = seen
        await serving.serve(fleet, reservations=reservations, kubelet=kubelet, registry=registry)
        assert_exact(fleet, accounts.AGENT, accounts.allowed(agents))


async def test_an_agent_without_dra_uses_each_permission_that_is_left_and_tries_nothing_else(
    fleet: Fleet, reservations: str, kubelet: Kubelet, registry: Registry, helm: Helm
) -> None:
    """Claims that an earlier agent prepared are looked after all the same."""
    granted = roles.of_chart(helm, "--set", "components.dra=false")[accounts.AGENT]
    agents = roles.placed(granted, taking.places(fleet.namespace, reservations))
    await serving.publish_classes(fleet)
    async with taking.account(fleet, agents) as seen:
        await serving.serve_without_dra(fleet, seen, reservations=reservations, kubelet=kubelet, registry=registry)
        assert_exact(fleet, accounts.AGENT, accounts.allowed(agents))
