"""What holds for every test: skips that must not hide, and a home of its own for whatever is written.

Fixtures are in the conftest.py of each level, so that a level loads only its own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Their assertions, too, show the values that they compared.
pytest.register_assert_rewrite("tests.fixtures")


# A property test is no stopwatch: a machine may be slow, or busy with something else.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("patient"), max_examples=20)
hypothesis.settings.load_profile("patient")


def pytest_configure() -> None:
    """Where tests run in the background, signals may be ignored that programs under test wait for."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real clusters may take longer than the others before they count as hung."""
    for item in items:
        if {"cluster", "e2e", "browser"}.intersection(item.path.parts) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


def required(path: Path) -> bool:
    """Whether SIMGPU_REQUIRE says that this test's level must run in full."""
    levels = os.environ.get("SIMGPU_REQUIRE", "").replace(",", " ").split()
    return "all" in levels or any(level in path.parts for level in levels)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where the level is required, a skip is a failure that says so."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and not hasattr(report, "wasxfail") and required(item.path):
        report.outcome = "failed"
        report.longrepr = f"skipped, but SIMGPU_REQUIRE={os.environ['SIMGPU_REQUIRE']}: {report.longrepr}"


@pytest.fixture(autouse=True)
def _no_kubeconfig_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
