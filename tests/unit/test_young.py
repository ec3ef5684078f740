"""`make test` runs this level as on a machine that was just started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import young

_READ = "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"


def test_a_command_runs_as_on_a_machine_that_was_just_started() -> None:
    prefix = young.prefix()
    if not prefix:
        pytest.skip("no time namespace can be made: needs unshare, and root or user namespaces")
    printed = subprocess.run([*prefix, sys.executable, "-c", _READ], capture_output=True, text=True, check=True).stdout
    assert all(young.UPTIME <= float(clock) < young.YOUNG for clock in printed.split())


def test_this_level_runs_as_on_a_machine_that_was_just_started() -> None:
    """A skip here is a failure in CI, so that nobody stops running it so without noticing."""
    if not young.is_young():
        pytest.skip("this machine was started long ago; `make test` runs this level in a time namespace")
