"""Cache of the bundle boundaries of the broker's namespaces, to find the bundle of an open topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from loadmanager.agent.grants import Grants
from loadmanager.agent.node_queries import LoadManagerNodes
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.net.http_client import PeerUnavailableError

log = structlog.get_logger(__name__)

_KEPT_S = 60.0
"""The leader tells an agent of new boundaries, but it may die before it does, or not reach it."""
_KEPT_WHEN_NEW_S = 5.0
"""Boundaries that have just changed may be the word of a node that lags behind."""


@dataclass(slots=True)
class _Known:
    bundles: NamespaceBundles
    until_s: float


class NamespaceCache:
    """Boundaries by namespace. A topic of a namespace that cannot be read is placed as it was granted."""

    def __init__(self, nodes: LoadManagerNodes, grants: Grants, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._grants = grants
        self._clock = clock
        self._known: dict[NamespaceName, _Known] = {}
        self._outdated: set[NamespaceName] = set()

    def note(self, bundle: BundleName) -> None:
        """A node named this bundle: boundaries that do not have it are out of date."""
        known = self._known.get(bundle.namespace)
        if known is None or known.bundles.find_index(bundle.range) is None:
            self._outdated.add(bundle.namespace)

    def take(self, namespace: NamespaceName, bundles: NamespaceBundles) -> None:
        """Boundaries that the leader has told of, or a node has answered."""
        known = self._known.get(namespace)
        changed = known is not None and known.bundles != bundles
        self._outdated.discard(namespace)
        self._known[namespace] = _Known(bundles, self._clock() + (_KEPT_WHEN_NEW_S if changed else _KEPT_S))

    async def find_bundles(self, namespace: NamespaceName) -> NamespaceBundles | None:
        """The boundaries in hand, else those that a node names; None for an unknown namespace.

        `PeerUnavailableError` when no node answers.
        """
        if namespace not in self._known:
            await self._read(namespace)
        known = self._known.get(namespace)
        return known.bundles if known else None

    async def refresh(self, topics: Iterable[str]) -> None:
        """Read the boundaries that these topics need and that are missing or old, as far as a node answers."""
        needed = {TopicName.parse(topic).namespace for topic in topics}
        for gone in self._known.keys() - needed:
            del self._known[gone]
        self._outdated &= needed
        for namespace in sorted(needed):
            if not self._is_current(namespace):
                try:
                    await self._read(namespace)
                except PeerUnavailableError as error:
                    log.warning("bundles_not_refreshed", namespace=str(namespace), error=str(error))
                    return

    def find_bundle(self, topic: str) -> BundleName | None:
        """The bundle of a topic: by the boundaries in hand, else the one it was granted in."""
        name = TopicName.parse(topic).namespace
        known = self._known.get(name)
        if known is None:
            return self._grants.find_bundle(topic)
        return BundleName(name, known.bundles.range_at(known.bundles.index_of_topic(topic)))

    def _is_current(self, namespace: NamespaceName) -> bool:
        known = self._known.get(namespace)
        is_young = known is not None and self._clock() < known.until_s
        return is_young and namespace not in self._outdated

    async def _read(self, namespace: NamespaceName) -> None:
        self._outdated.discard(namespace)
        bundles = await self._nodes.find_bundles(namespace)
        if bundles is None:
            self._known.pop(namespace, None)
        else:
            self.take(namespace, bundles)
