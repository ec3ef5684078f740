"""Each rule of each role is needed: without it, an account is rejected for just that, or something is not done."""

from __future__ import annotations

from pathlib import Path

from simgpu.kube.client import Client
from tests.fixtures.chart import Helm
from tests.fixtures.cluster import Cluster
from tests.permissions import roles, taking


async def test_it_is_noticed_when_any_rule_of_any_role_is_missing(
    cluster: Cluster, client: Client, helm: Helm, kwok_program: Path
) -> None:
    """Single permissions are taken away by `python -m tests.permissions`."""
    full = roles.full(helm)
    wanted = taking.cases(full, roles.rules)
    outcomes = await taking.Taker(cluster, client, full, kwok_program).take(wanted, report=print)
    assert {outcome.case for outcome in outcomes} == {*wanted}
    assert [str(outcome) for outcome in outcomes if outcome.wrong] == []
