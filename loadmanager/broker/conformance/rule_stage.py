"""Rules of the contract, and the stage of their scenarios: the scripted agent, the broker, its clients, and polling.

A slow machine must not break a rule. The order of events proves that a client was wrongly served: its request came
after the last possible lease had lapsed, or after the 204. Required actions have a long time limit, and an attempt that
proves nothing is repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from loadmanager.broker.conformance.broker_under_test import BrokerUnderTest, ProcessUnderTest
from loadmanager.broker.conformance.probes import Probe, ProbeResult
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    EventLog,
    LateError,
    RuleRequirement,
    UnsettledError,
    short,
)
from loadmanager.broker.conformance.scripted_agent import (
    HELD,
    REFUSED,
    AgentQuestion,
    Listen,
    Reply,
    ScriptedAgent,
    lease,
    not_owned,
    owned,
)
from loadmanager.util import clock

NAMESPACE = "persistent://check/broker"
_BETWEEN_TRIES_S = 0.02
_ON_THE_WAY = 1 / 6
"""Fraction of a lease. A slower question may have been sent so early that the lease lapsed unnoticed."""
_LAPSE_MARGIN_S = 0.05
_TIMES_THE_SLOWEST = 4


@dataclass(frozen=True, slots=True)
class RulePace:
    """Times of a check. `calm_ms` is a long lease, `short_ms` one that is meant to lapse. `timeout_s` is the time
    limit of required actions, `refusal_s` that of a client that may be kept waiting.
    """

    calm_ms: int = 3_000
    short_ms: int = 300
    timeout_s: float = 20.0
    refusal_s: float = 1.0


@dataclass(slots=True)
class RuleStage:
    """Stage of the scenarios. `incarnation` is the one in granted leases."""

    agent: ScriptedAgent
    broker: BrokerUnderTest
    event_log: EventLog
    pace: RulePace
    listen: Listen
    probe: Probe | None = None
    hang: Probe | None = None
    process: ProcessUnderTest | None = None
    incarnation: int = 1_000
    _slowest_s: float = 0.0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _run: str = field(default_factory=lambda: f"{clock.now_ms():x}")
    _runner: web.AppRunner | None = None

    # The agent

    async def open_port(self) -> None:
        """Start the agent."""
        if self._runner is None:
            self._runner = await self.listen(self.agent.app())

    async def leave(self) -> None:
        """Stop the agent."""
        self.agent.reply_to_all(REFUSED)
        if self._runner is not None:
            await self._runner.cleanup()

    async def begin(self) -> None:
        """Start a new attempt: no topic is owned, and leases are refused."""
        self.agent.leases = [REFUSED]
        self.agent.owners.clear()
        self.agent.reply_to_all(REFUSED)
        self.agent.questions.clear()
        self.incarnation += 1
        self.event_log.begin()

    async def calm(self, incarnation: int | None = None) -> None:
        """Grant long leases under a new incarnation from now on; return when the broker uses one."""
        self.incarnation = incarnation or self.incarnation + 1
        await self.granted(lease(self.incarnation, self.pace.calm_ms))
        self.agent.watch_gaps()

    async def granted(self, reply: Reply) -> None:
        """Answer lease questions with `reply` from now on; return when the broker, having used one, asks again."""
        begin = len(self.agent.questions)
        self.agent.leases = [reply]
        self._reply_to_leases(reply)
        await self.wait_for_lease_question(begin)
        await self.wait_for_lease_question(len(self.agent.questions))

    async def wait_for_lease_question(self, begin: int) -> AgentQuestion:
        """Return the first lease question after the first `begin` questions; `LateError` if there is none."""
        question = await self.agent.asked_about("", begin, self.pace.timeout_s)
        if question is None:
            raise LateError(
                f"the broker asked for no lease in {self.pace.timeout_s:g} s: does it ask its agent at this port?"
            )
        return question

    async def fresh_lease_question(self) -> AgentQuestion:
        """Hold new lease questions, refuse held ones, and return the first new one."""
        self.agent.leases = [HELD]
        begin = len(self.agent.questions)
        self._reply_to_leases(REFUSED)
        return await self.wait_for_lease_question(begin)

    def _reply_to_leases(self, reply: Reply) -> None:
        for question in self.agent.questions:
            if not question.topic:
                self.agent.reply(question, reply)

    async def lapse(self) -> None:
        """Grant no more leases; return when none can be valid."""
        self.agent.leases = [HELD]
        await asyncio.sleep(max(0.0, self.agent.valid_until_s - time.monotonic()) + _LAPSE_MARGIN_S)
        self.event_log.note("no lease can be valid any more")

    def own(self, topic: str, incarnation: int | None = None) -> None:
        self.agent.owners[topic] = owned(incarnation or self.incarnation)

    def disown(self, topic: str) -> None:
        self.agent.owners[topic] = not_owned(self.incarnation)

    def require_no_gap(self) -> None:
        """Raise `UnsettledError` if the lease may have lapsed since `calm`, which also closes topics."""
        if (gap_s := self.agent.gap_s()) > (1 - _ON_THE_WAY) * self.pace.calm_ms / 1000:
            raise UnsettledError(f"the broker asked for no lease for {gap_s:.1f} s, so that it may have lapsed")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the broker's process inside the context."""
        assert self.process is not None, "rules that stop it say that they need it"
        self.process.stop()
        self.event_log.note("the process is stopped")
        try:
            yield
        finally:
            self.process.go_on()
            self.event_log.note("the process goes on")

    # Clients

    @property
    def refusal_limit_s(self) -> float:
        """Time limit of a client that may be refused; longer if served clients are slow as well."""
        return self.pace.refusal_s + _TIMES_THE_SLOWEST * self._slowest_s

    @asynccontextmanager
    async def hanging(self, topic: str) -> AsyncIterator[None]:
        """Run a client of `--hang`, which stays connected until the context ends."""
        assert self.hang is not None
        client = asyncio.create_task(self.hang.try_once(topic))
        try:
            await asyncio.sleep(self.refusal_limit_s)
            if client.done():
                raise UnsettledError(f"the client of --hang ended by itself: {client.result().reply}")
            yield
        finally:
            client.cancel()
            await asyncio.gather(client, return_exceptions=True)

    def topic(self, name: str) -> str:
        return f"{NAMESPACE}/{name}-{self._run}-{next(self._numbers)}"

    async def attempt(self, topic: str) -> ProbeResult:
        """Let a client try to be served."""
        assert self.probe is not None, "rules that have clients say that they need a probe"
        number = next(self._numbers)
        self.event_log.note(f"client {number} asks for {short(topic)}")
        tried = await self.probe.try_once(topic)
        self.event_log.note(f"client {number} is {'served' if tried.served else 'refused'}: {tried.reply}")
        return tried

    async def open(self, topic: str) -> None:
        """Make the broker the owner; return when a client was served. `LateError` if none is."""
        self.own(topic)
        await self.served(topic)

    async def served(self, topic: str) -> None:
        deadline_s = time.monotonic() + self.pace.timeout_s
        reply = "no answer"
        while (left_s := deadline_s - time.monotonic()) > 0:
            began_s = time.monotonic()
            tried = await self._within(topic, left_s)
            if tried is not None and tried.served:
                self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)
                return
            reply = reply if tried is None else tried.reply
            await asyncio.sleep(_BETWEEN_TRIES_S)
        raise LateError(f"no client was served in {self.pace.timeout_s:g} s, the last one was told: {reply}")

    async def refused(self, topic: str, because: str, times: int = 3) -> None:
        """Raise `BrokenError` if a new client is served. One that waits for too long counts as refused."""
        for _ in range(times):
            tried = await self._within(topic, self.refusal_limit_s)
            if tried is not None and tried.served:
                raise BrokenError(f"a client was served ({tried.reply}) {because}")
            await asyncio.sleep(_BETWEEN_TRIES_S)

    async def _within(self, topic: str, limit_s: float) -> ProbeResult | None:
        try:
            async with asyncio.timeout(limit_s):
                return await self.attempt(topic)
        except TimeoutError:
            self.event_log.note("the client got no answer in time, and disconnects")
            return None

    @asynccontextmanager
    async def held_question(
        self, topic: str, until_s: float = math.inf
    ) -> AsyncIterator[tuple[AgentQuestion, asyncio.Task[ProbeResult]]]:
        """Start a client on the topic and hold the broker's question about it. Yield the question and the client.

        `LateError` if there is no question by `until_s` (monotonic) or within the usual time limit.
        """
        self.agent.owners[topic] = HELD
        begin = len(self.agent.questions)
        deadline_s = min(until_s, time.monotonic() + self.pace.timeout_s)
        client = asyncio.create_task(self.attempt(topic))
        try:
            while (question := await self.agent.asked_about(topic, begin, _BETWEEN_TRIES_S)) is None:
                if time.monotonic() >= deadline_s:
                    raise LateError(f"a client came for {short(topic)}, and the broker did not ask who owns it")
                if client.done():
                    client = asyncio.create_task(self.attempt(topic))
            yield question, client
        finally:
            client.cancel()
            await asyncio.gather(client, return_exceptions=True)

    async def reply_in_vain(self, question: AgentQuestion, client: asyncio.Task[ProbeResult], event: str) -> None:
        """Reply that the topic is owned. This answer must not open it; later answers say that it is not owned."""
        self.disown(question.topic)
        if question.is_given_up:
            raise UnsettledError("the broker gave the question up before it was answered")
        self.agent.reply(question, owned(self.incarnation))
        done, _ = await asyncio.wait([client], timeout=self.refusal_limit_s)
        if done and client.result().served:
            raise BrokenError(f"{event} was used: the client that waited was served ({client.result().reply})")
        await self.refused(question.topic, f"although {event} is void, and later answers were 'not owned'")
        if await self.broker.names(question.topic):
            raise BrokenError(f"{event} was used: the statistics have the topic open")


Scenario = Callable[[RuleStage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the contract's checklist: name, text, requirements and scenario.

    The scenario returns if the rule was kept, and raises an error of `rule_verdicts` otherwise.
    """

    name: str
    text: str
    needs: frozenset[RuleRequirement]
    scenario: Scenario


def rule(name: str, text: str, *needs: RuleRequirement) -> Callable[[Scenario], Rule]:
    """Decorator: turn a scenario into a rule."""
    return lambda scenario: Rule(name, text, frozenset(needs), scenario)
