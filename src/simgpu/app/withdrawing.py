"""The end of an uninstall: a controller or agent that has removed everything waits, so that it is not restarted."""

from __future__ import annotations

import asyncio
import logging

from simgpu import vocabulary
from simgpu.controllers import configuring
from simgpu.kube import errors, resources
from simgpu.kube.client import Client

LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Withdrawn(Exception):
    """Everything was removed for an uninstall."""


async def wait_until_wanted(client: Client, *, namespace: str) -> None:
    """Return when the uninstall was called off: there is a topology again that does not ask for it."""
    _log.info("everything was removed for an uninstall; waiting")
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await client.list(
                resources.CONFIG_MAPS, namespace=namespace, fields=f"metadata.name={vocabulary.TOPOLOGY}"
            )
        except errors.KubeError as error:  # the account is removed before we are
            _log.debug("cannot read the topology: %s", error)
            continue
        if found and not configuring.is_uninstalling(found[0]):
            _log.info("the uninstall was called off")
            return
