"""Names of objects: those that are too long end in a digest of the whole."""

from __future__ import annotations

import hashlib

_DIGEST = 10


def shortened(name: str, limit: int) -> str:
    """Return the name; if it is longer than `limit`, its beginning and a digest of all of it."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: limit - _DIGEST - 1].rstrip('.-')}-{digest}"
