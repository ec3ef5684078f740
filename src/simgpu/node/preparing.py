"""Prepares claims: reads a claim from the API server, resolves its devices of this driver, and keeps them prepared.

Both calls can be repeated at any time. A claim that is prepared stays as it is while it is allocated as it was then, or
if that cannot be known: a kubelet that restarts prepares all claims of its pods again, even if the API server is away.
One that was allocated anew meanwhile is prepared anew: nobody uses its former devices, or it could not have been.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from simgpu import errors
from simgpu.dra.claims import AllocatedClaim, devices_of
from simgpu.dra.grants import UID, GrantedDevice, PreparedClaim
from simgpu.kube import errors as kube_errors
from simgpu.node import cdi, dra_messages
from simgpu.node.prepared import PreparedClaims
from simgpu.topology import failures

_READ_SECONDS = 20.0  # of the 45 that the kubelet waits
_CHECK_SECONDS = 5.0  # for a claim that is prepared already
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
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by the uid of a claim

    async def prepare(self, ref: dra_messages.ClaimRef) -> dra_messages.PrepareResult:
        """Prepare a claim; a failure is the error of this claim alone."""
        try:
            async with self._alone(ref.uid):
                claim = await self._prepare(ref)
        except (errors.SimgpuError, OSError, ValueError) as error:
            _log.warning("claim %s/%s (%s) was not prepared: %s", ref.namespace, ref.name, ref.uid, error)
            return dra_messages.PrepareResult(error=errors.clipped(str(error), _MAX_ERROR))
        return dra_messages.PrepareResult(tuple(_message(claim.uid, device) for device in claim.devices))

    async def unprepare(self, ref: dra_messages.ClaimRef) -> dra_messages.UnprepareResult:
        """Unprepare a claim, which need not exist any more."""
        try:
            async with self._alone(ref.uid):
                await self._prepared.remove(ref.uid)
        except (errors.SimgpuError, OSError) as error:
            _log.warning("claim %s/%s (%s) was not unprepared: %s", ref.namespace, ref.name, ref.uid, error)
            return dra_messages.UnprepareResult(errors.clipped(str(error), _MAX_ERROR))
        return dra_messages.UnprepareResult()

    def _alone(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim: one that is unprepared while it is being prepared is unprepared in the end."""
        return self._busy.setdefault(uid, asyncio.Lock())

    async def _prepare(self, ref: dra_messages.ClaimRef) -> PreparedClaim:
        if UID.fullmatch(ref.uid) is None:
            raise errors.InputError("uid", f"{errors.shown(ref.uid)} is no uid")
        known = self._prepared.claims.get(ref.uid)
        found = await self._changed(ref, known) if known is not None else None
        if known is not None and found is None:
            return await self._prepared.add(known)  # its file may be gone
        if self.failures.delay:
            await asyncio.sleep(self.failures.delay)
        if self.failures.refuse:
            raise errors.SimgpuError("rejected by the node's failures (refuse)")
        found = found or await self._read(ref)
        if found.metadata.uid != ref.uid:
            raise errors.InputError("metadata.uid", f"the claim of this name is another one, {found.metadata.uid}")
        claim = self._grant(found)
        return await self._prepared.add(claim, instead_of=known) if claim.devices else claim

    async def _changed(self, ref: dra_messages.ClaimRef, known: PreparedClaim) -> AllocatedClaim | None:
        """Return a prepared claim if it is allocated otherwise by now; None if it is not, or that cannot be known."""
        try:
            found = await self._read(ref, seconds=_CHECK_SECONDS)
        except errors.SimgpuError as error:
            _log.info("claim %s/%s (%s) stays as it is prepared: %s", ref.namespace, ref.name, ref.uid, error)
            return None
        if found.metadata.uid != ref.uid or found.status.allocation is None:
            return None
        return found if known.allocation != tuple(item.key for item in devices_of(found)) else None

    async def _read(self, ref: dra_messages.ClaimRef, *, seconds: float = _READ_SECONDS) -> AllocatedClaim:
        try:
            async with asyncio.timeout(seconds):
                return await self._get(ref.namespace, ref.name)
        except TimeoutError:
            raise errors.SimgpuError(f"no answer of the API server within {seconds:g} s") from None
        except kube_errors.NotFound:
            raise errors.SimgpuError("there is no such claim") from None


def _message(uid: str, device: GrantedDevice) -> dra_messages.PreparedDevice:
    names = (cdi.qualified(cdi.COMMON), cdi.qualified(cdi.device(uid, device.title)))
    request = device.request.partition("/")[0]  # without the alternative of `firstAvailable` that was chosen
    return dra_messages.PreparedDevice((request,), device.pool, device.name, names, device.share)
