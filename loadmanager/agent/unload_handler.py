"""Handler of unloads: fence the bundle first, then wait until the broker has closed its topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Grants, Revocation, UnloadRefusal
from loadmanager.agent.namespace_cache import NamespaceCache
from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.net.broker_client import BrokerClient, UnloadRefusedError
from loadmanager.net.http_client import PeerUnavailableError

log = structlog.get_logger(__name__)

_UNLOADS_AT_A_TIME = 8


class UnloadHandler:
    """`read_epoch()` asks the metadata store for the current epoch, `open_topics()` are the topics in the broker's last
    statistics, and `on_unloaded()` is called after each unload; `answered()` with the broker's refusal,
    or None when it has closed the bundle; `contradicted()` when the epoch of one is too old.
    """

    def __init__(
        self,
        grants: Grants,
        broker: BrokerClient,
        namespaces: NamespaceCache,
        metrics: AgentMetrics,
        read_epoch: Callable[[], Awaitable[int]],
        open_topics: Callable[[], Iterable[str]],
        on_unloaded: Callable[[], None],
        contradicted: Callable[[BundleName], Awaitable[None]],
        answered: Callable[[BundleName, UnloadRefusedError | None], None] = lambda *_: None,
    ) -> None:
        self._grants = grants
        self._broker = broker
        self._namespaces = namespaces
        self._metrics = metrics
        self._read_epoch = read_epoch
        self._open_topics = open_topics
        self._on_unloaded = on_unloaded
        self._contradicted = contradicted
        self._answered = answered

    async def unload(
        self,
        bundle: BundleName,
        owner: Registration,
        epoch: int,
        version: int,
        hash_function: HashFunction | None = None,
        destination: BrokerId | None = None,
    ) -> UnloadRefusal | None:
        """None once the broker has closed the bundle's topics; it is told who is to have them next, if somebody is.

        `PeerUnavailableError` when it does not say so, `StoreError` when it cannot be known whether the epoch exists.

        Repeating it is harmless. From the first word of it on, nothing in the bundle is granted any more. Without the
        namespace's `hash_function` everything is closed that was granted in a bundle which overlaps with this one.
        """
        revocation: Revocation | UnloadRefusal = UnloadRefusal.UNKNOWN_EPOCH
        if await self._was_elected(epoch):
            revocation = self._grants.revoke(bundle, owner, epoch, version, hash_function)
        if isinstance(revocation, UnloadRefusal):
            self._metrics.unloads.labels(revocation).inc()
            log.warning("unload_refused", bundle=str(bundle), epoch=epoch, version=version, reason=revocation)
            if revocation is UnloadRefusal.STALE_EPOCH:
                await self._contradicted(bundle)
            return revocation
        try:
            await self._broker.unload(str(bundle), self._topics(revocation, hash_function), destination)
        except (PeerUnavailableError, InvalidRecordError) as error:
            self._metrics.unloads.labels("broker_unavailable").inc()
            log.warning("unload_failed", bundle=str(bundle), epoch=epoch, version=version, error=str(error))
            if isinstance(error, UnloadRefusedError):
                self._answered(bundle, error)
            raise
        self._answered(bundle, None)
        self._grants.closed(revocation)
        self._on_unloaded()
        self._metrics.unloads.labels("done").inc()
        log.info("unloaded", bundle=str(bundle), epoch=epoch, version=version, topics=len(revocation.topics))
        return None

    def topics_of(self, namespace: NamespaceName) -> set[str]:
        """The topics of a namespace that may be open: all that were granted, and what the broker says is open."""
        granted = self._grants.topics_by_bundle()
        found = {topic for bundle in granted if bundle.namespace == namespace for topic in granted[bundle]}
        return found.union(topic for topic in self._open_topics() if TopicName.parse(topic).namespace == namespace)

    def everything_open(self) -> dict[BundleName, list[str]]:
        """Topics by bundle: all that were granted, and what the broker says is open, where its bundle is known."""
        found = {bundle: set(topics) for bundle, topics in self._grants.topics_by_bundle().items()}
        for topic in self._open_topics():
            bundle = self._grants.find_bundle(topic) or self._namespaces.find_bundle(topic)
            if bundle is not None:
                found.setdefault(bundle, set()).add(topic)
        return {bundle: sorted(topics) for bundle, topics in found.items()}

    async def close(self, topics_by_bundle: Mapping[BundleName, list[str]]) -> bool:
        """Have the broker close all of it, for a broker that is to serve nothing; whether it said that it has."""
        slots = asyncio.Semaphore(_UNLOADS_AT_A_TIME)

        async def close_one(bundle: BundleName, topics: list[str]) -> bool:
            async with slots:
                try:
                    await self._broker.unload(str(bundle), topics)
                except (PeerUnavailableError, InvalidRecordError) as error:
                    log.warning("broker_did_not_close", bundle=str(bundle), error=str(error))
                    return False
                return True

        return all(await asyncio.gather(*(close_one(*entry) for entry in topics_by_bundle.items())))

    async def _was_elected(self, epoch: int) -> bool:
        """Tell if some leader has or had this epoch: after an invented one, every leader would be refused."""
        if epoch <= self._grants.highest_epoch:
            return True
        try:
            return epoch <= await self._read_epoch()
        except StoreError as error:
            self._metrics.unloads.labels("epoch_not_read").inc()
            log.warning("unload_failed", epoch=epoch, error=str(error))
            raise

    def _topics(self, revocation: Revocation, hash_function: HashFunction | None) -> list[str]:
        """Everything granted, and what the broker itself says is open in the bundle."""
        bundle = revocation.bundle

        def is_here(topic: str) -> bool:
            if hash_function is None:
                return self._namespaces.find_bundle(topic) == bundle
            return TopicName.parse(topic).namespace == bundle.namespace and (
                topic_hash(topic, hash_function) in bundle.range
            )

        return sorted(revocation.topics.union(filter(is_here, self._open_topics())))
