"""HTTP calls to the agents of brokers about bundles: open topics, and warm-up. Unload calls are in `owner_calls`.

Warm-up is optional: no move depends on it. A broker that does not support it is not asked again until it registers
anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from http import HTTPStatus

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import NamespaceState, Registration
from loadmanager.errors import InvalidRecordError, OwnerSilentError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.http_client import Caller, HttpAnswer, HttpClient, PeerUnavailableError
from loadmanager.wire.http_bodies import (
    INCARNATION_HEADER,
    OWNER_HEADER,
    UNKNOWN,
    NamespacePolicies,
    OpenTopic,
    TopicsAnswer,
    TopicsOfBundle,
    WantedBundles,
)
from loadmanager.wire.store_records import BundlesData
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

TIMEOUT_S = 3.0

_MOST_NAMES_BYTES = 192 * 1024
"""Size limit for topic names in a prepare call: the agent reads at most 256 KiB."""


class AgentCalls:
    """Client of the agents of all brokers in the mirror, with the credentials of `caller`."""

    def __init__(self, mirror: ClusterMirror, caller: Caller, timeout_s: float = TIMEOUT_S) -> None:
        self._mirror = mirror
        self._caller = caller
        self._timeout_s = timeout_s
        self._http: HttpClient | None = None

    async def start(self) -> None:
        self._http = HttpClient(caller=self._caller)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def get_topics(self, owner: Registration, bundle: BundleName) -> list[OpenTopic]:
        """Return the topics of a bundle that its owner may have open; raises `OwnerSilentError` when it does not
        say.
        """
        url = f"{self._url(owner)}/loadmanager/v1/topics"
        body = await self._call("GET", url, HTTPStatus.OK, params={"bundle": str(bundle)})
        try:
            answer = parse_model(TopicsAnswer, body, url)
        except InvalidRecordError as error:
            raise OwnerSilentError(str(error)) from None
        return [topic for topic in answer.topics if topic.hash in bundle.range]

    async def tell_bundles(self, broker: Registration, state: NamespaceState) -> None:
        """Send the broker the bundles of a namespace, by which it counts load from now on; raises `OwnerSilentError`
        when it does not confirm.
        """
        data = BundlesData.of(state.bundles)
        policies = NamespacePolicies(
            bundles=WantedBundles(boundaries=data.boundaries, num_bundles=data.num_bundles),
            hash_function=state.bundles.hash_function,
        )
        url = f"{self._url(broker)}/loadmanager/v1/namespaces/{state.name}/bundles"
        headers = {"Content-Type": "application/json"}
        await self._call("PUT", url, HTTPStatus.NO_CONTENT, data=policies.to_json(), headers=headers)

    async def prepare(self, destination: Registration, bundle: BundleName, topics: Iterable[str]) -> bool:
        """Ask the broker to prepare for a bundle that it is about to get; return False when it does not support that.
        Names as many topics as fit into one request. Raises `OwnerSilentError` when it does not confirm.
        """
        headers = {
            "Content-Type": "application/json",
            OWNER_HEADER: destination.broker,
            INCARNATION_HEADER: str(destination.incarnation),
        }
        data = TopicsOfBundle(bundle=str(bundle), topics=list(_as_fits(topics))).to_json()
        answer = await self._ask("POST", f"{self._url(destination)}/loadmanager/v1/prepare", data=data, headers=headers)
        if answer.status not in {HTTPStatus.NO_CONTENT, *UNKNOWN}:
            raise OwnerSilentError(answer.shown())
        return answer.status == HTTPStatus.NO_CONTENT

    def _url(self, broker: Registration) -> str:
        entry = self._mirror.brokers.get(broker.broker)
        if entry is None or entry.registration != broker or not entry.command_url:
            raise OwnerSilentError(f"{broker} is not registered with a URL to call")
        return entry.command_url

    async def _call(
        self,
        method: str,
        url: str,
        expected: HTTPStatus,
        *,
        params: dict[str, str] | None = None,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        answer = await self._ask(method, url, params=params, data=data, headers=headers)
        if answer.status != expected:
            raise OwnerSilentError(answer.shown())
        return answer.body

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        params: dict[str, str] | None = None,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> HttpAnswer:
        if self._http is None:
            raise OwnerSilentError("this node is not running")
        try:
            return await self._http.call(method, url, self._timeout_s, params=params, data=data, headers=headers)
        except (PeerUnavailableError, InvalidRecordError) as error:
            raise OwnerSilentError(str(error)) from None


def _as_fits(topics: Iterable[str]) -> Iterator[str]:
    left = _MOST_NAMES_BYTES
    for topic in topics:
        left -= len(topic.encode()) + len('"",')
        if left < 0:
            return
        yield topic


class WarmUpCalls:
    """Warm-up calls to brokers that are about to get bundles, through their `agents`."""

    def __init__(self, agents: AgentCalls) -> None:
        self._agents = agents
        self._unable: dict[BrokerId, Registration] = {}

    def can_prepare(self, destination: Registration) -> bool:
        """True unless this registration of the broker has said that it does not support warm-up."""
        return self._unable.get(destination.broker) != destination

    async def prepare(
        self, name: BundleName, owner: Registration | None, destination: Registration, patience_s: float
    ) -> None:
        """Ask the destination to prepare for a bundle, and wait until it has, or at most `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                topics = [] if owner is None else [each.topic for each in await self._agents.get_topics(owner, name)]
                if not await self._agents.prepare(destination, name, topics):
                    self._unable[destination.broker] = destination
        except (OwnerSilentError, TimeoutError) as error:
            log.info("not_prepared", bundle=str(name), destination=str(destination), error=str(error) or "too slow")
