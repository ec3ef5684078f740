"""Fixtures of this level: a browser, and a local cluster with its live page."""

from __future__ import annotations

from tests.fixtures.agent_page import agent_page
from tests.fixtures.chromium import browser
from tests.fixtures.cluster import programs
from tests.fixtures.local_site import site
from tests.fixtures.served_pools import pools

__all__ = ["agent_page", "browser", "pools", "programs", "site"]
