"""Warm-up of announced bundles: the broker prepares, and the agent holds a "no" back until it is a "yes".

A question about such a bundle would be asked over and over until the release is over, by each client that has come
early. So one of them looks at the nodes, which hold any other answer back than the one that is waited for, and the
others ask when it was found. It is asked about in this life of the broker, so a "yes" is none of before.
What has come is expected no more, nor is what was taken away since, or announced to a former life of the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from loadmanager.agent.grants import Grants, UnloadRefusal
from loadmanager.core.domain.names import BundleName, TopicName
from loadmanager.core.domain.ownership import Registration
from loadmanager.net.broker_client import BrokerClient
from loadmanager.wire.http_bodies import OwnerAnswer, TopicsOfBundle

log = structlog.get_logger(__name__)

COMING_S = 30.0
"""A bundle that has not come by then is expected no more: nobody is told that a move was called off."""

LONGEST_WAIT_S = 5.0
_MOST_BUNDLES = 10_000
_HELD_S = 0.25
"""So long a node may hold its answer back: it may lag behind, and then another one knows."""
_MOST_HELD = 32
"""At a time; other questions share the connections with these."""
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class _Expected:
    """To a life of the broker, when this was the highest version at which anything of the bundle was taken from it."""

    incarnation: int
    fence: int
    until_s: float


class WarmUp:
    """Announced bundles. `ask` answers the broker's questions and may hold a "no" back."""

    def __init__(
        self,
        grants: Grants,
        broker: BrokerClient,
        ask: Callable[[TopicName, float], Awaitable[OwnerAnswer]],
        clock: Callable[[], float],
    ) -> None:
        self._grants = grants
        self._broker = broker
        self._ask = ask
        self._clock = clock
        self._expected: dict[str, _Expected] = {}
        self._looks: dict[str, asyncio.Event] = {}

    async def prepare(self, destination: Registration, wanted: TopicsOfBundle) -> UnloadRefusal | bool:
        """Announce a bundle to the broker, and tell if it has prepared; False if it does not support that. Raises
        `PeerUnavailableError`. A call for another destination is refused.
        """
        if self._grants.registration is None:
            return UnloadRefusal.NOT_REGISTERED
        if self._grants.registration != destination:
            return UnloadRefusal.OTHER_BROKER
        self._expect(wanted.bundle, destination.incarnation)
        is_prepared = await self._broker.prepare(wanted)
        log.info("prepared", bundle=wanted.bundle, topics=len(wanted.topics), by_broker=is_prepared)
        return is_prepared

    async def ask_owner(self, topic: TopicName, wait_s: float = 0.0) -> OwnerAnswer:
        """The answer for the broker, as it is asked; of a bundle that is coming, a "no" only after so long at most."""
        gives_up_s = self._clock() + min(wait_s, LONGEST_WAIT_S)
        answer = await self._ask(topic, 0.0)
        while not answer.owned and self._is_coming(answer.bundle) and self._clock() < gives_up_s:
            assert answer.bundle is not None, "it is coming"
            answer = await self._ask_again(topic, answer.bundle, gives_up_s)
        if answer.owned and answer.bundle is not None:
            self._expected.pop(answer.bundle, None)
        return answer

    def _expect(self, bundle: str, incarnation: int) -> None:
        if len(self._expected) >= _MOST_BUNDLES:
            self._expected = {each: known for each, known in self._expected.items() if self._is_coming(each)}
        if len(self._expected) < _MOST_BUNDLES:
            fence = self._grants.highest_fence(BundleName.parse(bundle))
            self._expected[bundle] = _Expected(incarnation, fence, self._clock() + COMING_S)

    def _is_coming(self, bundle: str | None) -> bool:
        known = None if bundle is None else self._expected.get(bundle)
        if bundle is None or known is None or self._clock() >= known.until_s:
            return False
        is_of_this_life = known.incarnation == self._grants.incarnation
        return is_of_this_life and known.fence == self._grants.highest_fence(BundleName.parse(bundle))

    async def _ask_again(self, topic: TopicName, bundle: str, gives_up_s: float) -> OwnerAnswer:
        """Once there is reason to: what is looked for was found, or whoever looked has given up."""
        looked = self._looks.get(bundle)
        if looked is None:
            return await self._look(topic, bundle, gives_up_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(gives_up_s - self._clock()):
                await looked.wait()
        return await self._ask(topic, 0.0)

    async def _look(self, topic: TopicName, bundle: str, gives_up_s: float) -> OwnerAnswer:
        """Again and again, for all who ask about the bundle."""
        looked = self._looks[bundle] = asyncio.Event()
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                held_s = min(_HELD_S, gives_up_s - self._clock()) if len(self._looks) <= _MOST_HELD else 0.0
                answer = await self._ask(topic, max(0.0, held_s))
                if answer.owned or not self._is_coming(bundle) or self._clock() >= gives_up_s:
                    return answer
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
        finally:
            del self._looks[bundle]
            looked.set()
