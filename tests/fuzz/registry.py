"""All targets in Python, by name. Importing this imports most of the project."""

from __future__ import annotations

from tests.fuzz.inputs import (
    annotated,
    answered,
    clusters,
    commands,
    configured,
    containers,
    credentials,
    discovered,
    dividing,
    holders,
    kubelets,
    leftovers,
    loadtests,
    machines,
    objects,
    served,
    sockets,
    watchers,
    workloads,
)
from tests.fuzz.target import Target

MODULES = (
    annotated, answered, clusters, commands, configured, containers, credentials, discovered, dividing, holders,
    kubelets, leftovers, loadtests, machines, objects, served, sockets, watchers, workloads,
)  # fmt: skip
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
