"""Broker of the demo, one process: `python -m loadmanager.dev.demo.demo_broker --agent-file ...`.

Clients send batches to `POST /publish?topic=NAME&messages=N` on the data port. The broker counts them as received and
as sent to one consumer, and stores nothing. The kit decides which topics may be open. The broker writes each opening
and closing to the serving log before it takes effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from loadmanager.broker import Closing, Hosting, RefusedError, Topic
from loadmanager.dev.demo.evidence import DemoJournal
from loadmanager.util.atomic_write import write_ready_file
from loadmanager.util.clock import now_s
from loadmanager.util.logging import configure_logging

HOST = "127.0.0.1"
VERSION = "demo-1"


class TopicHost:
    """The open topics of one broker process; `instance` is its name in the serving log."""

    def __init__(
        self,
        agent: str | Callable[[], str],
        serving_log: DemoJournal,
        *,
        address: str = HOST,
        port: int | None = None,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self.instance = ""
        self.hosting = Hosting(
            agent, port=port, host=address, on_open=self._on_opened, on_close=self._close, version=VERSION, clock=clock
        )
        self._serving_log = serving_log
        self._clock = clock
        self._last_served_s: dict[str, float] = {}

    async def publish(self, request: web.Request) -> web.Response:
        """Accept a batch: 200 with the name of this process, or 409 with the reason for the refusal."""
        name, messages = request.query["topic"], int(request.query["messages"])
        body = await request.read()
        try:
            topic = await self.hosting.open(name)
        except (RefusedError, ValueError) as error:
            return web.Response(status=web.HTTPConflict.status_code, text=str(error))
        topic.messages_in += messages
        topic.messages_out += messages
        topic.bytes_in += len(body)
        topic.bytes_out += len(body)
        self._last_served_s[name] = self._clock()
        return web.Response(text=self.instance)

    async def _on_opened(self, topic: Topic) -> None:
        self._last_served_s[topic.name] = self._clock()
        self._record("opened", topic, at_s=self._last_served_s[topic.name])

    async def _close(self, topic: Topic, closing: Closing) -> None:
        # Serving ended with the lease, even if this process noticed later. A batch that was served afterwards
        # contradicts that, so its time takes precedence.
        now_s = self._clock()
        ended_at_s = max(self._last_served_s.pop(topic.name), min(now_s, self.hosting.lease_until_s))
        self._record("closed", topic, at_s=ended_at_s, written_at_s=now_s, reason=closing.reason, call=closing.call)

    def _record(self, event: str, topic: Topic, **more: object) -> None:
        record = {"event": event, "topic": topic.name, "instance": self.instance, "incarnation": topic.incarnation}
        self._serving_log.append({**record, **more})


def agent_in(agent_file: Path) -> Callable[[], str]:
    """Return a function that reads the agent's URL from a file, which may appear after the broker's start."""

    def find() -> str:
        agent = json.loads(agent_file.read_bytes())
        url: str = agent.get("localUrl") or agent["url"]
        return url

    return find


async def run(arguments: argparse.Namespace, serving_log: DemoJournal) -> None:
    """Serve until SIGTERM, then close every topic."""
    address: str = arguments.bind_address
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    host = TopicHost(agent_in(arguments.agent_file), serving_log, address=address, port=arguments.port)
    app = web.Application()
    app.add_routes([web.post("/publish", host.publish)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    async with host.hosting:
        broker_id = f"{HOST}:{urlsplit(host.hosting.url).port}"
        host.instance = f"{broker_id}#{os.getpid()}"
        await web.TCPSite(runner, address, arguments.data_port).start()
        write_ready_file(
            arguments.ready_file,
            {
                "broker_id": broker_id,
                "instance": host.instance,
                "url": f"http://{broker_id}",
                "data_url": f"http://{HOST}:{runner.addresses[0][1]}",
            },
        )
        await stopped.wait()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent-file", type=Path, required=True, help='file with {"url": ...} of the agent')
    parser.add_argument(
        "--serving-log", type=Path, required=True, help="file that openings and closings are appended to"
    )
    parser.add_argument("--ready-file", type=Path, required=True, help="file to write the addresses to, once listening")
    parser.add_argument("--bind-address", default=HOST, help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port of the HTTP interface; 0: any free one")
    parser.add_argument("--data-port", type=int, default=0, help="port for clients; 0: any free one")
    arguments = parser.parse_args()
    configure_logging(json_lines=False)
    with DemoJournal(arguments.serving_log) as serving_log:
        asyncio.run(run(arguments, serving_log))


if __name__ == "__main__":
    main()
