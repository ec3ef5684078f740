"""Fixtures of this level: a browser, and a local cluster with its live page."""

from __future__ import annotations

from tests.fixtures.chromium import browser
from tests.fixtures.cluster import programs
from tests.fixtures.local_site import site

__all__ = ["browser", "programs", "site"]
