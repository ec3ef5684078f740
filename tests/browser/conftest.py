"""Fixtures of this level: a browser."""

from __future__ import annotations

from tests.fixtures.chromium import browser

__all__ = ["browser"]
