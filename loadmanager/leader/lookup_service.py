"""Owner lookups: from memory on any node, with an assignment on the leader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from loadmanager.core.domain.names import BundleName, TopicName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
)
from loadmanager.errors import (
    BundleNotFoundError,
    LoadManagerError,
    NoBrokerAvailableError,
    NotLeaderError,
    UnloadFailedError,
)
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import BrokerEntry, ClusterMirror

_LOOK_AGAIN_S = 0.01


class OwnerLookups:
    """Looks up the owners of topics. `leads` returns True once this node leads and has read everything that former
    leaders wrote.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        assigner: AssignmentDriver,
        executor: Executor,
        leads: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._mirror = mirror
        self._assigner = assigner
        self._executor = executor
        self._leads = leads
        self._timeout_s = timeout_s

    def find_owner(self, topic: TopicName) -> BrokerEntry | None:
        """Return the current owner of a topic's bundle from memory; None when it has none."""
        entry, index = self._mirror.bundle_of_topic(topic)
        return self._mirror.find_owner(entry.state.ownerships[index])

    async def assign_many(self, topics: Iterable[TopicName]) -> float:
        """Assign owners to those of the topics that have none, in one batch.

        Return the deadline to pass to `lookup`, which returns or raises the outcome of each. The clock is monotonic.
        """
        deadline_s = time.monotonic() + self._timeout_s
        asked = topics if self._leads() else ()
        waiting = [each for topic in asked if (each := self._ask(topic)) is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                for each in waiting:
                    with contextlib.suppress(LoadManagerError, IllegalTransitionError):
                        await each
        return deadline_s

    def _ask(self, topic: TopicName) -> asyncio.Future[Ownership] | None:
        """Request an owner for the topic's bundle; None if it has one, is being unloaded, or the request fails."""
        try:
            entry, index = self._mirror.bundle_of_topic(topic)
            ownership = entry.state.ownerships[index]
            if ownership.state is OwnershipState.RELEASING or self._mirror.is_registered(ownership.owner):
                return None
            return self._request(topic, entry.state.bundle_name(index))
        except LoadManagerError:
            return None

    async def lookup(self, topic: TopicName, deadline_s: float | None = None) -> BrokerEntry:
        """Return the owner of a topic's bundle, and assign one now if it has none. The leader's part of a lookup.

        Raises `NamespaceNotFoundError`, `NotLeaderError`, `NoBrokerAvailableError`, or a `StoreError`.
        """
        if deadline_s is None:
            deadline_s = time.monotonic() + self._timeout_s
        while True:
            entry, index = self._mirror.bundle_of_topic(topic)
            owner = self._mirror.find_owner(entry.state.ownerships[index])
            if owner is not None:
                return owner
            if not self._leads():
                raise NotLeaderError("this node does not lead")
            await self._settle(topic, entry.state, index, deadline_s)

    async def _settle(self, topic: TopicName, state: NamespaceState, index: int, deadline_s: float) -> None:
        bundle, ownership = state.bundle_name(index), state.ownerships[index]
        if ownership.state is OwnershipState.RELEASING:
            waiting: Awaitable[Ownership] = self._executor.outcome_of(BundleName.parse(bundle), ownership)
        elif self._mirror.is_registered(ownership.owner):
            raise NoBrokerAvailableError(f"bundle {bundle}: the record of its owner {ownership.owner} cannot be read")
        else:
            waiting = self._request(topic, bundle)
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                await waiting
        except (UnloadFailedError, IllegalTransitionError, BundleNotFoundError):
            await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise NoBrokerAvailableError(f"bundle {bundle} has no owner yet: it is {ownership.state}") from None

    def _request(self, topic: TopicName, bundle: str) -> asyncio.Future[Ownership]:
        return self._assigner.request(bundle, non_persistent=topic.domain == "non-persistent")
