"""What fakedev-exporter answers over HTTP: one path, one method, and nothing in the request's body."""

from __future__ import annotations

from aiohttp import web

from simgpu.web import pages


def only_get(page: pages.Page) -> web.RouteDef:
    """Any method reaches it, and all but GET are refused."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(status=405)
        if request.can_read_body:
            return web.Response(status=400)
        answer = await page(request)
        answer.headers["Content-Type"] = "text/plain; charset=utf-8"
        return answer

    return web.route("*", "/metrics", handler)
