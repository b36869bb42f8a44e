"""A reverse proxy that serves a node below a path prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from support.servers import end_app, listen
from yarl import URL

PREFIX = "/gateway/lm"
_OF_CONNECTION = ("Connection", "Content-Length", "Keep-Alive", "Transfer-Encoding")


@asynccontextmanager
async def a_proxy(node_url: str) -> AsyncIterator[str]:
    """The URL under which the node is reached. All that is not below it is answered 404."""

    async def pass_on(request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            raise web.HTTPNotFound
        url = URL(node_url + path.removeprefix(PREFIX), encoded=True)
        body = await request.read()
        async with http.request(
            request.method, url, data=body or None, headers=_handed_on(request.headers), allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_handed_on(answer.headers))
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(auto_decompress=False, timeout=timeout) as http:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        listener = listen()
        await web.SockSite(runner, listener).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}"
        finally:
            await end_app(runner)


def _handed_on(headers: aiohttp.typedefs.LooseHeaders) -> list[tuple[str, str]]:
    return [(name, value) for name, value in dict(headers).items() if name not in _OF_CONNECTION]
