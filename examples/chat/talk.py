"""Chat client for a terminal: sends each typed line to a room, and prints the room's messages.

usage: python examples/chat/talk.py http://127.0.0.1:8080 persistent://chat/rooms/lobby

Load-manager nodes push the owner of the room. If a server disconnects us or is unreachable, it no longer owns the room,
and we connect to the next owner. A line is sent again until it comes back, so it may be delivered twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque

import aiohttp

from loadmanager.client import LookupClient

AS_LONG_AS_IT_TAKES_S = 3600
ANSWERS_WITHIN = aiohttp.ClientTimeout(total=10)


async def talk(node: str, topic: str) -> None:
    unsaid: deque[str] = deque()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with LookupClient([node]) as owners, aiohttp.ClientSession(timeout=ANSWERS_WITHIN) as http:
        line = asyncio.create_task(lines.readline())
        while True:
            owner = await owners.lookup(topic, timeout_s=AS_LONG_AS_IT_TAKES_S)
            server = str(owner.broker_url)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.ws_connect(server, params={"topic": topic}, heartbeat=20) as socket:
                    print(f"* in the room, at {server}", flush=True)
                    for each in unsaid:
                        await socket.send_str(each)
                    heard = asyncio.create_task(socket.receive())
                    while True:
                        await asyncio.wait({line, heard}, return_when=asyncio.FIRST_COMPLETED)
                        if heard.done():
                            if heard.result().type is not aiohttp.WSMsgType.TEXT:
                                break
                            text = heard.result().data
                            print(text, flush=True)
                            if unsaid and unsaid[0] == text:
                                unsaid.popleft()
                            heard = asyncio.create_task(socket.receive())
                        if line.done():
                            if not line.result():
                                return
                            unsaid.append(line.result().decode().rstrip("\n"))
                            line = asyncio.create_task(lines.readline())
                            await socket.send_str(unsaid[-1])
            owners.refused(topic, owner.broker_id)


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:3]))
