"""Names of objects, those that are too long with a digest of the whole at their end; and values of labels."""

from __future__ import annotations

import hashlib
import re

_DIGEST = 10


def shortened(name: str, limit: int) -> str:
    """Return the name; if it is longer than `limit`, its beginning and a digest of all of it."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: limit - _DIGEST - 1].rstrip('.-')}-{digest}"


def label_value(text: str) -> str:
    """Return a text as a valid label value: at most 63 characters, dashes for invalid ones, alphanumeric ends."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", plain)
