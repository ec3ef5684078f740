"""Prepared claims of a node: their checkpoint, which outlives the agent, and the CDI files of their devices.

A claim that is in the checkpoint has its file: files are written before the checkpoint and removed after it, and those
of other claims are removed at the next start. Agents that overlap during an update share the checkpoint, so each change
is made under a lock and starts from what the checkpoint has then.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from simgpu import errors, vocabulary
from simgpu.dra.grants import UID, PreparedClaim, check_overlaps
from simgpu.kube import errors as kube_errors
from simgpu.node import cdi, files, granting
from simgpu.page import writer

_LOCK = "claims.lock"
_LOCK_SECONDS = 5.0
_LOOK_SECONDS = 0.005
_MAX_BYTES = 64 << 20  # of the checkpoint
_MODE = 0o644

_log = logging.getLogger(__name__)


class _Document(msgspec.Struct, frozen=True):
    claims: Annotated[tuple[PreparedClaim, ...], msgspec.Meta(max_length=vocabulary.MAX_CLAIMS)]
    version: Literal[1] = 1


class PreparedClaims:
    """The prepared claims by uid. `changed` is called after each change of them."""

    def __init__(self, state: Path, folder: Path, source: granting.Source, *, node: str) -> None:
        self.claims: Mapping[str, PreparedClaim] = {}
        self.changed: Callable[[], None] = lambda: None
        self._path = state / vocabulary.CLAIMS_FILE
        self._lock = state / _LOCK
        self._folder = folder
        self._source = source
        self._node = node

    async def restore(self) -> None:
        """Read the checkpoint, write the CDI files of its claims again, and remove those of others.

        With an invalid checkpoint nothing is removed: containers that run may be started again with these files.
        """
        async with self._locked() as valid:
            for claim in self.claims.values():
                self._write(claim)
            for path in cdi.stale(self._folder, {cdi.COMMON, *self.claims}) if valid else ():
                _log.info("removing a CDI file of no prepared claim: %s", path)
                path.unlink(missing_ok=True)
        self.changed()

    async def add(self, claim: PreparedClaim, *, instead_of: PreparedClaim | None = None) -> PreparedClaim:
        """Make a claim prepared, unless it is, and return it as it is; on a failure nothing changes.

        If it is prepared as `instead_of`, it is prepared anew. Raises `InputError` if a device overlaps with another
        one that is prepared.
        """
        async with self._locked():
            before = self.claims.get(claim.uid)
            known = None if before == instead_of else before
            if before is None and len(self.claims) >= vocabulary.MAX_CLAIMS:
                raise errors.InputError("claims", f"at most {vocabulary.MAX_CLAIMS} can be prepared on a node")
            if known is None:
                check_overlaps(claim, (other for other in self.claims.values() if other.uid != claim.uid))
            kept = known or claim
            try:
                self._write(kept)
                if known is None:
                    self._save({**self.claims, kept.uid: kept})
            except BaseException:
                if before is None:
                    cdi.path(self._folder, claim.uid).unlink(missing_ok=True)
                elif known is None:
                    self._write(before)
                raise
        if known is None:
            self.changed()
        return kept

    async def remove(self, uid: str) -> None:
        """Make a claim unprepared; nothing happens if it is not prepared."""
        if UID.fullmatch(uid) is None:
            return  # such a claim was never prepared
        async with self._locked():
            known = uid in self.claims
            if known:
                self._save({name: claim for name, claim in self.claims.items() if name != uid})
            cdi.path(self._folder, uid).unlink(missing_ok=True)
        if known:
            self.changed()

    def remove_files(self) -> None:
        """Remove all CDI files of claims, prepared or not."""
        for path in cdi.stale(self._folder, ()):
            path.unlink(missing_ok=True)

    def _write(self, claim: PreparedClaim) -> None:
        """Write the CDI files that the devices of a claim are injected by, unless they are there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        edits = {item.title: (item.id, item.environment) for item in claim.devices}
        for item in claim.devices:  # a MIG instance has its page soon: the folder can be mounted already
            writer.folder(self._source.pages, item.id).mkdir(parents=True, exist_ok=True)
        files.put(cdi.path(self._folder, cdi.COMMON), cdi.common(self._source, node=self._node), _MODE)
        files.put(cdi.path(self._folder, claim.uid), cdi.claim(claim.uid, edits, self._source), _MODE)

    def _save(self, claims: Mapping[str, PreparedClaim]) -> None:
        content = msgspec.json.encode(_Document(tuple(claims.values())))
        files.put(self._path, content, 0o600, durable=True)
        self.claims = claims

    def _load(self) -> bool:
        """Read the checkpoint, and return whether it is valid.

        An invalid one is kept under another name: it may be that of a newer agent.
        """
        try:
            with self._path.open("rb") as file:
                document = msgspec.json.decode(file.read(_MAX_BYTES), type=_Document)
            self.claims = {claim.uid: claim for claim in document.claims}
        except FileNotFoundError:
            self.claims = {}
        except kube_errors.DECODING as error:
            aside = self._path.with_suffix(".invalid")
            _log.warning("the prepared claims are unknown, %s is kept as %s: %s", self._path, aside.name, error)
            self._path.replace(aside)
            self.claims = {}
            return False
        return True

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[bool]:
        """Hold the lock of the checkpoint, and have read it; yields whether it is valid. The block must not await."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise errors.SimgpuError(f"{self._lock} is locked by another process") from None
                await asyncio.sleep(_LOOK_SECONDS)
            yield self._load()
        finally:
            os.close(descriptor)
