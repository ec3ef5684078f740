"""Reads metrics pages of Kubernetes components that listen beside the API server."""

from __future__ import annotations

import asyncio

import aiohttp

from simgpu.kube import errors, wire

MAX_BYTES = 64 << 20
_MAX_ERROR = 64 << 10


async def page(url: str, *, timeout_seconds: float = 10.0) -> str:
    """Return a page; its certificate is not verified, as components sign their own. Raises KubeError."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    with wire.lost_connection(url):
        async with (
            asyncio.timeout(timeout_seconds),
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, ssl=False) as response,
        ):
            with wire.ends_with_connection(response):
                if response.status >= 400:
                    raise errors.from_response(response.status, await response.content.read(_MAX_ERROR))
                parts: list[bytes] = []
                size = 0
                async for part in response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > MAX_BYTES:
                        raise errors.UnreadableAnswer(f"{url}: a page of more than {MAX_BYTES} bytes")
    return b"".join(parts).decode("utf-8", "replace")
