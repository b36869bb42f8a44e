"""Which topics a broker serves: opened on the agent's word, served under the lease, closed on unload or lapse.

This is a broker's whole side of the ownership contract, apart from sockets:

- nothing is served without a valid lease, and a topic is opened only after its agent said that the broker owns it;
- an unload, or the end of a lease, that comes while that question is outstanding makes the answer void: it is asked
  again, because the answer may be older than what made it void;
- a lease that lapsed, or that carries another incarnation, closes everything before anything else happens.

Every opening and closing goes into the serving log before anyone else can learn of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from loadmanager.demo.journal import DemoJournal
from loadmanager.demo.lease import Clock, Lease
from loadmanager.demo.protocol import CloseReason
from loadmanager.demo.topics import Topic
from loadmanager.wire.http import LeaseAnswer, OwnerAnswer

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 2.0
_TRIES_TO_ASK = 5


class OwnershipSource(Protocol):
    """The agent, as far as opening a topic goes."""

    async def find_owner(self, topic: str) -> OwnerAnswer | None:
        """Its answer; None when it gives none."""
        ...


@dataclass(eq=False, slots=True)
class _Question:
    is_void: bool = False


class TopicHost:
    """The open topics of one broker process."""

    def __init__(
        self, instance: str, lease: Lease, agent: OwnershipSource, serving_log: DemoJournal, clock: Clock
    ) -> None:
        self.instance = instance
        self._lease = lease
        self._agent = agent
        self._serving_log = serving_log
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._openings: dict[str, asyncio.Task[None]] = {}
        self._questions: dict[str, _Question] = {}

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def opening(self) -> list[str]:
        """The topics that are asked for, and will be opened if the answer allows it."""
        return list(self._openings)

    def may_serve(self) -> bool:
        """Whether the lease is valid now; when it is not, everything is closed on return."""
        if self._lease.is_valid():
            return True
        self.close_all(CloseReason.LEASE_LAPSED)
        return False

    def renew_lease(self, asked_at_s: float, answer: LeaseAnswer) -> None:
        if self._lease.incarnation != answer.incarnation or not self._lease.is_valid():
            self.close_all(CloseReason.LEASE_LAPSED)
        self._lease.renew(asked_at_s, answer)

    def end_lease(self) -> None:
        self._lease.end()
        self.close_all(CloseReason.LEASE_LAPSED)

    async def find_or_open(self, name: str) -> Topic | None:
        """The topic, opened if this broker owns it; None if it must not serve it."""
        if not self.may_serve():
            return None
        if name not in self._topics:
            opening = self._openings.get(name)
            if opening is None:
                opening = self._openings[name] = asyncio.create_task(self._ask_and_open(name))
                opening.add_done_callback(lambda _: self._openings.pop(name, None))
            await asyncio.shield(opening)
            if not self.may_serve():
                return None
        # Between the opening and this line the topic may have been closed again.
        topic = self._topics.get(name)
        return topic if topic is not None and topic.closing is None else None

    async def unload(self, bundle: str, names: Iterable[str]) -> None:
        """Close these topics; those that are open deliver first what they accepted, for a bounded time."""
        listed = list(names)
        for name in listed:
            if name in self._questions:
                self._questions[name].is_void = True
        open_topics = [self._topics[name] for name in listed if name in self._topics]
        await asyncio.gather(*(self._drain_and_close(topic, CloseReason.UNLOADED) for topic in open_topics))
        self._serving_log.append(
            {
                "event": "unloaded",
                "bundle": bundle,
                "topics": len(open_topics),
                "instance": self.instance,
                "at_s": self._clock(),
            }
        )

    async def shut_down(self) -> None:
        await asyncio.gather(*(self._drain_and_close(topic, CloseReason.SHUTDOWN) for topic in self.topics()))

    def close_all(self, reason: CloseReason) -> None:
        """Close everything at once: what was accepted and not delivered is dropped, and the serving log says so."""
        for question in self._questions.values():
            question.is_void = True
        for topic in self.topics():
            self._close(topic, reason)

    async def _ask_and_open(self, name: str) -> None:
        for _ in range(_TRIES_TO_ASK):
            question = self._questions[name] = _Question()
            try:
                answer = await self._agent.find_owner(name)
            finally:
                del self._questions[name]
            if not self.may_serve() or answer is None:
                return
            if not question.is_void:
                if answer.owned and answer.incarnation == self._lease.incarnation:
                    self._open(name, answer.incarnation)
                return

    def _open(self, name: str, incarnation: int) -> None:
        topic = Topic(name, incarnation, self._clock)
        self._topics[name] = topic
        self._record("opened", topic, at_s=topic.opened_at_s)

    async def _drain_and_close(self, topic: Topic, reason: CloseReason) -> None:
        if topic.closing is not None:
            await topic.closing.wait()
            return
        topic.closing = asyncio.Event()
        drained = asyncio.ensure_future(topic.drained.wait())
        closed = asyncio.ensure_future(topic.closing.wait())
        await asyncio.wait((drained, closed), timeout=DRAIN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        closed.cancel()
        if not topic.closing.is_set():
            self._close(topic, reason if self._lease.is_valid() else CloseReason.LEASE_LAPSED)

    def _close(self, topic: Topic, reason: CloseReason) -> None:
        # Without a lease nothing was served, so serving ended with the lease even if nobody could notice at once.
        # The last moment at which the topic did serve is the evidence that overrides that claim.
        now_s = self._clock()
        ended_at_s = max(topic.last_served_s, min(now_s, self._lease.valid_until_s))
        del self._topics[topic.name]
        undelivered = topic.undelivered()
        self._record("closed", topic, at_s=ended_at_s, written_at_s=now_s, reason=reason)
        if undelivered:
            self._record("dropped", topic, at_s=now_s, reason=reason, ranges=undelivered.as_lists())
        topic.tell_closed(reason)
        if topic.closing is None:
            topic.closing = asyncio.Event()
        topic.closing.set()

    def _record(self, event: str, topic: Topic, **more: object) -> None:
        self._serving_log.append(
            {"event": event, "topic": topic.name, "instance": self.instance, "incarnation": topic.incarnation, **more}
        )
        log.debug("serving_changed", change=event, topic=topic.name, **more)
