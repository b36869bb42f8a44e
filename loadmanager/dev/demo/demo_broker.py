"""A small but real publish/subscribe broker, one process: `python -m loadmanager.dev.demo.demo_broker --agent-file ...
`.

Clients come to a TCP port with the protocol of `loadmanager.dev.demo.data_protocol`; its agent comes to an HTTP port.
Messages live in memory only: what was accepted and not yet delivered dies with the process. What it serves, and when,
is decided by `loadmanager.dev.demo.demo_host`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from loadmanager.dev.demo.data_protocol import (
    MAX_BODY_BYTES,
    ChannelCloseReason,
    Frame,
    Kind,
    ProtocolError,
    encode,
    read_frame,
)
from loadmanager.dev.demo.demo_host import Channel, DemoTopic, TopicHost, agent_in
from loadmanager.dev.demo.evidence import DemoJournal, write_ready_file
from loadmanager.util import clock
from loadmanager.util.logging import configure_logging

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
_CONGESTED_BYTES = 1 << 20


@dataclass(eq=False, frozen=True, slots=True)
class _Opening:
    topic: DemoTopic
    channel: Channel


class ClientLink:
    """One client's connection: its channels, and what its frames do."""

    def __init__(self, host: TopicHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
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
            self.send(Frame(Kind.REFUSED, frame.channel, body=ChannelCloseReason.NOT_OWNER.encode()))
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
        if not self._host.hosting.has_lease:
            return  # the client was told that its topics are closed
        opening = self._open.get(frame.channel)
        if opening is None or opening.topic.is_closed:
            self.send(Frame(Kind.CLOSED, frame.channel, body=ChannelCloseReason.NOT_OWNER.encode()))
            return
        began_s = clock.now_s()
        taken = self._host.serves(opening.topic) and opening.topic.accept(frame.first, frame.messages, frame.body)
        self._host.vitals.published(clock.now_s() - began_s, taken=taken)
        self.send(Frame(Kind.ACCEPTED if taken else Kind.BUSY, frame.channel, frame.first, frame.messages))


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses to listen on: `port` for the agent, `data_port` for clients; 0 lets the kernel choose."""

    bind_address: str = HOST
    port: int = 0
    data_port: int = 0


async def run(agent_file: Path, serving_log: DemoJournal, ready_file: Path, listening: Listening) -> None:
    """Serve until SIGTERM, then deliver what was accepted and close every topic."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    host = TopicHost(agent_in(agent_file), serving_log, address=listening.bind_address, port=listening.port)
    async with host.hosting:
        broker_id = f"{HOST}:{urlsplit(host.hosting.url).port}"
        host.instance = f"{broker_id}#{os.getpid()}"
        data_server = await asyncio.start_server(
            lambda reader, writer: ClientLink(host, reader, writer).serve(),
            listening.bind_address,
            listening.data_port,
            limit=MAX_BODY_BYTES,
        )
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
        await stopped.wait()
        data_server.close()


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
