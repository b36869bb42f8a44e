"""A broker that keeps the contract, or breaks one rule of its checklist: `breaks` says which, by its name and how.

It has a client's door of its own (`try_once`), so that it can be checked in virtual time, within the process of the
test. It shares no code with the other brokers.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from loadmanager.broker.conformance.probes import ProbeResult
from loadmanager.errors import InvalidRecordError
from loadmanager.net.http_client import HttpAnswer, HttpClient, PeerUnavailableError

BREAKS = {
    "without-agent": ("serves what nobody granted", "dies"),
    "serves": ("opens nothing", "does not say what is open"),
    "lease-lapses": ("assumes a length", "keeps topics open"),
    "late-lease": ("counts from the answer",),
    "stopped": ("looks at the lease by a timer",),
    "sole-process": ("another process serves",),
    "incarnation-changes": ("goes on",),
    "other-incarnation": ("does not compare",),
    "void-by-unload": ("believes the answer",),
    "void-by-lapse": ("believes the answer",),
    "broken-answers": ("does not look at the status", "dies of what is no JSON"),
    "unload-unknown": ("404", "500"),
    "unload-twice": ("500 while it closes", "404 when it is closed"),
    "unload-under-load": ("204 before it has closed",),
    "unload-hangs": ("204 before it has closed", "statistics behind a lock"),
    "unload-stopped": ("never ends the closing",),
    "prepare": ("serves what was prepared", "302"),
    "opening-is-told": ("says nothing of a question", "says nothing of what it opens"),
    "statistics": ("counts on", "names a topic twice", "wall clock"),
    "opened-once": ("opens it for each",),
    "large-incarnation": ("floating point",),
    "unknown-fields": ("no lease from such an answer", "400 to such an unload"),
    "told-to-end": ("does not end",),
}
"""By the name of a rule, the ways to break it."""

_RENEW_S = 0.1
_TIMER_S = 0.05
_CLOSING_S = 0.05


@dataclass
class OpenTopic:
    name: str
    messages: int = 0
    closing: asyncio.Task[None] | None = None


@dataclass
class ContractBroker:
    """To be `run` beside a server of its `app`. `hangs` are topics that cannot be closed for now."""

    agent_url: str
    breaks: tuple[str, str] = ("", "")
    is_plain: bool = False
    """Return True if the broker implements no optional part of the contract."""
    opening_s: float = 0.03
    hangs: Counter[str] = field(default_factory=Counter)
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: the process is stopped."""
    has_ended: bool = False
    _topics: dict[str, OpenTopic] = field(default_factory=dict)
    _opening: Counter[str] = field(default_factory=Counter)
    _asking: Counter[str] = field(default_factory=Counter)
    _openers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _voided: Counter[str] = field(default_factory=Counter)
    _prepared: set[str] = field(default_factory=set)
    _lapses: int = 0
    _valid_until_s: float = -math.inf
    _incarnation: float | None = None
    _seems_valid: bool = False
    _is_dead: bool = False
    _stuck: set[str] = field(default_factory=set)
    _counted: Counter[str] = field(default_factory=Counter)
    _unloads: asyncio.Lock = field(default_factory=asyncio.Lock)
    _statistics: int = 0
    _http: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        self.thawed.set()

    def does(self, rule: str, how: str) -> bool:
        """Return True if it breaks the rule in this way."""
        assert how in BREAKS[rule]
        return self.breaks == (rule, how)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/loadmanager/v1/stats", self._stats)
        app.router.add_post("/loadmanager/v1/unload", self._unload)
        if not self.is_plain:
            app.router.add_post("/loadmanager/v1/prepare", self._prepare)
        return app

    async def run(self) -> None:
        """Ask for leases, and look at them, until cancelled."""
        async with HttpClient() as http, asyncio.TaskGroup() as group:
            self._http = http
            group.create_task(self._renew())
            group.create_task(self._watch())

    # The lease

    async def _renew(self) -> None:
        while not self._is_dead:
            asked_s = time.monotonic()
            answer = await self._ask("lease")
            if self.does("late-lease", "counts from the answer"):
                asked_s = time.monotonic()
            if answer is not None:
                self._take(asked_s, answer)
            elif self._incarnation is None and self.does("without-agent", "dies"):
                self._is_dead = True
            await asyncio.sleep(_RENEW_S)
            await self.thawed.wait()

    def _take(self, asked_s: float, lease: dict[str, Any]) -> None:
        incarnation = lease["incarnation"]
        if self.does("large-incarnation", "floating point"):
            incarnation = float(incarnation)
        self.may_serve()
        if incarnation != self._incarnation and not self.does("incarnation-changes", "goes on"):
            self._close_all()
        valid_s = lease["validForMs"] / 1000
        if self.does("lease-lapses", "assumes a length"):
            valid_s = max(valid_s, 10.0)
        self._incarnation, self._valid_until_s = incarnation, asked_s + valid_s
        self._seems_valid = True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TIMER_S)
            await self.thawed.wait()
            if self.does("stopped", "looks at the lease by a timer"):
                await asyncio.sleep(_TIMER_S)
            self._seems_valid = time.monotonic() < self._valid_until_s
            self.may_serve()

    def may_serve(self) -> bool:
        if self._incarnation is None and self.does("without-agent", "serves what nobody granted"):
            return True
        valid = time.monotonic() < self._valid_until_s
        if self.does("stopped", "looks at the lease by a timer"):
            valid = self._seems_valid
        if not valid and not self.does("lease-lapses", "keeps topics open"):
            self._close_all()
        return valid

    def _close_all(self) -> None:
        self._lapses += 1
        self._topics.clear()

    # Clients

    async def try_once(self, topic: str) -> ProbeResult:
        await asyncio.sleep(0.001)
        await self.thawed.wait()
        refusal = await self._serve(topic)
        return ProbeResult(not refusal, refusal or "taken")

    async def close(self) -> None:
        """Nothing to give back."""

    async def _serve(self, name: str) -> str:
        """Return the reason for which a client is refused, empty if it was served."""
        if not self.may_serve():
            return "no lease"
        if self._incarnation is None:
            return ""
        opened = self._topics.get(name)
        if opened is None and name in self._prepared:
            opened = self._topics[name] = OpenTopic(name)
        if opened is None:
            opened = await self._open(name)
        if opened is None or not self.may_serve():
            return "not owned"
        if self._topics.get(name) is None or (opened.closing is not None and not self._closes_late()):
            return "closed"
        opened.messages += 1
        self._counted[name] += 1
        return ""

    def _closes_late(self) -> bool:
        return self.does("unload-under-load", "204 before it has closed")

    async def _open(self, name: str) -> OpenTopic | None:
        if self.does("opened-once", "opens it for each"):
            await self._ask_and_open(name)
            mine = self._topics.get(name)
            await asyncio.sleep(0.01)
            return mine
        if name not in self._openers:
            self._openers[name] = asyncio.create_task(self._ask_and_open(name))
            self._openers[name].add_done_callback(lambda _: self._openers.pop(name, None))
        await asyncio.shield(self._openers[name])
        return self._topics.get(name)

    async def _ask_and_open(self, name: str) -> None:
        self._asking[name] += 1
        try:
            for _ in range(3):
                voided, lapses = self._voided[name], self._lapses
                answer = await self._ask("owner", topic=name)
                if answer is None or not self.may_serve():
                    return
                if voided == self._voided[name] and (lapses == self._lapses or self._believes_after_lapse()):
                    break
            else:
                return
            if self._may_open(answer):
                self._asking[name] -= 1
                self._opening[name] += 1
                try:
                    await self._build(name, voided, lapses)
                finally:
                    self._opening[name] -= 1
                    self._asking[name] += 1
        finally:
            self._asking[name] -= 1

    def _believes_after_lapse(self) -> bool:
        return self.does("void-by-lapse", "believes the answer")

    def _may_open(self, answer: dict[str, Any]) -> bool:
        if self.does("serves", "opens nothing") or answer.get("owned") is not True:
            return False
        incarnation = answer.get("incarnation", 0)
        return self.does("other-incarnation", "does not compare") or incarnation == self._incarnation

    async def _build(self, name: str, voided: int, lapses: int) -> None:
        """Opening takes a while and may be cancelled meanwhile."""
        await asyncio.sleep(self.opening_s)
        is_cancelled = voided != self._voided[name] or (lapses != self._lapses and not self._believes_after_lapse())
        if not is_cancelled:
            first = self._counted[name] if self.does("statistics", "counts on") else 0
            self._topics[name] = OpenTopic(name, first)

    async def _ask(self, what: str, **query: str) -> dict[str, Any] | None:
        """Return the agent's answer; None if there was none."""
        try:
            url = f"{self.agent_url}/loadmanager/v1/{what}"
            answer: HttpAnswer = await self._http.call("GET", url, 30.0, params=query)
        except (PeerUnavailableError, InvalidRecordError):
            return None
        finally:
            await self.thawed.wait()
        if answer.status != 200 and not self.does("broken-answers", "does not look at the status"):
            return None
        try:
            found = json.loads(answer.body)
        except ValueError:
            self._is_dead = self._is_dead or self.does("broken-answers", "dies of what is no JSON")
            return None
        wanted = {"incarnation", "validForMs"} if what == "lease" else {"owned", "incarnation"}
        if "notYetKnown" in found and self.does("unknown-fields", "no lease from such an answer"):
            return None
        return found if wanted <= set(found) else None

    # The agent's calls

    async def _stats(self, _: web.Request) -> web.Response:
        await self._stand_in_line()
        self.may_serve()
        topics = [{"topic": each.name, "messagesIn": each.messages} for each in self._topics.values()]
        opening = [name for name, times in self._asking.items() if times] + [
            name for name, times in self._opening.items() if times
        ]
        if self.does("opening-is-told", "says nothing of a question"):
            opening = [name for name, times in self._opening.items() if times]
        if self.does("opening-is-told", "says nothing of what it opens"):
            opening = [name for name, times in self._asking.items() if times]
        if self.does("statistics", "names a topic twice"):
            topics += topics
        if self.does("serves", "does not say what is open"):
            topics = []
        self._statistics += 1
        clock_s = time.monotonic()
        if self.does("statistics", "wall clock") and self._statistics % 2:
            clock_s -= 3_600
        stats = {"pid": 1, "startTimestamp": 1, "monotonicS": clock_s, "topics": topics}
        return web.json_response(stats | ({} if self.is_plain else {"opening": opening, "soleProcess": True}))

    async def _stand_in_line(self) -> None:
        await self.thawed.wait()
        if self._is_dead:
            raise web.HTTPServiceUnavailable
        if self.does("unload-hangs", "statistics behind a lock"):
            async with self._unloads:
                return

    async def _prepare(self, request: web.Request) -> web.Response:
        if self.does("prepare", "302"):
            return web.Response(status=302, headers={"Location": "/"})
        if self.does("prepare", "serves what was prepared"):
            self._prepared |= set((await request.json())["topics"])
        return web.Response(status=204)

    async def _unload(self, request: web.Request) -> web.Response:
        body = await request.json()
        if set(body) > {"bundle", "topics"} and self.does("unknown-fields", "400 to such an unload"):
            raise web.HTTPBadRequest
        names = body["topics"]
        if not self.does("void-by-unload", "believes the answer"):
            for name in names:
                self._voided[name] += 1
        opened = [self._topics[name] for name in names if name in self._topics]
        if (status := self._odd_status(names, opened)) != 204:
            return web.json_response({"reason": "odd"}, status=status)
        if not opened:
            return web.Response(status=204)
        closings = [self._begin_to_close(each) for each in opened]
        if not (self._closes_late() or self.does("unload-hangs", "204 before it has closed")):
            async with self._unloads:
                await asyncio.wait(closings)
        return web.Response(status=204)

    def _odd_status(self, names: list[str], opened: list[OpenTopic]) -> int:
        if self._stuck.intersection(names):
            return 500
        if not opened and not any(self._counted[name] for name in names):
            statuses = {"404": 404, "500": 500}
            return next((code for how, code in statuses.items() if self.does("unload-unknown", how)), 204)
        if not opened and self.does("unload-twice", "404 when it is closed"):
            return 404
        if any(each.closing for each in opened) and self.does("unload-twice", "500 while it closes"):
            return 500
        return 204

    def _begin_to_close(self, topic: OpenTopic) -> asyncio.Task[None]:
        topic.closing = topic.closing or asyncio.create_task(self._close(topic))
        return topic.closing

    async def _close(self, topic: OpenTopic) -> None:
        await asyncio.sleep(1.0 if self._closes_late() else _CLOSING_S)
        while True:
            if not self.hangs[topic.name]:
                break
            await asyncio.sleep(_CLOSING_S)
        await self.thawed.wait()
        if time.monotonic() >= self._valid_until_s and self.does("unload-stopped", "never ends the closing"):
            self._stuck.add(topic.name)
            await asyncio.Event().wait()
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]


@dataclass(frozen=True, slots=True)
class Hanging:
    """A client that keeps the broker from closing the topic as long as it is there."""

    broker: ContractBroker

    async def try_once(self, topic: str) -> ProbeResult:
        self.broker.hangs[topic] += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.broker.hangs[topic] -= 1
        raise AssertionError

    async def close(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True, slots=True)
class BrokersProcess:
    """Stand-in for the broker's process."""

    broker: ContractBroker

    def stop(self) -> None:
        if not self.broker.does("sole-process", "another process serves"):
            self.broker.thawed.clear()

    def go_on(self) -> None:
        self.broker.thawed.set()

    def end(self) -> None:
        self.broker.has_ended = not self.broker.does("told-to-end", "does not end")

    def has_ended(self) -> bool:
        return self.broker.has_ended
