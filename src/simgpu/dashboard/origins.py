"""Which requests browsers are allowed to make: those of the page itself, and of people who open it.

A page on loopback needs no login, so other sites must not reach it through the browser of somebody who can. A site
whose name resolves to 127.0.0.1 (DNS rebinding) would be of the same origin; it gives itself away by the Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_HOST = re.compile(r"(?:\[(?P<inside>[^\[\]]*)\]|(?P<plain>[^:\[\]]*))(?::[0-9]{0,5})?")


def refusal(headers: Mapping[str, str], *, loopback: bool, api: bool) -> tuple[int, str] | None:
    """Return status and reason if a request is to be refused: `loopback` is where the server listens."""
    if loopback and not _is_local(headers.get("Host", "")):
        return 421, "header Host: must be an IP address or localhost, because this server listens on loopback"
    if api and headers.get("Sec-Fetch-Site", "") == "cross-site":
        return 403, "header Sec-Fetch-Site: pages of other sites may not read this API"
    return None


def _is_local(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["inside"] or found["plain"] or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
