"""Queries to the load-manager nodes with fail-over, and the cache of bundle boundaries that they fill.

The node that answered last is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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

TIMEOUT_S = 1.5
"""A node answers from memory; one that takes longer is passed over for the next."""

_OPINIONS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Awaited:
    """Expected owner of a bundle, and the time to wait for it. A node of an older version answers at once."""

    broker: BrokerId
    for_s: float

    def params(self) -> dict[str, str]:
        return {"owner": self.broker, "waitMs": str(round(self.for_s * 1000))}


class LoadManagerNodes:
    """The nodes at `urls`."""

    def __init__(
        self,
        http: HttpClient,
        urls: Sequence[str],
        metrics: AgentMetrics,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._http = http
        self._urls = [url.rstrip("/") for url in urls]
        self._metrics = metrics
        self._timeout_s = timeout_s

    async def ask_ownership(
        self, topic: TopicName, settles: Callable[[Claim | None], bool], awaited: Awaited | None = None
    ) -> None:
        """Hand `settles` what node after node says of the topic's bundle (None: unknown namespace) until it is True.

        A node may lag behind, so a "no" is asked of a second one. `PeerUnavailableError` when no node answers. The
        first one may hold any other answer back than the one that is `awaited`.
        """
        place = f"{topic.domain}/{topic.namespace}/{quote(topic.local_name, safe='')}"
        await self._ask(f"/loadbalance/v1/ownership/{place}", _claim, settles, _OPINIONS, awaited)

    async def find_namespace(self, namespace: NamespaceName) -> tuple[NamespaceBundles, bool] | None:
        """Return the bundles of a namespace, and whether it is available without a lease; None: there is no such one.

        `PeerUnavailableError` when no node answers.
        """
        return await self._ask(f"/admin/v2/namespaces/{namespace}", _namespace, lambda _: True, 1)

    async def _ask(
        self,
        path: str,
        parse: Callable[[bytes, str], T],
        settles: Callable[[T | None], bool],
        opinions: int,
        awaited: Awaited | None = None,
    ) -> T | None:
        """The answer that settles it, else the last of `opinions`."""
        failures: list[str] = []
        answers: list[T | None] = []
        for url in list(self._urls):
            try:
                answers.append(await self._ask_one(url + path, parse, None if answers else awaited))
            except PeerUnavailableError as error:
                failures.append(str(error))
                continue
            except InvalidRecordError as error:
                log.warning("garbage_from_node", error=str(error))
                self._metrics.garbage.labels("node").inc()
                failures.append(str(error))
                continue
            if len(answers) == 1:
                self._prefer(url)
            if settles(answers[-1]) or len(answers) == opinions:
                break
        if not answers:
            raise PeerUnavailableError("no load-manager node answered: " + "; ".join(failures))
        return answers[-1]

    async def _ask_one(self, url: str, parse: Callable[[bytes, str], T], awaited: Awaited | None) -> T | None:
        wait_s, params = (0.0, None) if awaited is None else (awaited.for_s, awaited.params())
        answer = await self._http.call("GET", url, self._timeout_s + wait_s, params=params)
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
    except ValueError as error:  # an InvalidNameError, or a state that does not exist
        raise InvalidRecordError(f"{where}: {error}") from None


def _namespace(body: bytes, where: str) -> tuple[NamespaceBundles, bool]:
    answer = parse_model(NamespaceAnswer, body, where)
    return bundles_of(answer, where), answer.is_available


def bundles_of(policies: NamespacePolicies, where: str) -> NamespaceBundles:
    """The bundles of a namespace as a node tells of them; `InvalidRecordError` when they are not all there."""
    if policies.bundles is None or policies.bundles.boundaries is None:
        raise InvalidRecordError(f"{where}: bundles.boundaries: missing")
    try:
        boundaries = parse_boundaries(policies.bundles.boundaries)
        return NamespaceBundles(boundaries, policies.hash_function or HashFunction.MURMUR3_32)
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: bundles: {error}") from None


_KEPT_S = 60.0
"""The leader tells an agent of new boundaries, but it may die before it does, or not reach it."""
_KEPT_WHEN_NEW_S = 5.0
"""Boundaries that have just changed may be the word of a node that lags behind."""


@dataclass(slots=True)
class _Known:
    bundles: NamespaceBundles
    until_s: float
    is_available: bool | None
    """None: no node was asked yet."""


class NamespaceCache:
    """Boundaries by namespace, and which are available without a lease. A topic of a namespace that cannot be read is
    placed as it was granted.
    """

    def __init__(self, nodes: LoadManagerNodes, grants: Grants, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._grants = grants
        self._clock = clock
        self._known: dict[NamespaceName, _Known] = {}
        self._outdated: set[NamespaceName] = set()

    @property
    def available(self) -> list[str]:
        """Namespaces whose open topics outlast the broker's lease, sorted."""
        return sorted(str(namespace) for namespace, known in self._known.items() if known.is_available)

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
        until_s = self._clock() + (_KEPT_WHEN_NEW_S if changed else _KEPT_S)
        self._known[namespace] = _Known(bundles, until_s, None if known is None else known.is_available)

    async def find_bundles(self, namespace: NamespaceName) -> NamespaceBundles | None:
        """The boundaries in hand, else those that a node names; None for an unknown namespace.

        `PeerUnavailableError` when no node answers.
        """
        if namespace not in self._known:
            await self._read(namespace)
        known = self._known.get(namespace)
        return known.bundles if known else None

    async def refresh(self, topics: Iterable[str]) -> None:
        """Read the boundaries that these topics, and all granted ones, need and that are missing or old, as far as a
        node answers.
        """
        needed = {TopicName.parse(topic).namespace for topic in topics} | self._grants.namespaces
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
        is_young = known is not None and known.is_available is not None and self._clock() < known.until_s
        return is_young and namespace not in self._outdated

    async def _read(self, namespace: NamespaceName) -> None:
        self._outdated.discard(namespace)
        answer = await self._nodes.find_namespace(namespace)
        if answer is None:
            self._known.pop(namespace, None)
            return
        bundles, is_available = answer
        self.take(namespace, bundles)
        self._known[namespace].is_available = is_available
