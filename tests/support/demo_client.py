"""A client of the demo's broker for `loadmanager check-broker`: `python -m support.demo_client HOST:PORT` reads a topic
a line, publishes a message to it, and answers `served`, or why not. With a topic behind it, it subscribes to that one,
and confirms nothing until it is ended: a broker waits for it when it closes the topic.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from support.demo import HandDrivenClient

from loadmanager.dev.demo.data_protocol import Frame, Kind


async def connected(address: str) -> HandDrivenClient:
    host, _, port = address.rpartition(":")
    client = HandDrivenClient(*await asyncio.open_connection(host, int(port)))
    await client.receive(Kind.HELLO)
    return client


async def answer_lines(client: HandDrivenClient) -> None:
    loop = asyncio.get_running_loop()
    channels: dict[str, int] = {}
    for number in range(1, sys.maxsize):
        topic = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
        if not topic:
            return
        answer = await publish(client, channels.setdefault(topic, number), channels[topic] == number and topic)
        if answer != "served":
            del channels[topic]
        print(answer, flush=True)  # noqa: T201 - to who asked


async def publish(client: HandDrivenClient, channel: int, topic_to_open: str | Literal[False]) -> str:
    """On a channel that is open, or is opened for the topic."""
    if topic_to_open:
        client.send(Kind.PRODUCE, channel, body=topic_to_open.encode())
        opened = await receive(client, channel, Kind.OPENED, Kind.REFUSED)
        if opened.kind is Kind.REFUSED:
            return f"refused: {opened.text}"
    client.send(Kind.PUBLISH, channel, 0, 1, b"check")
    taken = await receive(client, channel, Kind.ACCEPTED, Kind.BUSY, Kind.CLOSED)
    return "served" if taken.kind is Kind.ACCEPTED else f"{taken.kind.name}: {taken.text}"


async def receive(client: HandDrivenClient, channel: int, *kinds: Kind) -> Frame:
    while True:
        frame = await client.receive(*kinds)
        if frame.channel == channel:
            return frame


async def hang(client: HandDrivenClient, topic: str) -> None:
    await client.open(Kind.SUBSCRIBE, 1, topic)
    await asyncio.Event().wait()


async def main(address: str, *topics: str) -> None:
    client = await connected(address)
    await (hang(client, topics[0]) if topics else answer_lines(client))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
