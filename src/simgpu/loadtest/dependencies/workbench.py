"""What all dependencies work with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from simgpu import errors
from simgpu.kube.client import Client
from simgpu.loadtest.ownership import Run
from simgpu.loadtest.run_progress import RunProgress
from simgpu.loadtest.served import Served


class DependencyError(errors.SimgpuError):
    """A dependency could not be set up."""


class Workbench(msgspec.Struct, frozen=True):
    """The cluster and the run."""

    client: Client
    served: Served
    run: Run
    variables: Mapping[str, Any]
    namespaces: tuple[str, ...]  # in which the run creates pods
    progress: RunProgress


class Dependency(Protocol):
    """Something that is set up before the steps and taken down after them."""

    async def check(self) -> list[str]:
        """Return why it cannot be set up; nothing is created."""

    async def setup(self) -> None:
        """Set it up. What a failed one has made is removed by `teardown`."""

    async def teardown(self) -> None:
        """Remove what `setup` made; it can be repeated."""
