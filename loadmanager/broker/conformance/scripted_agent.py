"""Scripted agent for a broker under test: answers lease and ownership questions as a rule wants."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import orjson
from aiohttp import web

from loadmanager.broker.conformance.rule_verdicts import EventLog, short

AGENT_ID = "check-broker:0"
BUNDLE = "check/broker/0x00000000_0xffffffff"
_CLOCKS_DIFFER_BY = 1.01
"""Maximum ratio of two clocks' rates, by the contract."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Scripted answer. `is_cut`: only half of the body is sent. `valid_for_ms` is for leases."""

    shown: str
    status: int
    body: bytes
    is_cut: bool = False
    valid_for_ms: int = 0


def lease(incarnation: int, valid_for_ms: int) -> Reply:
    body = orjson.dumps({"brokerId": AGENT_ID, "incarnation": incarnation, "validForMs": valid_for_ms})
    return Reply(f"incarnation {incarnation}, {valid_for_ms} ms", 200, body, valid_for_ms=valid_for_ms)


def owned(incarnation: int) -> Reply:
    body = orjson.dumps({"owned": True, "bundle": BUNDLE, "owner": AGENT_ID, "incarnation": incarnation})
    return Reply(f"owned, incarnation {incarnation}", 200, body)


def not_owned(incarnation: int) -> Reply:
    return Reply("not owned", 200, orjson.dumps({"owned": False, "bundle": BUNDLE, "incarnation": incarnation}))


def with_unknown_field(reply: Reply) -> Reply:
    """Return the reply with a field that a later version of the agent could add."""
    body = orjson.dumps({**orjson.loads(reply.body), "notYetKnown": {"a": [1]}})
    return replace(reply, shown=f"{reply.shown}, and a field that is not known yet", body=body)


REFUSED = Reply("503", 503, b'{"reason":"check-broker: no answer for now"}')
HELD = None
"""Instead of a reply: hold the question until a rule replies to it."""


@dataclass(eq=False, slots=True)
class AgentQuestion:
    """Question of the broker about `topic`, or for a lease if that is empty; it arrived at `asked_s`."""

    topic: str
    asked_s: float
    request: web.Request
    answer: asyncio.Future[Reply]

    @property
    def shown(self) -> str:
        return f"question about {short(self.topic)}" if self.topic else "question for a lease"

    @property
    def is_given_up(self) -> bool:
        """Tell if the broker has closed the connection."""
        return self.request.transport is None or self.request.transport.is_closing()


@dataclass(slots=True)
class ScriptedAgent:
    """Agent with scripted answers. `leases` are the next replies, and the last one stays. `owners` are the replies for
    single topics; all other topics belong to another broker.
    """

    event_log: EventLog
    leases: list[Reply | None] = field(default_factory=lambda: [REFUSED])
    owners: dict[str, Reply | None] = field(default_factory=dict)
    questions: list[AgentQuestion] = field(default_factory=list)
    valid_until_s: float = 0.0
    """Time at which every lease granted so far has lapsed."""
    longest_gap_s: float = 0.0
    """Longest time between two granted lease questions, since `watch_gaps`."""
    _granted_s: float = 0.0
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/loadmanager/v1/lease", self._lease)
        app.router.add_get("/loadmanager/v1/owner", self._owner)
        return app

    def watch_gaps(self) -> None:
        self.longest_gap_s, self._granted_s = 0.0, time.monotonic()

    def gap_s(self) -> float:
        """Return the longest gap, including the current one."""
        return max(self.longest_gap_s, time.monotonic() - self._granted_s)

    def reply(self, question: AgentQuestion, reply: Reply) -> None:
        """Answer a held question."""
        if question.answer.done():
            return
        if not question.topic and reply.valid_for_ms and reply.status == web.HTTPOk.status_code and not reply.is_cut:
            self._grant(question, reply)
        self.event_log.note(f"{question.shown} is answered: {reply.shown}{', cut off' if reply.is_cut else ''}")
        question.answer.set_result(reply)

    def reply_to_all(self, reply: Reply) -> None:
        """Answer all held questions."""
        for question in self.questions:
            self.reply(question, reply)

    def first_about(self, topic: str, begin: int) -> AgentQuestion | None:
        """Return the first question about the topic (empty: for a lease) after the first `begin` questions."""
        return next((question for question in self.questions[begin:] if question.topic == topic), None)

    async def asked_about(self, topic: str, begin: int, limit_s: float) -> AgentQuestion | None:
        """Wait for the question of `first_about`; None if it does not arrive in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.first_about(topic, begin) is None:
                    self._arrived.clear()
                    await self._arrived.wait()
        return self.first_about(topic, begin)

    def _grant(self, question: AgentQuestion, reply: Reply) -> None:
        until_s = question.asked_s + reply.valid_for_ms / 1000 * _CLOCKS_DIFFER_BY
        self.valid_until_s = max(self.valid_until_s, until_s)
        self.longest_gap_s = max(self.longest_gap_s, question.asked_s - self._granted_s)
        self._granted_s = question.asked_s

    async def _lease(self, request: web.Request) -> web.StreamResponse:
        reply = self.leases.pop(0) if len(self.leases) > 1 else self.leases[0]
        return await self._answer(request, "", reply)

    async def _owner(self, request: web.Request) -> web.StreamResponse:
        topic = request.query.get("topic", "")
        if not topic.startswith("persistent://"):
            self.event_log.note(f"a question about {topic!r} is refused: no topic")
            return web.json_response({"reason": f"topic {topic!r}: expected 'persistent://...'"}, status=400)
        return await self._answer(request, topic, self.owners.get(topic, not_owned(0)))

    async def _answer(self, request: web.Request, topic: str, reply: Reply | None) -> web.StreamResponse:
        question = AgentQuestion(topic, time.monotonic(), request, asyncio.get_running_loop().create_future())
        self.questions.append(question)
        self.event_log.note(f"{question.shown} arrives")
        if reply is not None:
            self.reply(question, reply)
        self._arrived.set()
        return await _send(request, await question.answer)


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    response = web.Response(status=reply.status, body=reply.body, content_type="application/json")
    if not reply.is_cut:
        return response
    if request.transport is not None:
        head = (
            f"HTTP/1.1 {reply.status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(reply.body)}\r\n\r\n"
        )
        request.transport.write(head.encode() + reply.body[: len(reply.body) // 2])
        request.transport.close()
    return response


Listen = Callable[[web.Application], Awaitable[web.AppRunner]]
"""Function that starts serving an application."""


@contextmanager
def bind_port(port: int) -> Iterator[tuple[Listen, int]]:
    """Bind a port of this host (0: any free one), without listening yet. Yields the function that listens, and the
    port. Raises `OSError`.
    """
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))

        async def listen(app: web.Application) -> web.AppRunner:
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
            await runner.setup()
            await web.SockSite(runner, taken).start()
            return runner

        yield listen, taken.getsockname()[1]
