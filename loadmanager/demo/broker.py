"""A small but real publish/subscribe broker, one process: `python -m loadmanager.demo.broker --agent-file ... `.

Clients come to a TCP port with the protocol of `loadmanager.demo.protocol`; its agent comes to an HTTP port. Messages
live in memory only: what was accepted and not yet delivered dies with the process. What it serves, and when, is decided
by `loadmanager.demo.hosting`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web
from pydantic import ValidationError

from loadmanager.calling import HttpClient, PeerUnavailableError
from loadmanager.demo.hosting import TopicHost
from loadmanager.demo.journal import DemoJournal, write_ready_file
from loadmanager.demo.lease import Lease
from loadmanager.demo.protocol import MAX_BODY_BYTES, CloseReason, Frame, Kind, ProtocolError, encode, read_frame
from loadmanager.demo.tasks import first_of
from loadmanager.demo.topics import Channel, Topic
from loadmanager.demo.vitals import Vitals
from loadmanager.errors import InvalidRecordError
from loadmanager.observability import configure_logging
from loadmanager.wire.http import BrokerStats, LeaseAnswer, OwnerAnswer, UnloadRequest

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
VERSION = "demo-1"
RENEW_INTERVAL_S = 0.6
_WATCH_INTERVAL_S = 0.2
_AGENT_TIMEOUT_S = 2.0
_CONGESTED_BYTES = 1 << 20
_MAX_REQUEST_BYTES = 16 << 20


class AgentClient:
    """The broker's agent over HTTP; its URL is read from a file, which it may write after the broker has started."""

    def __init__(self, agent_file: Path, http: HttpClient) -> None:
        self._agent_file = agent_file
        self._http = http

    async def find_owner(self, topic: str) -> OwnerAnswer | None:
        _, body = await self._get("/loadmanager/v1/owner", {"topic": topic})
        try:
            return OwnerAnswer.model_validate_json(body) if body else None
        except ValidationError:
            return None

    async def find_lease(self) -> tuple[int | None, LeaseAnswer | None]:
        """The HTTP status (None: no answer) and the lease, if there is one."""
        status, body = await self._get("/loadmanager/v1/lease", {})
        try:
            return status, LeaseAnswer.model_validate_json(body) if body else None
        except ValidationError:
            return status, None

    async def _get(self, path: str, query: dict[str, str]) -> tuple[int | None, bytes]:
        """Status and the body of a 200; no body for anything else, and no status when there was no answer."""
        try:
            agent = json.loads(self._agent_file.read_bytes())
            url = agent.get("localUrl") or agent["url"]
            answer = await self._http.call("GET", f"{url}{path}", _AGENT_TIMEOUT_S, params=query)
        except (PeerUnavailableError, InvalidRecordError, OSError):
            return None, b""
        return answer.status, answer.body if answer.status == web.HTTPOk.status_code else b""


@dataclass(eq=False, frozen=True, slots=True)
class _Opening:
    topic: Topic
    channel: Channel


class ClientLink:
    """One client's connection: its channels, and what its frames do."""

    def __init__(
        self, host: TopicHost, vitals: Vitals, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._vitals = vitals
        self._reader = reader
        self._writer = writer
        self._open: dict[int, _Opening] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(frame))

    def is_congested(self) -> bool:
        return self._writer.transport.get_write_buffer_size() > _CONGESTED_BYTES

    async def serve(self) -> None:
        """Handle frames until the client is gone."""
        self.send(Frame(Kind.HELLO, body=self._host.instance.encode()))
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._handle(frame)
        except (ProtocolError, UnicodeDecodeError) as error:
            log.warning("client_sent_nonsense", error=str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            for opening in self._open.values():
                opening.topic.detach(opening.channel)
            self._writer.close()

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.SUBSCRIBE | Kind.PRODUCE:
                task = asyncio.create_task(self._open_channel(frame, frame.text))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Kind.PUBLISH:
                self._publish(frame)
            case Kind.RECEIVED:
                opening = self._open.get(frame.channel)
                if opening is not None:
                    opening.topic.confirm(opening.channel, frame.first, frame.messages)
            case _:
                raise ProtocolError(f"{frame.kind.name} is not for a broker")

    async def _open_channel(self, frame: Frame, name: str) -> None:
        topic = await self._host.find_or_open(name)
        if topic is None:
            self.send(Frame(Kind.REFUSED, frame.channel, body=CloseReason.NOT_OWNER.encode()))
            return
        self._open = {number: opening for number, opening in self._open.items() if not opening.topic.is_closed}
        channel = Channel(self, frame.channel)
        self._open[frame.channel] = _Opening(topic, channel)
        channel.send(Kind.OPENED)
        if frame.kind is Kind.PRODUCE:
            topic.attach_producer(channel)
        else:
            topic.attach_subscriber(channel)

    def _publish(self, frame: Frame) -> None:
        if not self._host.may_serve():
            return  # the client was told that its topics are closed
        opening = self._open.get(frame.channel)
        if opening is None or opening.topic.is_closed:
            self.send(Frame(Kind.CLOSED, frame.channel, body=CloseReason.NOT_OWNER.encode()))
            return
        began_s = time.monotonic()
        taken = opening.topic.accept(frame.first, frame.messages, frame.body)
        self._vitals.published(time.monotonic() - began_s, taken=taken)
        self.send(Frame(Kind.ACCEPTED if taken else Kind.BUSY, frame.channel, frame.first, frame.messages))


class AgentInterface:
    """What the agent asks of its broker over HTTP."""

    def __init__(self, host: TopicHost, vitals: Vitals) -> None:
        self._host = host
        self._vitals = vitals
        self._started_ms = time.time_ns() // 1_000_000

    def application(self) -> web.Application:
        application = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        application.router.add_get("/loadmanager/v1/stats", self._stats)
        application.router.add_post("/loadmanager/v1/unload", self._unload)
        return application

    async def _stats(self, _request: web.Request) -> web.Response:
        self._host.may_serve()
        topics = list(self._host.topics())
        stats = BrokerStats(
            pid=os.getpid(),
            sole_process=True,
            version=VERSION,
            start_timestamp=self._started_ms,
            monotonic_s=time.monotonic(),
            topics=[topic.stats() for topic in topics],
            opening=self._host.opening(),
            health=self._vitals.take(sum(topic.waiting for topic in topics)),
        )
        return web.Response(body=stats.to_json(), content_type="application/json")

    async def _unload(self, request: web.Request) -> web.Response:
        try:
            wanted = UnloadRequest.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"reason": str(error)}, status=400)
        await self._host.unload(wanted.bundle, wanted.topics)
        return web.Response(status=204)


async def renew_lease(host: TopicHost, agent: AgentClient) -> None:
    """Pull the lease, again and again. The clock is read before the question is sent: see `Lease`."""
    while True:
        asked_at_s = time.monotonic()
        status, answer = await agent.find_lease()
        if answer is not None:
            host.renew_lease(asked_at_s, answer)
        elif status is not None:
            host.end_lease()
        await asyncio.sleep(RENEW_INTERVAL_S)


async def watch_lease(host: TopicHost) -> None:
    """Close everything soon after the lease has lapsed, also when no client stirs."""
    while True:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        host.may_serve()


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen: `port` for the agent, `data_port` for clients; 0 lets the kernel choose a free one."""

    bind_address: str = HOST
    port: int = 0
    data_port: int = 0


async def run(agent_file: Path, serving_log: DemoJournal, ready_file: Path, listening: Listening) -> None:
    """Serve until SIGTERM, then deliver what was accepted and close every topic."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    http_socket = socket.create_server((listening.bind_address, listening.port))
    broker_id = f"{HOST}:{http_socket.getsockname()[1]}"
    async with HttpClient() as http:
        agent = AgentClient(agent_file, http)
        vitals = Vitals()
        host = TopicHost(f"{broker_id}#{os.getpid()}", Lease(), agent, serving_log, time.monotonic)
        data_server = await asyncio.start_server(
            lambda reader, writer: ClientLink(host, vitals, reader, writer).serve(),
            listening.bind_address,
            listening.data_port,
            limit=MAX_BODY_BYTES,
        )
        runner = web.AppRunner(AgentInterface(host, vitals).application(), access_log=None)
        await runner.setup()
        await web.SockSite(runner, http_socket).start()
        write_ready_file(
            ready_file,
            {
                "broker_id": broker_id,
                "instance": host.instance,
                "pid": os.getpid(),
                "url": f"http://{broker_id}",
                "data_url": f"tcp://{HOST}:{data_server.sockets[0].getsockname()[1]}",
            },
        )
        # A broker that cannot watch over its lease any more must end: an error of these two is raised here.
        tasks = [asyncio.create_task(renew_lease(host, agent)), asyncio.create_task(watch_lease(host))]
        await first_of(asyncio.create_task(stopped.wait()), *tasks)
        for task in tasks:
            task.cancel()
        data_server.close()
        await host.shut_down()
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
    listening = Listening(arguments.bind_address, arguments.port, arguments.data_port)
    configure_logging(json_lines=False)
    with DemoJournal(arguments.serving_log) as serving_log:
        asyncio.run(run(arguments.agent_file, serving_log, arguments.ready_file, listening))


if __name__ == "__main__":
    main()
