"""HTTP calls to the agents of brokers about bundles: open topics, warm-up, and unloads.

Warm-up is optional: no move depends on it. A broker that does not support it is not asked again until it registers
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, Registration
from loadmanager.errors import InvalidRecordError, OwnerSilentError
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.net.http_client import Caller, HttpAnswer, HttpClient, PeerUnavailableError
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    HASH_FUNCTION_HEADER,
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

_TIMEOUT_S = 3.0

_MOST_NAMES_BYTES = 192 * 1024
"""Size limit for topic names in a prepare call: the agent reads at most 256 KiB."""


_SHORTEST_CALL_S = 0.1
_LONGEST_REFUSAL_BYTES = 64 * 1024

_CALLS_PER_DEADLINE = 6
"""One call may take this part of an unload's deadline. Of the default 60 s that is 10 s: longer than a broker takes to
close a bundle, and short enough to repeat a lost call. Where brokers are slower, the deadline has to be longer anyway.
"""


@dataclass(frozen=True, slots=True)
class OwnerRefusal:
    """Reason why an owner did not unload a bundle, or did not answer. `is_final`: a retry cannot succeed."""

    why: str
    is_final: bool = False


class OwnerClient(Protocol):
    """Client that asks owners to unload bundles."""

    async def ask(self, name: BundleName, released: Ownership, timeout_s: float) -> OwnerRefusal | None:
        """Ask the owner once to unload a bundle in state *releasing*; None when it has. Waits at most `timeout_s`.

        Raises `NotLeaderError`.
        """


_CONNECTIONS = 1_000
"""To all agents: many unloads at a time must not hold up calls that warm up a destination."""


class AgentCalls:
    """Calls to the agents of brokers in the mirror, with the credentials of `caller`. Create it in a running event
    loop.
    """

    def __init__(self, mirror: ClusterMirror, election: Election, caller: Caller, live: LiveSettings) -> None:
        self._mirror = mirror
        self._election = election
        self._live = live
        self._http = HttpClient(_CONNECTIONS, caller)
        self._unable: dict[BrokerId, Registration] = {}

    async def close(self) -> None:
        await self._http.close()

    async def get_topics(self, owner: Registration, bundle: BundleName) -> list[OpenTopic]:
        """Return the topics of a bundle that its owner may have open; raises `OwnerSilentError` without an answer."""
        url = f"{self._url(owner)}/loadmanager/v1/topics"
        reply = await self._call("GET", url, HTTPStatus.OK, params={"bundle": str(bundle)})
        try:
            answer = parse_model(TopicsAnswer, reply.body, url)
        except InvalidRecordError as error:
            raise OwnerSilentError(str(error)) from None
        return [topic for topic in answer.topics if topic.hash in bundle.range]

    async def tell_bundles(self, broker: Registration, state: NamespaceState) -> None:
        """Send the broker the current bundles of a namespace, so that it reports load for these.

        Raises `OwnerSilentError` when it does not confirm.
        """
        data = BundlesData.of(state.bundles)
        policies = NamespacePolicies(
            bundles=WantedBundles(boundaries=data.boundaries, num_bundles=data.num_bundles),
            hash_function=state.bundles.hash_function,
        )
        url = f"{self._url(broker)}/loadmanager/v1/namespaces/{state.name}/bundles"
        headers = {"Content-Type": "application/json"}
        await self._call("PUT", url, HTTPStatus.NO_CONTENT, data=policies.to_json(), headers=headers)

    async def ask(self, name: BundleName, released: Ownership, timeout_s: float) -> OwnerRefusal | None:
        """Ask the owner's agent once to unload a bundle in state *releasing*, as `OwnerClient.ask`."""
        owner = released.owner
        entry = self._mirror.brokers.get(owner.broker) if owner else None
        if owner is None or entry is None or entry.command_url is None:
            return OwnerRefusal("the broker's record names no URL to call")
        url = f"{entry.command_url}/admin/v2/namespaces/{name.namespace}/{name.range}/unload"
        headers = {
            EPOCH_HEADER: str(self._election.get_term().epoch),
            BUNDLE_VERSION_HEADER: str(released.version),
            OWNER_HEADER: owner.broker,
            INCARNATION_HEADER: str(owner.incarnation),
            HASH_FUNCTION_HEADER: self._mirror.get_namespace(str(name.namespace)).state.bundles.hash_function.value,
        }
        if released.destination is not None:
            headers[DESTINATION_HEADER] = released.destination.broker
        # Never 0 or less: aiohttp takes that for "no timeout".
        attempt_s = self._live.current.namespace_bundle_unloading_timeout_ms / 1000 / _CALLS_PER_DEADLINE
        call_timeout_s = max(min(attempt_s, timeout_s), _SHORTEST_CALL_S)
        try:
            answer = await self._http.call(
                "PUT", url, call_timeout_s, most_bytes=_LONGEST_REFUSAL_BYTES, headers=headers
            )
        except (PeerUnavailableError, InvalidRecordError) as error:
            return OwnerRefusal(str(error))
        return None if answer.status == HTTPStatus.NO_CONTENT else OwnerRefusal(answer.shown())

    def can_prepare(self, destination: Registration) -> bool:
        """True unless the broker has answered, since it registered, that it does not support warm-up."""
        return self._unable.get(destination.broker) != destination

    async def prepare(
        self, name: BundleName, owner: Registration | None, destination: Registration, timeout_s: float
    ) -> None:
        """Ask the destination to prepare for a bundle, and wait until it has, or at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                topics = [] if owner is None else [each.topic for each in await self.get_topics(owner, name)]
                if not await self._ask_to_prepare(destination, name, topics):
                    self._unable[destination.broker] = destination
        except (OwnerSilentError, TimeoutError) as error:
            log.info("not_prepared", bundle=str(name), destination=str(destination), error=str(error) or "too slow")

    async def _ask_to_prepare(self, destination: Registration, bundle: BundleName, topics: Iterable[str]) -> bool:
        """Return False when the broker does not support warm-up. Sends as many topic names as fit into one request."""
        headers = {
            "Content-Type": "application/json",
            OWNER_HEADER: destination.broker,
            INCARNATION_HEADER: str(destination.incarnation),
        }
        data = TopicsOfBundle(bundle=str(bundle), topics=list(_as_fits(topics))).to_json()
        url, expected = f"{self._url(destination)}/loadmanager/v1/prepare", (HTTPStatus.NO_CONTENT, *UNKNOWN)
        answer = await self._call("POST", url, *expected, data=data, headers=headers)
        return answer.status == HTTPStatus.NO_CONTENT

    def _url(self, broker: Registration) -> str:
        entry = self._mirror.brokers.get(broker.broker)
        if entry is None or entry.registration != broker or not entry.command_url:
            raise OwnerSilentError(f"{broker} is not registered with a URL to call")
        return entry.command_url

    async def _call(self, method: str, url: str, *expected: HTTPStatus, **options: Any) -> HttpAnswer:  # noqa: ANN401 - of `HttpClient.call`
        try:
            answer = await self._http.call(method, url, _TIMEOUT_S, **options)
        except (PeerUnavailableError, InvalidRecordError) as error:
            raise OwnerSilentError(str(error)) from None
        if answer.status not in expected:
            raise OwnerSilentError(answer.shown())
        return answer


def _as_fits(topics: Iterable[str]) -> Iterator[str]:
    left = _MOST_NAMES_BYTES
    for topic in topics:
        left -= len(topic.encode()) + len('"",')
        if left < 0:
            return
        yield topic
