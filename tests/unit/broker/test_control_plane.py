"""The brokers and clients of examples/ under assignments that the test controls."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.servers import serving
from support.waiting import eventually

from examples.chat.server import Chat
from examples.chat.talk import talk
from examples.counter.broker import Counters
from examples.counter.client import NAMESPACE, Client
from loadmanager.broker import CloseReason, Closing, Hosting, Topic
from loadmanager.testing import ControlPlane

ROOM = "persistent://chat/rooms/lobby"
VISITS = f"persistent://{NAMESPACE}/visits"
PAGE = Path(__file__).parents[3] / "docs" / "your-own-broker.md"


@asynccontextmanager
async def a_counter(plane: ControlPlane, broker_id: str, folder: Path) -> AsyncIterator[Hosting]:
    """Run the example's broker under an agent of the plane."""
    agent = await plane.add_broker(broker_id)
    async with Hosting(agent.url, port=0) as hosting:
        counters = Counters(hosting, folder)
        async with serving([web.route("*", "/count", counters.count)]) as agent.client_url:
            agent.broker_url = str(hosting.url)
            await eventually(lambda: hosting.has_lease)
            yield hosting


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as plane:
        yield plane


async def test_no_count_is_lost_over_a_move_a_crash_and_late_answers(plane: ControlPlane, tmp_path: Path) -> None:
    async with (
        a_counter(plane, "b1", tmp_path) as first,
        a_counter(plane, "b2", tmp_path) as second,
        aiohttp.ClientSession() as http,
    ):
        client = Client(plane.url, http)
        waiting = asyncio.create_task(client.count("visits"))
        await eventually(lambda: client.counted["tried again"])
        plane.assign("b1", VISITS)
        await waiting
        await plane.move("b2", VISITS)
        assert [topic.name for topic in (*first.topics, *second.topics)] == []
        plane.may_answer.clear()
        late = asyncio.create_task(client.count("visits"))
        await eventually(lambda: client.counted["tried again"] > 1)
        plane.may_answer.set()
        await late
        plane.crash("b2")
        await eventually(lambda: not second.has_lease)
        plane.assign("b1", VISITS)
        await client.count("visits")
        async with http.get(f"{plane.agents['b1'].client_url}/count", params={"topic": VISITS}) as answer:
            assert (await answer.json())["count"] == 3
        assert client.in_all == 3


@asynccontextmanager
async def a_chat(plane: ControlPlane, broker_id: str) -> AsyncIterator[None]:
    agent = await plane.add_broker(broker_id)
    chat = Chat(agent.url, 0)
    async with chat.hosting, serving([web.get("/chat", chat.come)]) as agent.client_url:
        agent.broker_url = str(chat.hosting.url)
        await eventually(lambda: chat.hosting.has_lease)
        yield


async def test_chat_continues_while_its_room_moves(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr("examples.chat.talk.print", lambda line, **_: heard.append(line), raising=False)

    async def come() -> tuple[int, asyncio.Task[None]]:
        """Return where a person's lines are written, and the person."""
        keyboard, lines = os.pipe()
        monkeypatch.setattr("sys.stdin", os.fdopen(keyboard))
        person = asyncio.create_task(talk(plane.url, ROOM))
        await asyncio.sleep(0)
        return lines, person

    async with a_chat(plane, "b1"), a_chat(plane, "b2"):
        plane.agents["b1"].client_url += "/chat"
        plane.agents["b2"].client_url += "/chat"
        plane.assign("b1", ROOM)
        (ann, first), (bob, second) = await come(), await come()
        await eventually(lambda: heard == [f"* in the room, at {plane.agents['b1'].client_url}"] * 2)
        os.write(ann, b"hello, Bob\n")
        await eventually(lambda: heard[2:] == ["hello, Bob"] * 2)
        await plane.move("b2", ROOM)
        await eventually(lambda: heard[4:] == [f"* in the room, at {plane.agents['b2'].client_url}"] * 2)
        os.write(bob, b"still there?\n")
        await eventually(lambda: heard[6:] == ["still there?"] * 2)
        for lines in (ann, bob):
            os.close(lines)
        await asyncio.gather(first, second)


async def test_failed_close_prevents_the_move(plane: ControlPlane) -> None:
    async def fails(_topic: Topic, closing: Closing) -> None:
        if closing.reason is CloseReason.UNLOADED:
            raise OSError("disk full")

    agent = await plane.add_broker("b1")
    await plane.add_broker("b2")
    async with Hosting(agent.url, port=0, on_close=fails) as hosting:
        agent.broker_url = str(hosting.url)
        await eventually(lambda: hosting.has_lease)
        plane.assign("b1", VISITS)
        await hosting.open(VISITS)
        with pytest.raises(aiohttp.ClientResponseError, match="500"):
            await plane.move("b2", VISITS)
        assert (agent.owned, plane.agents["b2"].owned) == ({VISITS}, set())
        await plane.move("b1", VISITS)  # it stays, so nothing is closed


async def test_of_the_tutorial_runs_as_printed() -> None:
    (shown,) = re.findall(r"```python\n(import asyncio.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, object] = {}
    exec(shown, found)
    await found["test_move"]()  # type: ignore[operator]
