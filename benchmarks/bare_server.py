"""Baseline of bench_lookup: an aiohttp handler that returns fixed bytes for any request."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.util.atomic_write import write_ready_file


async def serve(body: bytes, ready_file: Path) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    write_ready_file(ready_file, {"url": f"http://127.0.0.1:{runner.addresses[0][1]}"})
    await asyncio.Event().wait()


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(serve(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])))
