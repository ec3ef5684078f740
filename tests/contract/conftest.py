"""Fixtures of this level: sockets, servers and files of the other side, but no cluster."""

from __future__ import annotations

from tests.fixtures.dashboard_site import site
from tests.fixtures.dra import registry
from tests.fixtures.http import scripted
from tests.fixtures.kubelet import kubelet
from tests.fixtures.lone_agent import settings
from tests.fixtures.mirror import mirror
from tests.fixtures.prometheus import prometheus
from tests.fixtures.wheel import wheel

__all__ = ["kubelet", "mirror", "prometheus", "registry", "scripted", "settings", "site", "wheel"]
