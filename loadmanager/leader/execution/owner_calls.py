"""Unload calls to the owner of a bundle, over HTTP to its agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Ownership
from loadmanager.errors import InvalidRecordError, NotLeaderError
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.http_client import Caller, HttpClient, PeerUnavailableError
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    HASH_FUNCTION_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
)

_SHORTEST_CALL_S = 0.1
_LONGEST_REFUSAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OwnerRefusal:
    """Reason for which an owner did not let go, or did not answer. `is_final`: asking again would change nothing."""

    why: str
    is_final: bool = False


class OwnerClient(Protocol):
    """Client that asks owners to let go."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, name: BundleName, released: Ownership, patience_s: float) -> OwnerRefusal | None:
        """Ask the owner once to let go of a bundle that is being released; None when it has. Waits at most
        `patience_s`. Raises `NotLeaderError`.
        """


class AgentOwnerClient:
    """Client of the agents of all brokers in the mirror. `longest_s` returns the timeout of one call."""

    def __init__(
        self, mirror: ClusterMirror, election: Election, caller: Caller, longest_s: Callable[[], float]
    ) -> None:
        self._mirror = mirror
        self._election = election
        self._caller = caller
        self._longest_s = longest_s
        self._http: HttpClient | None = None

    async def start(self) -> None:
        self._http = HttpClient(caller=self._caller)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, name: BundleName, released: Ownership, patience_s: float) -> OwnerRefusal | None:
        """Call the agent's unload endpoint once, with the epoch of this node's term."""
        owner = released.owner
        entry = self._mirror.brokers.get(owner.broker) if owner else None
        if owner is None or entry is None or entry.command_url is None:
            return OwnerRefusal("the broker's record names no URL to call")
        if self._http is None:
            raise NotLeaderError("this node is not running")
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
        # Never 0 or less, which would mean "without limit" to aiohttp.
        timeout_s = min(self._longest_s(), max(patience_s, _SHORTEST_CALL_S))
        try:
            answer = await self._http.call("PUT", url, timeout_s, most_bytes=_LONGEST_REFUSAL_BYTES, headers=headers)
        except (PeerUnavailableError, InvalidRecordError) as error:
            return OwnerRefusal(str(error))
        return None if answer.status == HTTPStatus.NO_CONTENT else OwnerRefusal(answer.shown())
