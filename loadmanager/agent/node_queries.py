"""Queries to the load-manager nodes with failover, and a cache of bundle boundaries from their answers.

Queries start with the node that answered last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Claim, Grants
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles
from loadmanager.core.domain.names import (
    BrokerId,
    BundleName,
    InvalidNameError,
    NamespaceName,
    TopicName,
    parse_broker_id,
)
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.net.http_client import HttpClient, PeerUnavailableError
from loadmanager.wire.http_bodies import NamespaceAnswer, NamespacePolicies, OwnershipAnswer
from loadmanager.wire.store_records import parse_boundaries
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

_TIMEOUT_S = 1.5
"""Nodes answer from memory. After this time the next node is asked."""

_MAX_ANSWERS = 2
"""Maximum number of nodes that answer: one may lag behind."""

T = TypeVar("T")


class LoadManagerNodes:
    def __init__(self, http: HttpClient, urls: Sequence[str], metrics: AgentMetrics) -> None:
        self._http = http
        self._urls = [url.rstrip("/") for url in urls]
        self._metrics = metrics

    async def ask_ownership(
        self, topic: TopicName, settles: Callable[[Claim | None], bool], broker: BrokerId, wait_s: float
    ) -> None:
        """Query the nodes about the topic's bundle, and pass each answer to `settles` until it returns True.

        The answer is None for an unknown namespace. At most two nodes answer: one node may lag behind. The first
        may wait up to `wait_s` for this broker to become the owner; nodes of older versions answer at once.
        `PeerUnavailableError` if no node answers.
        """
        place = f"{topic.domain}/{topic.namespace}/{quote(topic.local_name, safe='')}"
        params = {"owner": broker, "waitMs": str(round(wait_s * 1000))} if wait_s else None
        await self._ask(f"/loadbalance/v1/ownership/{place}", _claim, settles, _MAX_ANSWERS, params, wait_s)

    async def find_namespace(self, namespace: NamespaceName) -> tuple[NamespaceBundles, bool] | None:
        """Return the bundles of a namespace, and whether it is available without a lease; None if it does not exist.

        `PeerUnavailableError` if no node answers.
        """
        return await self._ask(f"/admin/v2/namespaces/{namespace}", _namespace, lambda _: True, 1)

    async def _ask(
        self,
        path: str,
        parse: Callable[[bytes, str], T],
        settles: Callable[[T | None], bool],
        max_answers: int,
        params: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> T | None:
        """Return the first answer for which `settles` is true, else the last of at most `max_answers`."""
        failures: list[str] = []
        answers: list[T | None] = []
        for url in list(self._urls):
            try:
                answers.append(await self._ask_one(url + path, parse, params, wait_s))
            except PeerUnavailableError as error:
                failures.append(str(error))
                continue
            except InvalidRecordError as error:
                log.warning("node_answer_invalid", error=str(error))
                self._metrics.garbage.labels("node").inc()
                failures.append(str(error))
                continue
            if len(answers) == 1:
                self._prefer(url)
                params, wait_s = None, 0.0
            if settles(answers[-1]) or len(answers) == max_answers:
                break
        if not answers:
            raise PeerUnavailableError("no load-manager node answered: " + "; ".join(failures))
        return answers[-1]

    async def _ask_one(
        self, url: str, parse: Callable[[bytes, str], T], params: Mapping[str, str] | None, wait_s: float
    ) -> T | None:
        answer = await self._http.call("GET", url, _TIMEOUT_S + wait_s, params=params)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise PeerUnavailableError(answer.shown())
        return parse(answer.body, answer.url)

    def _prefer(self, url: str) -> None:
        position = self._urls.index(url)
        if position > 0:
            log.info("load_manager_node_changed", url=url)
            self._urls = self._urls[position:] + self._urls[:position]


def _claim(body: bytes, where: str) -> Claim:
    answer = parse_model(OwnershipAnswer, body, where)
    try:
        owner = None
        if answer.owner is not None and answer.incarnation is not None:
            owner = Registration(parse_broker_id(answer.owner), answer.incarnation)
        return Claim(BundleName.parse(answer.bundle), OwnershipState(answer.state), owner, answer.version)
    except ValueError as error:  # an InvalidNameError, or an unknown state
        raise InvalidRecordError(f"{where}: {error}") from None


def _namespace(body: bytes, where: str) -> tuple[NamespaceBundles, bool]:
    answer = parse_model(NamespaceAnswer, body, where)
    return _bundles_of(answer, where), answer.is_available


def parse_bundles(body: bytes, where: str) -> NamespaceBundles:
    """Return the bundles in a namespace's policies; `InvalidRecordError` if they are incomplete."""
    return _bundles_of(parse_model(NamespacePolicies, body, where), where)


def _bundles_of(policies: NamespacePolicies, where: str) -> NamespaceBundles:
    if policies.bundles is None or policies.bundles.boundaries is None:
        raise InvalidRecordError(f"{where}: bundles.boundaries: missing")
    try:
        boundaries = parse_boundaries(policies.bundles.boundaries)
        return NamespaceBundles(boundaries, policies.hash_function or HashFunction.MURMUR3_32)
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: bundles: {error}") from None


_MAX_AGE_S = 60.0
"""The leader pushes new boundaries to agents, but it may fail first or not reach the agent."""
_MAX_AGE_OF_NEW_S = 5.0
"""Boundaries that have just changed may come from a node that lags behind."""


@dataclass(slots=True)
class _Known:
    bundles: NamespaceBundles
    until_s: float
    is_available: bool | None
    """None: not yet read from a node."""


@dataclass(slots=True, eq=False)
class NamespaceCache:
    """Bundle boundaries by namespace, and the namespaces that are available without a lease. If a namespace cannot be
    read, a topic stays in the bundle in which it was granted.
    """

    nodes: LoadManagerNodes
    grants: Grants
    clock: Callable[[], float]
    _known: dict[NamespaceName, _Known] = field(default_factory=dict)
    _outdated: set[NamespaceName] = field(default_factory=set)

    @property
    def available(self) -> list[str]:
        """Namespaces whose open topics are served without a lease, sorted."""
        return sorted(str(namespace) for namespace, known in self._known.items() if known.is_available)

    def note(self, bundle: BundleName) -> None:
        """Mark the namespace as outdated if its known boundaries lack this bundle, which a node has named."""
        known = self._known.get(bundle.namespace)
        if known is None or known.bundles.find_index(bundle.range) is None:
            self._outdated.add(bundle.namespace)

    def take(self, namespace: NamespaceName, bundles: NamespaceBundles) -> None:
        """Store boundaries that the leader pushed or a node answered."""
        known = self._known.get(namespace)
        changed = known is not None and known.bundles != bundles
        self._outdated.discard(namespace)
        until_s = self.clock() + (_MAX_AGE_OF_NEW_S if changed else _MAX_AGE_S)
        self._known[namespace] = _Known(bundles, until_s, None if known is None else known.is_available)

    async def find_bundles(self, namespace: NamespaceName) -> NamespaceBundles | None:
        """Return the cached boundaries, else query a node; None for an unknown namespace.

        `PeerUnavailableError` if no node answers.
        """
        if namespace not in self._known:
            await self._read(namespace)
        known = self._known.get(namespace)
        return known.bundles if known else None

    async def refresh(self, topics: Iterable[str]) -> None:
        """Read missing and outdated boundaries of these topics and of all granted ones. Stop if no node answers; drop
        all other namespaces.
        """
        needed = {TopicName.parse(topic).namespace for topic in topics} | self.grants.namespaces
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
        """Return the bundle of a topic by the cached boundaries, else the one it was granted in."""
        name = TopicName.parse(topic).namespace
        known = self._known.get(name)
        if known is None:
            return self.grants.find_bundle(topic)
        return BundleName(name, known.bundles.range_at(known.bundles.index_of_topic(topic)))

    def _is_current(self, namespace: NamespaceName) -> bool:
        known = self._known.get(namespace)
        is_young = known is not None and known.is_available is not None and self.clock() < known.until_s
        return is_young and namespace not in self._outdated

    async def _read(self, namespace: NamespaceName) -> None:
        self._outdated.discard(namespace)
        answer = await self.nodes.find_namespace(namespace)
        if answer is None:
            self._known.pop(namespace, None)
            return
        bundles, is_available = answer
        self.take(namespace, bundles)
        self._known[namespace].is_available = is_available
