"""A broker of counters with the kit: `python examples/counter/broker.py --agent http://127.0.0.1:8091 --port 8081
--clients 9001 --folder /tmp/counters`. broker.js in this folder is the same broker without the kit.

Each topic is a counter. A client increments it (POST) or reads it (GET) at
/count?topic=persistent://tenant/namespace/name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from loadmanager.broker import Hosting, RefusedError


class Counters:
    """Counters in files of a folder that all brokers share. Only the broker that serves a topic writes its file."""

    def __init__(self, hosting: Hosting, folder: Path) -> None:
        self._hosting = hosting
        self._folder = folder

    async def count(self, request: web.Request) -> web.Response:
        name = request.query.get("topic", "")
        with contextlib.suppress(RefusedError, ValueError):
            await self._hosting.open(name)  # asks the agent, unless the topic is open
        topic = self._hosting.serving(name)  # checks the lease now
        if topic is None:
            return web.json_response({"reason": f"{name}: not served here, look it up"}, status=421)
        # No other code of this process runs between that check and the answer, because there is no await.
        file = self._folder / quote(name, safe="")
        count = int(file.read_text()) if file.exists() else 0
        if request.method == "POST":
            count += 1
            new = file.with_suffix(".new")
            new.write_text(str(count))
            new.replace(file)  # atomic, even if the process is killed
            topic.messages_in += 1
            topic.bytes_in += 1
        if self._hosting.serving(name) is None:
            return web.json_response({"reason": "the lease lapsed meanwhile: perhaps it was counted"}, status=503)
        answer = web.json_response({"topic": name, "count": count})
        topic.messages_out += 1
        topic.bytes_out += len(answer.body) if isinstance(answer.body, bytes) else 0
        return answer


async def run(agent: str, port: int, clients: int, folder: Path) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Hosting(agent, port=port, version="counter-1") as hosting:
        app = web.Application()
        app.router.add_route("*", "/count", Counters(hosting, folder).count)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", clients).start()
        await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="http://127.0.0.1:8091", help="where it asks its agent")
    parser.add_argument("--port", type=int, default=8081, help="where the agent calls it")
    parser.add_argument("--clients", type=int, default=9001, help="where clients come")
    parser.add_argument("--folder", type=Path, default=Path("counters"), help="where the counts are")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(**vars(arguments)))
