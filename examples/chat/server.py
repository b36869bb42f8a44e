"""A chat server. Users connect by websocket, each room is a topic, and the servers of a fleet share the rooms.

usage: python examples/chat/server.py --port 9001 --agent http://127.0.0.1:7001 --broker-port 6001

`ws://127.0.0.1:9001/chat?topic=persistent://chat/rooms/lobby` is the lobby, if this server owns it. Otherwise the
answer is 409, and the client has to look the room up again. Each message in a room goes to everybody in it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections import defaultdict
from dataclasses import dataclass, field

from aiohttp import WSCloseCode, WSMsgType, web

from loadmanager.broker import Closing, Hosting, RefusedError, Topic

MOST_UNREAD = 1_000
"""Number of unread messages at which a slow reader is disconnected."""


@dataclass(eq=False)
class Person:
    """A user in a room, with the messages that are still to be sent."""

    socket: web.WebSocketResponse
    connection: asyncio.BaseTransport | None
    unread: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MOST_UNREAD))


class Chat:
    """Rooms of this server."""

    def __init__(self, agent: str, broker_port: int) -> None:
        self.hosting = Hosting(agent, port=broker_port, on_close=self.close)
        self.people: dict[str, set[Person]] = defaultdict(set)

    async def come(self, request: web.Request) -> web.StreamResponse:
        """Serve a user in a room, until they leave or the room moves to another server."""
        try:
            async with self.hosting.open(request.query.get("topic", "")) as room:
                person = Person(web.WebSocketResponse(heartbeat=20, timeout=1), request.transport)
                await person.socket.prepare(request)
                await self.stay(person, room)
                return person.socket
        except RefusedError as error:
            return web.json_response({"reason": str(error), "owner": error.owner}, status=409)
        except ValueError as error:
            return web.json_response({"reason": str(error)}, status=400)

    async def stay(self, person: Person, room: Topic) -> None:
        if self.hosting.serving(room.name) is not room:  # the room was closed during the handshake
            await person.socket.close(code=WSCloseCode.SERVICE_RESTART)
            return
        self.people[room.name].add(person)
        room.producers += 1
        room.consumers += 1
        sending = asyncio.create_task(self.send(person, room))
        try:
            async for message in person.socket:
                if message.type is WSMsgType.TEXT:
                    self.say(message.data, room)
        finally:
            sending.cancel()
            self.people[room.name].discard(person)
            room.producers -= 1
            room.consumers -= 1

    def say(self, text: str, room: Topic) -> None:
        """Accept a message, if this server owns the room right now."""
        if self.hosting.serving(room.name) is not room:
            return  # the sender will be disconnected: the room is being closed
        room.messages_in += 1
        room.bytes_in += len(text)
        for person in self.people[room.name]:
            if not person.unread.full():
                person.unread.put_nowait(text)
            elif person.connection is not None:
                person.connection.close()

    async def send(self, person: Person, room: Topic) -> None:
        while True:
            text = await person.unread.get()
            if self.hosting.serving(room.name) is not room:
                return
            room.messages_out += 1
            room.bytes_out += len(text)
            await person.socket.send_str(text)

    async def close(self, room: Topic, closing: Closing) -> None:
        """Disconnect everybody. After this returns, another server may own the room."""
        people = self.people.pop(room.name, set())
        await asyncio.gather(
            *(each.socket.close(code=WSCloseCode.SERVICE_RESTART, message=closing.reason.encode()) for each in people)
        )


async def run(port: int, agent: str, broker_port: int) -> None:
    """Serve until SIGTERM or SIGINT, then close the rooms and stop."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    chat = Chat(agent, broker_port)
    app = web.Application()
    app.router.add_get("/chat", chat.come)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    async with chat.hosting:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A chat server.")
    parser.add_argument("--port", type=int, required=True, help="where people come to")
    parser.add_argument("--agent", required=True, help="where the agent answers: its agentLocalPort")
    parser.add_argument("--broker-port", type=int, required=True, help="where the agent asks: its brokerUrl")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(run(arguments.port, arguments.agent, arguments.broker_port))
