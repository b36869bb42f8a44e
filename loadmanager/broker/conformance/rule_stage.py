"""Rules of the contract, and the stage of their scenarios: the scripted agent, the broker, its clients, and polling.

How slow the machine is breaks no rule. That a client was served although it must not be is proved by the order of
events: it sent its request after the broker could not hold a valid lease any more, or after its 204. What must come is
waited for patiently, and what proves nothing is tried again.
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
"""Share of a lease: a question that took longer to arrive may have been sent so early that the lease lapsed unseen."""
_LAPSE_MARGIN_S = 0.05
_TIMES_THE_SLOWEST = 4


@dataclass(frozen=True, slots=True)
class RulePace:
    """`calm_ms` is a lease that lasts, `short_ms` one that is to lapse; `patience_s` is how long is waited for what
    must come, `refusal_s` for a client that may be kept waiting.
    """

    calm_ms: int = 3_000
    short_ms: int = 300
    patience_s: float = 20.0
    refusal_s: float = 1.0


@dataclass(slots=True)
class RuleStage:
    """`incarnation` is that of the leases which are given."""

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
        """The agent is there from now on."""
        if self._runner is None:
            self._runner = await self.listen(self.agent.app())

    async def leave(self) -> None:
        """The agent is not there any more."""
        self.agent.reply_to_all(REFUSED)
        if self._runner is not None:
            await self._runner.cleanup()

    async def begin(self) -> None:
        """A new try: nothing is owned, and leases are refused."""
        self.agent.leases = [REFUSED]
        self.agent.owners.clear()
        self.agent.reply_to_all(REFUSED)
        self.agent.questions.clear()
        self.incarnation += 1
        self.event_log.begin()

    async def calm(self, incarnation: int | None = None) -> None:
        """A lease that lasts, and is renewed, in another incarnation than before; return when the broker has it."""
        self.incarnation = incarnation or self.incarnation + 1
        await self.granted(lease(self.incarnation, self.pace.calm_ms))
        self.agent.watch_gaps()

    async def granted(self, reply: Reply) -> None:
        """Leases are answered so from now on; return when the broker has used one: it asks for the next one then."""
        begin = len(self.agent.questions)
        self.agent.leases = [reply]
        self._reply_to_leases(reply)
        await self.wait_for_lease_question(begin)
        await self.wait_for_lease_question(len(self.agent.questions))

    async def wait_for_lease_question(self, begin: int) -> AgentQuestion:
        """The first question for a lease behind the `begin` first ones of all; `LateError` if there is none."""
        question = await self.agent.asked_about("", begin, self.pace.patience_s)
        if question is None:
            raise LateError(
                f"the broker asked for no lease in {self.pace.patience_s:g} s: is it told this port as its agent's?"
            )
        return question

    async def fresh_lease_question(self) -> AgentQuestion:
        """A question for a lease that has just come and is held, as are those behind it; what was held is refused."""
        self.agent.leases = [HELD]
        begin = len(self.agent.questions)
        self._reply_to_leases(REFUSED)
        return await self.wait_for_lease_question(begin)

    def _reply_to_leases(self, reply: Reply) -> None:
        for question in self.agent.questions:
            if not question.topic:
                self.agent.reply(question, reply)

    async def lapse(self) -> None:
        """No lease comes any more; return when none can be valid."""
        self.agent.leases = [HELD]
        await asyncio.sleep(max(0.0, self.agent.valid_until_s - time.monotonic()) + _LAPSE_MARGIN_S)
        self.event_log.note("no lease can be valid any more")

    def own(self, topic: str, incarnation: int | None = None) -> None:
        self.agent.owners[topic] = owned(incarnation or self.incarnation)

    def disown(self, topic: str) -> None:
        self.agent.owners[topic] = not_owned(self.incarnation)

    def require_no_gap(self) -> None:
        """`UnsettledError` if the lease may have lapsed since `calm`: that closes topics, too."""
        if (gap_s := self.agent.gap_s()) > (1 - _ON_THE_WAY) * self.pace.calm_ms / 1000:
            raise UnsettledError(f"the broker asked for no lease for {gap_s:.1f} s, so that it may have lapsed")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The broker's process does nothing within."""
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
        """Time limit of a client that may be refused: longer where served clients have to wait, too."""
        return self.pace.refusal_s + _TIMES_THE_SLOWEST * self._slowest_s

    @asynccontextmanager
    async def hanging(self, topic: str) -> AsyncIterator[None]:
        """A client of `--hang` is there, which ends by being ended."""
        assert self.hang is not None
        client = asyncio.create_task(self.hang.try_once(topic))
        try:
            await asyncio.sleep(self.refusal_limit_s)
            if client.done():
                raise UnsettledError(f"the client of --hang ended by itself: {client.result().said}")
            yield
        finally:
            client.cancel()
            await asyncio.gather(client, return_exceptions=True)

    def topic(self, name: str) -> str:
        """A topic that was never heard of."""
        return f"{NAMESPACE}/{name}-{self._run}-{next(self._numbers)}"

    async def attempt(self, topic: str) -> ProbeResult:
        """A client tries to be served."""
        assert self.probe is not None, "rules that have clients say that they need a probe"
        number = next(self._numbers)
        self.event_log.note(f"client {number} asks for {short(topic)}")
        tried = await self.probe.try_once(topic)
        self.event_log.note(f"client {number} is {'served' if tried.served else 'refused'}: {tried.said}")
        return tried

    async def open(self, topic: str) -> None:
        """The agent lets it be opened; return when a client was served. `LateError` if none is."""
        self.own(topic)
        await self.served(topic)

    async def served(self, topic: str) -> None:
        deadline_s = time.monotonic() + self.pace.patience_s
        said = "no answer"
        while (left_s := deadline_s - time.monotonic()) > 0:
            began_s = time.monotonic()
            tried = await self._within(topic, left_s)
            if tried is not None and tried.served:
                self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)
                return
            said = said if tried is None else tried.said
            await asyncio.sleep(_BETWEEN_TRIES_S)
        raise LateError(f"no client was served in {self.pace.patience_s:g} s, the last one was told: {said}")

    async def refused(self, topic: str, because: str, times: int = 3) -> None:
        """`BrokenError` if a client is served that comes now. Who is kept waiting is sent away after a while."""
        for _ in range(times):
            tried = await self._within(topic, self.refusal_limit_s)
            if tried is not None and tried.served:
                raise BrokenError(f"a client was served ({tried.said}) {because}")
            await asyncio.sleep(_BETWEEN_TRIES_S)

    async def _within(self, topic: str, limit_s: float) -> ProbeResult | None:
        try:
            async with asyncio.timeout(limit_s):
                return await self.attempt(topic)
        except TimeoutError:
            self.event_log.note("nobody is answered, and the client goes away")
            return None

    @asynccontextmanager
    async def held_question(
        self, topic: str, until_s: float = math.inf
    ) -> AsyncIterator[tuple[AgentQuestion, asyncio.Task[ProbeResult]]]:
        """A client waits for the topic, since the question about it is held: the question, and the client.

        `LateError` if there is none by `until_s` (monotonic), or for as long as is waited for anything.
        """
        self.agent.owners[topic] = HELD
        begin = len(self.agent.questions)
        deadline_s = min(until_s, time.monotonic() + self.pace.patience_s)
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
        """Reply that the topic is owned: the answer must not open it, and later ones say that it is not owned."""
        self.disown(question.topic)
        if question.is_given_up:
            raise UnsettledError("the broker gave the question up before it was answered")
        self.agent.reply(question, owned(self.incarnation))
        done, _ = await asyncio.wait([client], timeout=self.refusal_limit_s)
        if done and client.result().served:
            raise BrokenError(f"{event} was used: the client that waited was served ({client.result().said})")
        await self.refused(question.topic, f"although {event} is void, and later answers were 'not owned'")
        if await self.broker.names(question.topic):
            raise BrokenError(f"{event} was used: the statistics have the topic open")


Scenario = Callable[[RuleStage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of the contract's checklist: its name, its text, what it needs, and how it is tried.

    The scenario returns when the rule was kept, and raises an error of `rule_verdicts` otherwise.
    """

    name: str
    text: str
    needs: frozenset[RuleRequirement]
    scenario: Scenario


def rule(name: str, text: str, *needs: RuleRequirement) -> Callable[[Scenario], Rule]:
    """Makes a rule of the scenario that tries it."""
    return lambda scenario: Rule(name, text, frozenset(needs), scenario)
