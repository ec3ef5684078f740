"""Prepares claims: reads a claim from the API server, resolves its devices of this driver, and keeps them prepared.

Both calls can be repeated at any time. A claim that is prepared stays as it is, whatever became of the claim since, and
without asking the API server: a kubelet that restarts prepares all claims of its pods again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from simgpu import errors
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.grants import UID, GrantedDevice, PreparedClaim
from simgpu.kube import errors as kube_errors
from simgpu.node import cdi, dra_messages
from simgpu.node.prepared import PreparedClaims
from simgpu.topology import failures

_READ_SECONDS = 20.0  # of the 45 that the kubelet waits
_MAX_ERROR = 1024  # characters

GetClaim = Callable[[str, str], Coroutine[Any, Any, AllocatedClaim]]  # by namespace and name
Grant = Callable[[AllocatedClaim], PreparedClaim]

_log = logging.getLogger(__name__)


class Preparer:
    """Prepares and unprepares the claims of a node. `failures` are the node's."""

    def __init__(self, prepared: PreparedClaims, get: GetClaim, grant: Grant) -> None:
        self.failures = failures.NONE
        self._prepared = prepared
        self._get = get
        self._grant = grant

    async def prepare(self, ref: dra_messages.ClaimRef) -> dra_messages.PrepareResult:
        """Prepare a claim; a failure is the error of this claim alone."""
        try:
            claim = await self._prepare(ref)
        except (errors.SimgpuError, OSError, ValueError) as error:
            _log.warning("claim %s/%s (%s) was not prepared: %s", ref.namespace, ref.name, ref.uid, error)
            return dra_messages.PrepareResult(error=errors.clipped(str(error), _MAX_ERROR))
        return dra_messages.PrepareResult(tuple(_message(claim.uid, device) for device in claim.devices))

    async def unprepare(self, ref: dra_messages.ClaimRef) -> dra_messages.UnprepareResult:
        """Unprepare a claim, which need not exist any more."""
        try:
            await self._prepared.remove(ref.uid)
        except (errors.SimgpuError, OSError) as error:
            _log.warning("claim %s/%s (%s) was not unprepared: %s", ref.namespace, ref.name, ref.uid, error)
            return dra_messages.UnprepareResult(errors.clipped(str(error), _MAX_ERROR))
        return dra_messages.UnprepareResult()

    async def _prepare(self, ref: dra_messages.ClaimRef) -> PreparedClaim:
        if UID.fullmatch(ref.uid) is None:
            raise errors.InputError("uid", f"{errors.shown(ref.uid)} is no uid")
        known = self._prepared.claims.get(ref.uid)
        if known is not None:
            return await self._prepared.add(known)  # its file may be gone
        if self.failures.delay:
            await asyncio.sleep(self.failures.delay)
        if self.failures.refuse:
            raise errors.SimgpuError("rejected by the node's failures (refuse)")
        found = await self._read(ref)
        if found.metadata.uid != ref.uid:
            raise errors.InputError("metadata.uid", f"the claim of this name is another one, {found.metadata.uid}")
        claim = self._grant(found)
        return await self._prepared.add(claim) if claim.devices else claim

    async def _read(self, ref: dra_messages.ClaimRef) -> AllocatedClaim:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await self._get(ref.namespace, ref.name)
        except TimeoutError:
            raise errors.SimgpuError(f"no answer of the API server within {_READ_SECONDS:g} s") from None
        except kube_errors.NotFound:
            raise errors.SimgpuError("there is no such claim") from None


def _message(uid: str, device: GrantedDevice) -> dra_messages.PreparedDevice:
    names = (cdi.qualified(cdi.COMMON), cdi.qualified(cdi.device(uid, device.title)))
    request = device.request.partition("/")[0]  # without the alternative of `firstAvailable` that was chosen
    return dra_messages.PreparedDevice((request,), device.pool, device.name, names, device.share)
