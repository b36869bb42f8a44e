"""Requests of the leader about open topics: those of a bundle, and split boundaries of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from loadmanager.agent.bundle_stats import OpenTopicLoad
from loadmanager.agent.namespace_cache import NamespaceCache
from loadmanager.core.domain.bundles import NamespaceBundles, topic_hash
from loadmanager.core.domain.names import BundleName, NamespaceName
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.http_bodies import OpenTopic, TopicsAnswer

log = structlog.get_logger(__name__)

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
