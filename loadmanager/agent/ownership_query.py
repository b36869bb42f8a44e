"""Ownership question of a broker: asked of the nodes, judged by `loadmanager.agent.grants`; and its open topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.bundle_stats import OpenTopicLoad
from loadmanager.agent.grants import Claim, Grants, GrantVerdict
from loadmanager.agent.node_queries import Awaited, LoadManagerNodes, NamespaceCache
from loadmanager.core.domain.bundles import NamespaceBundles, topic_hash
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.errors import InvalidRecordError, LoadManagerError
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.wire.http_bodies import OpenTopic, OwnerAnswer, TopicsAnswer

log = structlog.get_logger(__name__)

_TRIES = 3


class NotRegisteredError(LoadManagerError):
    """The broker is not registered, or that is not certain at this moment: it may open nothing."""


class OwnershipQuestions:
    """Asks for one topic at a time; `is_certain()` says whether the registration is beyond doubt, `contradicted()`
    is called when a bundle is said to be ours at a version at which it was taken away, and `granted()` for a topic
    that the broker may open.
    """

    def __init__(
        self,
        grants: Grants,
        nodes: LoadManagerNodes,
        namespaces: NamespaceCache,
        metrics: AgentMetrics,
        is_certain: Callable[[], bool],
        contradicted: Callable[[BundleName], Awaitable[None]],
        granted: Callable[[TopicName], None],
    ) -> None:
        self._grants = grants
        self._nodes = nodes
        self._namespaces = namespaces
        self._metrics = metrics
        self._is_certain = is_certain
        self._contradicted = contradicted
        self._granted = granted

    async def ask(self, topic: TopicName, wait_s: float = 0.0) -> OwnerAnswer:
        """The answer for the broker; a node may take so long for another one than that it owns the topic.

        `NotRegisteredError`, or `PeerUnavailableError` when no node gave an answer that can be relied on.
        """
        for _ in range(_TRIES):
            verdict, claim = await self._ask_once(topic, wait_s)
            self._metrics.questions.labels(verdict).inc()
            if verdict is GrantVerdict.STALE and claim is not None:
                await self._contradicted(claim.bundle)
            incarnation = self._grants.incarnation
            if incarnation is None or not self._is_certain():
                raise NotRegisteredError(
                    "the broker is not registered, or the session with the metadata store is in doubt"
                )
            if verdict is GrantVerdict.GRANTED:
                self._granted(topic)
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
        question = self._grants.ask(topic)
        if question is None:
            raise NotRegisteredError("the broker is not registered")
        outcome: tuple[GrantVerdict, Claim | None] = (GrantVerdict.NOT_OWNER, None)

        def settles(claim: Claim | None) -> bool:
            nonlocal outcome
            if claim is None:
                return False
            outcome = (self._grants.answer(question, claim), claim)
            self._note(topic, *outcome)
            return outcome[0] in (GrantVerdict.GRANTED, GrantVerdict.VOID)

        awaited = Awaited(self._grants.broker, wait_s) if wait_s else None
        await self._nodes.ask_ownership(topic, settles, awaited)
        return outcome

    def _note(self, topic: TopicName, verdict: GrantVerdict, claim: Claim) -> None:
        if verdict is GrantVerdict.FOREIGN_BUNDLE:
            self._metrics.garbage.labels("node").inc()
            log.warning("garbage_from_node", error=f"{claim.bundle} cannot hold {topic}")
        else:
            self._namespaces.note(claim.bundle)


_IDLE = OpenTopicLoad(0.0, 0.0, 0.0, 0.0, 0, 0)


class OpenTopics:
    """`topics_of(namespace)` are the topics that the broker may have open, `loads()` the loads of those that carry any,
    `on_new_bundles()` is called when a namespace has other boundaries than before.
    """

    def __init__(
        self,
        namespaces: NamespaceCache,
        topics_of: Callable[[NamespaceName], Iterable[str]],
        loads: Callable[[], Mapping[str, OpenTopicLoad]],
        on_new_bundles: Callable[[], None],
    ) -> None:
        self._namespaces = namespaces
        self._topics_of = topics_of
        self._loads = loads
        self._on_new_bundles = on_new_bundles

    async def of_bundle(self, bundle: BundleName) -> TopicsAnswer:
        """The topics whose hash lies in the bundle's range, whether it is a current bundle or not, by name.

        `InvalidRecordError` for an unknown namespace, `PeerUnavailableError` when no node says how it hashes.
        """
        bundles = await self._namespaces.find_bundles(bundle.namespace)
        if bundles is None:
            raise InvalidRecordError(f"namespace {bundle.namespace} not found")
        loads = self._loads()
        topics = []
        for topic in sorted(self._topics_of(bundle.namespace)):
            value = topic_hash(topic, bundles.hash_function)
            if value in bundle.range:
                load = loads.get(topic, _IDLE)
                topics.append(
                    OpenTopic(
                        topic=topic,
                        hash=value,
                        msg_rate_in=load.msg_rate_in,
                        msg_rate_out=load.msg_rate_out,
                        msg_throughput_in=load.msg_throughput_in,
                        msg_throughput_out=load.msg_throughput_out,
                    )
                )
        return TopicsAnswer(bundle=str(bundle), topics=topics)

    def take_boundaries(self, namespace: NamespaceName, bundles: NamespaceBundles) -> None:
        """The leader has split or merged bundles of the namespace: these are the bundles now."""
        log.info("boundaries_told", namespace=str(namespace), bundles=len(bundles))
        self._namespaces.take(namespace, bundles)
        self._on_new_bundles()
