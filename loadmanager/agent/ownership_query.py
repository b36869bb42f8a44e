"""Ownership questions of the broker, sent to the nodes and judged by `loadmanager.agent.grants`; its open topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Claim, Grants, GrantVerdict
from loadmanager.agent.node_queries import LoadManagerNodes, NamespaceCache
from loadmanager.core.domain.bundles import NamespaceBundles, topic_hash
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.errors import InvalidRecordError, LoadManagerError
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.wire.broker_data import NO_STATS, NamespaceBundleStats
from loadmanager.wire.http_bodies import OpenTopic, OwnerAnswer, TopicsAnswer

log = structlog.get_logger(__name__)

_TRIES = 3


class NotRegisteredError(LoadManagerError):
    """The broker is not registered, or its registration is uncertain: it may not open any topic."""


@dataclass(frozen=True, slots=True)
class OwnershipQuestions:
    """Answers the broker's questions, one topic each.

    `is_certain()` tells if the registration is certain. `contradicted()` is called when a node claims a bundle for this
    broker at a version that was already revoked. `granted()` is called for each topic that the broker may open.
    """

    grants: Grants
    nodes: LoadManagerNodes
    namespaces: NamespaceCache
    metrics: AgentMetrics
    is_certain: Callable[[], bool]
    contradicted: Callable[[BundleName], Awaitable[None]]
    granted: Callable[[TopicName], None]

    async def ask(self, topic: TopicName, wait_s: float = 0.0) -> OwnerAnswer:
        """Return the answer for the broker. A node may wait up to `wait_s` for this broker to become the owner.

        `NotRegisteredError`, or `PeerUnavailableError` if no node gave a reliable answer.
        """
        for _ in range(_TRIES):
            verdict, claim = await self._ask_once(topic, wait_s)
            self.metrics.questions.labels(verdict).inc()
            if verdict is GrantVerdict.STALE and claim is not None:
                await self.contradicted(claim.bundle)
            incarnation = self.grants.incarnation
            if incarnation is None or not self.is_certain():
                raise NotRegisteredError(
                    "the broker is not registered, or the session with the metadata store is in doubt"
                )
            if verdict is GrantVerdict.GRANTED:
                self.granted(topic)
            if verdict is not GrantVerdict.VOID:
                log.debug("topic_asked", topic=str(topic), verdict=verdict)
                return OwnerAnswer(
                    owned=verdict is GrantVerdict.GRANTED,
                    bundle=str(claim.bundle) if claim else None,
                    owner=claim.owner.broker if claim and claim.owner else None,
                    incarnation=incarnation,
                )
        raise PeerUnavailableError("the bundle of the topic is being unloaded")

    async def _ask_once(self, topic: TopicName, wait_s: float) -> tuple[GrantVerdict, Claim | None]:
        question = self.grants.ask(topic)
        if question is None:
            raise NotRegisteredError("the broker is not registered")
        outcome: tuple[GrantVerdict, Claim | None] = (GrantVerdict.NOT_OWNER, None)

        def settles(claim: Claim | None) -> bool:
            nonlocal outcome
            if claim is None:
                return False
            outcome = (self.grants.answer(question, claim), claim)
            self._note(topic, *outcome)
            return outcome[0] in (GrantVerdict.GRANTED, GrantVerdict.VOID)

        await self.nodes.ask_ownership(topic, settles, self.grants.broker, wait_s)
        return outcome

    def _note(self, topic: TopicName, verdict: GrantVerdict, claim: Claim) -> None:
        if verdict is GrantVerdict.FOREIGN_BUNDLE:
            self.metrics.garbage.labels("node").inc()
            log.warning("node_answer_invalid", error=f"{claim.bundle} cannot hold {topic}")
        else:
            self.namespaces.note(claim.bundle)


@dataclass(frozen=True, slots=True)
class OpenTopics:
    """Topics that the broker may have open.

    `topics_of(namespace)` returns these topics; `loads()` returns the loads of topics that have any. `on_new_bundles()`
    is called when the boundaries of a namespace have changed.
    """

    namespaces: NamespaceCache
    topics_of: Callable[[NamespaceName], Iterable[str]]
    loads: Callable[[], Mapping[str, NamespaceBundleStats]]
    on_new_bundles: Callable[[], None]

    async def of_bundle(self, bundle: BundleName) -> TopicsAnswer:
        """Return the topics whose hash lies in the bundle's range, by name. The bundle need not be a current one.

        `InvalidRecordError` for an unknown namespace, `PeerUnavailableError` if no node knows its hash function.
        """
        bundles = await self.namespaces.find_bundles(bundle.namespace)
        if bundles is None:
            raise InvalidRecordError(f"namespace {bundle.namespace} not found")
        loads = self.loads()
        topics = []
        for topic in sorted(self.topics_of(bundle.namespace)):
            value = topic_hash(topic, bundles.hash_function)
            if value in bundle.range:
                topics.append(OpenTopic.model_validate({"topic": topic, "hash": value, **loads.get(topic, NO_STATS)}))
        return TopicsAnswer(bundle=str(bundle), topics=topics)

    def take_boundaries(self, namespace: NamespaceName, bundles: NamespaceBundles) -> None:
        """Store the new bundles of a namespace after the leader has split or merged some."""
        log.info("boundaries_received", namespace=str(namespace), bundles=len(bundles))
        self.namespaces.take(namespace, bundles)
        self.on_new_bundles()
