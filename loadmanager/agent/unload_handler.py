"""Handler of unloads and warm-ups.

An unload fences the bundle first, then waits until the broker has closed its topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Grants, Revocation, UnloadRefusal
from loadmanager.agent.node_queries import NamespaceCache
from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.net.broker_client import BrokerClient, UnloadRefusedError
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.http_bodies import OwnerAnswer, TopicsOfBundle

log = structlog.get_logger(__name__)

_UNLOADS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class UnloadHandler:
    """Executes unloads of the leader.

    `read_epoch()` reads the current epoch from the metadata store; `open_topics()` returns the topics in the broker's
    last statistics. `on_unloaded()` is called after each unload. `answered()` is called with the broker's refusal, or
    None once the bundle is closed. `contradicted()` is called if the epoch of an unload is too old.
    """

    grants: Grants
    broker: BrokerClient
    namespaces: NamespaceCache
    metrics: AgentMetrics
    read_epoch: Callable[[], Awaitable[int]]
    open_topics: Callable[[], Iterable[str]]
    on_unloaded: Callable[[], None]
    contradicted: Callable[[BundleName], Awaitable[None]]
    answered: Callable[[BundleName, UnloadRefusedError | None], None] = lambda *_: None

    async def unload(
        self,
        bundle: BundleName,
        owner: Registration,
        epoch: int,
        version: int,
        hash_function: HashFunction | None = None,
        destination: BrokerId | None = None,
    ) -> UnloadRefusal | None:
        """Fence the bundle and have the broker close its topics; None once it has, else the refusal.

        The broker also learns the `destination`, if there is one. Without the namespace's `hash_function` all topics in
        overlapping bundles are closed. Repeating an unload is harmless.

        `PeerUnavailableError` if the broker does not confirm, `StoreError` if the epoch cannot be checked.
        """
        revocation: Revocation | UnloadRefusal = UnloadRefusal.UNKNOWN_EPOCH
        if await self._was_elected(epoch):
            revocation = self.grants.revoke(bundle, owner, epoch, version, hash_function)
        if isinstance(revocation, UnloadRefusal):
            self.metrics.unloads.labels(revocation).inc()
            log.warning("unload_refused", bundle=str(bundle), epoch=epoch, version=version, reason=revocation)
            if revocation is UnloadRefusal.STALE_EPOCH:
                await self.contradicted(bundle)
            return revocation
        try:
            await self.broker.unload(str(bundle), self._topics(revocation, hash_function), destination)
        except (PeerUnavailableError, InvalidRecordError) as error:
            self.metrics.unloads.labels("broker_unavailable").inc()
            log.warning("unload_failed", bundle=str(bundle), epoch=epoch, version=version, error=str(error))
            if isinstance(error, UnloadRefusedError):
                self.answered(bundle, error)
            raise
        self.answered(bundle, None)
        self.grants.closed(revocation)
        self.on_unloaded()
        self.metrics.unloads.labels("done").inc()
        log.info("unloaded", bundle=str(bundle), epoch=epoch, version=version, topics=len(revocation.topics))
        return None

    def topics_of(self, namespace: NamespaceName) -> set[str]:
        """Return the topics of a namespace that may be open: all granted ones, and those the broker reports."""
        granted = self.grants.topics_by_bundle()
        found = {topic for bundle in granted if bundle.namespace == namespace for topic in granted[bundle]}
        return found.union(topic for topic in self.open_topics() if TopicName.parse(topic).namespace == namespace)

    def everything_open(self) -> dict[BundleName, list[str]]:
        """Return by bundle all granted topics, and those the broker reports, if their bundle is known."""
        found = {bundle: set(topics) for bundle, topics in self.grants.topics_by_bundle().items()}
        for topic in self.open_topics():
            bundle = self.grants.find_bundle(topic) or self.namespaces.find_bundle(topic)
            if bundle is not None:
                found.setdefault(bundle, set()).add(topic)
        return {bundle: sorted(topics) for bundle, topics in found.items()}

    async def close(self, topics_by_bundle: Mapping[BundleName, list[str]]) -> bool:
        """Have the broker close all of these topics; True if it confirmed each bundle."""
        slots = asyncio.Semaphore(_UNLOADS_AT_A_TIME)

        async def close_one(bundle: BundleName, topics: list[str]) -> bool:
            async with slots:
                try:
                    await self.broker.unload(str(bundle), topics)
                except (PeerUnavailableError, InvalidRecordError) as error:
                    log.warning("broker_did_not_close", bundle=str(bundle), error=str(error))
                    return False
                return True

        return all(await asyncio.gather(*(close_one(*entry) for entry in topics_by_bundle.items())))

    async def _was_elected(self, epoch: int) -> bool:
        """Tell if some leader has or had this epoch: accepting an invented one would lock out every real leader."""
        if epoch <= self.grants.highest_epoch:
            return True
        try:
            return epoch <= await self.read_epoch()
        except StoreError as error:
            self.metrics.unloads.labels("epoch_not_read").inc()
            log.warning("unload_failed", epoch=epoch, error=str(error))
            raise

    def _topics(self, revocation: Revocation, hash_function: HashFunction | None) -> list[str]:
        """Return all granted topics, and those the broker reports in the bundle."""
        bundle = revocation.bundle

        def is_here(topic: str) -> bool:
            if hash_function is None:
                return self.namespaces.find_bundle(topic) == bundle
            return TopicName.parse(topic).namespace == bundle.namespace and (
                topic_hash(topic, hash_function) in bundle.range
            )

        return sorted(revocation.topics.union(filter(is_here, self.open_topics())))


EXPECTED_S = 30.0
"""Stop expecting a bundle after this time. Nobody tells the destination that a move was cancelled."""

LONGEST_WAIT_S = 5.0
_MOST_BUNDLES = 10_000
_HELD_S = 0.25
"""Maximum wait at one node. It may lag behind while another node has the answer."""
_MOST_HELD = 32
"""Maximum number of concurrent waits: other questions share the connections."""
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class _Expected:
    """Announced to this incarnation of the broker, when `fence` was the bundle's highest fence."""

    incarnation: int
    fence: int
    until_s: float


@dataclass(slots=True, eq=False)
class WarmUp:
    """Bundles that the leader announced to this broker. `ask` answers the broker's questions and can delay a "no".

    Each client that connects early would repeat its question until the release is over. So one question per bundle
    polls the nodes, which wait for the expected owner; the others wait for that poll and then ask once.

    A bundle is no longer expected once it has arrived, was revoked again, or was announced to an earlier incarnation.
    """

    grants: Grants
    broker: BrokerClient
    ask: Callable[[TopicName, float], Awaitable[OwnerAnswer]]
    clock: Callable[[], float]
    _expected: dict[str, _Expected] = field(default_factory=dict)
    _looks: dict[str, asyncio.Event] = field(default_factory=dict)

    async def prepare(self, destination: Registration, wanted: TopicsOfBundle) -> UnloadRefusal | bool:
        """Announce a bundle to the broker and return True if it has prepared, False if it does not support that.

        A call for another destination is refused. `PeerUnavailableError` if the broker does not answer.
        """
        if self.grants.registration is None:
            return UnloadRefusal.NOT_REGISTERED
        if self.grants.registration != destination:
            return UnloadRefusal.OTHER_BROKER
        self._expect(wanted.bundle, destination.incarnation)
        is_prepared = await self.broker.prepare(wanted)
        log.info("prepared", bundle=wanted.bundle, topics=len(wanted.topics), by_broker=is_prepared)
        return is_prepared

    async def ask_owner(self, topic: TopicName, wait_s: float = 0.0) -> OwnerAnswer:
        """Return the answer for the broker. For an expected bundle, delay a "no" by at most `wait_s`."""
        gives_up_s = self.clock() + min(wait_s, LONGEST_WAIT_S)
        answer = await self.ask(topic, 0.0)
        while not answer.owned and self._is_expected(answer.bundle) and self.clock() < gives_up_s:
            assert answer.bundle is not None, "it is expected"
            answer = await self._ask_again(topic, answer.bundle, gives_up_s)
        if answer.owned and answer.bundle is not None:
            self._expected.pop(answer.bundle, None)
        return answer

    def _expect(self, bundle: str, incarnation: int) -> None:
        if len(self._expected) >= _MOST_BUNDLES:
            self._expected = {each: known for each, known in self._expected.items() if self._is_expected(each)}
        if len(self._expected) < _MOST_BUNDLES:
            fence = self.grants.highest_fence(BundleName.parse(bundle))
            self._expected[bundle] = _Expected(incarnation, fence, self.clock() + EXPECTED_S)

    def _is_expected(self, bundle: str | None) -> bool:
        known = None if bundle is None else self._expected.get(bundle)
        if bundle is None or known is None or self.clock() >= known.until_s:
            return False
        is_of_this_life = known.incarnation == self.grants.incarnation
        return is_of_this_life and known.fence == self.grants.highest_fence(BundleName.parse(bundle))

    async def _ask_again(self, topic: TopicName, bundle: str, gives_up_s: float) -> OwnerAnswer:
        """Ask again after the poll for the bundle has found it or given up."""
        looked = self._looks.get(bundle)
        if looked is None:
            return await self._look(topic, bundle, gives_up_s)
        await wait_at_most(looked, gives_up_s - self.clock())
        return await self.ask(topic, 0.0)

    async def _look(self, topic: TopicName, bundle: str, gives_up_s: float) -> OwnerAnswer:
        """Poll the nodes, for all questions about the bundle."""
        looked = self._looks[bundle] = asyncio.Event()
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                held_s = min(_HELD_S, gives_up_s - self.clock()) if len(self._looks) <= _MOST_HELD else 0.0
                answer = await self.ask(topic, max(0.0, held_s))
                if answer.owned or not self._is_expected(bundle) or self.clock() >= gives_up_s:
                    return answer
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
        finally:
            del self._looks[bundle]
            looked.set()
