"""Fixtures of this level: a node that really runs containers."""

from __future__ import annotations

from tests.fixtures.agent import equipped, gpus
from tests.fixtures.cluster import programs
from tests.fixtures.node import node
from tests.fixtures.nvidia_programs import nvidia_programs
from tests.fixtures.operator import prometheus_operator
from tests.fixtures.prometheus import prometheus
from tests.fixtures.release import release
from tests.fixtures.services import services
from tests.fixtures.systems import musl_image, our_image, python_image, simgpu_image
from tests.fixtures.wheel import wheel

__all__ = [
    "equipped", "gpus", "musl_image", "node", "nvidia_programs", "our_image", "programs", "prometheus",
    "prometheus_operator", "python_image", "release", "services", "simgpu_image", "wheel",
]  # fmt: skip
