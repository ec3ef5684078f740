"""Fixtures of this level: control planes with simulated nodes."""

from __future__ import annotations

from tests.fixtures.chart import helm
from tests.fixtures.cluster import client, cluster, kwok_program, namespace, programs
from tests.fixtures.controller import fleet
from tests.fixtures.dra import registry
from tests.fixtures.kubelet import kubelet
from tests.fixtures.leading import quick
from tests.fixtures.prometheus import prometheus
from tests.fixtures.rough import rough

__all__ = [
    "client",
    "cluster",
    "fleet",
    "helm",
    "kubelet",
    "kwok_program",
    "namespace",
    "programs",
    "prometheus",
    "quick",
    "registry",
    "rough",
]
