"""Names of DRA devices: DNS labels that follow from a GPU's id, and for MIG devices from profile and placement."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from simgpu.catalog import models

_MAX_LABEL = 63
_DIGEST = 32
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def of_gpus(ids: Iterable[str]) -> dict[str, str]:
    """Return the device name of each GPU of a node, by id: the id in lower case.

    An id that makes no DNS label, or the same one as an earlier id, is hashed.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for identity in ids:
        name = identity.lower()
        if not is_label(name) or name in taken:
            name = _hashed(identity)
        taken.add(name)
        found[identity] = name
    return found


def of_mig(gpu: str, profile: models.MigProfile, start: int) -> str:
    """Return the name of a MIG device of a GPU, by the GPU's device name: `GPU-mig-PROFILE-ID-START`."""
    plain = profile.name.replace(".", "").replace("+", "")
    return shortened(gpu, f"-mig-{plain}-{profile.id}-{start}")


def shortened(name: str, suffix: str) -> str:
    """Return a device's name with a suffix; one that is too long for both is hashed."""
    return f"{name if len(name) + len(suffix) <= _MAX_LABEL else _hashed(name)}{suffix}"


def is_label(text: str) -> bool:
    """Return whether a text is a DNS label."""
    return _LABEL.fullmatch(text) is not None


def _hashed(text: str) -> str:
    return f"gpu-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"
