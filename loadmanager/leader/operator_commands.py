"""Operator commands on namespaces and bundles. Commands that change something need the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import IllegalTransitionError, NamespaceState, OwnershipState, Registration
from loadmanager.core.domain.reasons import MergeReason, OwnershipReason, Reason
from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import ConcurrentModificationError, ConflictError, TransactionFailedError
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.agent_calls import AgentCalls
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.execution.reshape_driver import ReshapeDriver
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.persistence import Persistence
from loadmanager.wire.http_bodies import OpenTopic

log = structlog.get_logger(__name__)

_ATTEMPTS = 5


class BundleCommands:
    """Commands on bundles. `must_lead` raises unless this node leads and has read everything, `get_term` unless it was
    elected.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        ledger: OwnershipLedger,
        executor: Executor,
        assigner: AssignmentDriver,
        reshaper: ReshapeDriver,
        agents: AgentCalls,
        must_lead: Callable[[], None],
        get_term: Callable[[], Term],
    ) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._executor = executor
        self._assigner = assigner
        self._reshaper = reshaper
        self._agents = agents
        self.must_lead = must_lead
        self._get_term = get_term

    async def create_namespace(self, name: NamespaceName, bundles: NamespaceBundles) -> None:
        """Create a namespace with these bundles, none of them owned. Raises as `OwnershipLedger.create_namespace`."""
        self.must_lead()
        await self._ledger.create_namespace(NamespaceState.unowned(name, bundles))
        log.info("namespace_created", namespace=str(name), bundles=len(bundles))

    async def unload(self, name: BundleName, destination: Registration | None, reason: Reason) -> None:
        """Unload one bundle for an operator, or give it to the destination, whether it has an owner or not.

        Retried when a concurrent lookup or unload assigns it to another broker. Raises `BundleNotFoundError`,
        `NotLeaderError`, `IllegalTransitionError` when it keeps changing or the destination has left,
        `UnloadFailedError`, or a `StoreError`.
        """
        self.must_lead()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if await self._try_to_unload(name, destination, reason):
                    return
            except IllegalTransitionError:
                if attempt == _ATTEMPTS or not (destination is None or self._mirror.is_registered(destination)):
                    raise
        raise IllegalTransitionError(f"bundle {name} is {self._mirror.get_ownership(name)}: it was not given away")

    async def _try_to_unload(self, name: BundleName, destination: Registration | None, reason: Reason) -> bool:
        """Return True if the bundle is at its destination; raises `IllegalTransitionError` if it changed meanwhile."""
        ownership = self._mirror.get_ownership(name)
        if ownership.state is OwnershipState.RELEASING:
            ownership = await self._executor.outcome_of(name, ownership)
        elif ownership.state is OwnershipState.OWNED and (destination is None or ownership.owner != destination):
            ownership = await self._executor.unload(name, destination, reason)
        elif ownership.state is OwnershipState.FREE and destination is not None:
            ownership = await self._assigner.assign(name, destination, reason)
        return destination is None or ownership.owner == destination

    async def unload_namespace(self, name: NamespaceName) -> None:
        """Release every bundle of a namespace; raises as `unload`, after all of them were tried."""
        self.must_lead()
        entry = self._mirror.get_namespace(str(name))
        bundles = [BundleName(name, bundle_range) for bundle_range in entry.state.bundles.ranges()]
        outcomes = await asyncio.gather(
            *(self.unload(bundle, None, OwnershipReason.ADMIN_UNLOAD) for bundle in bundles),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def find(self, namespace: NamespaceName, which: str) -> BundleName | None:
        """Return a bundle by load, as `ReshapeDriver.find_bundle`. Raises `NotLeaderError` on other nodes."""
        self._get_term()
        return self._reshaper.find_bundle(namespace, which)

    async def get_topics(self, name: BundleName) -> list[OpenTopic] | None:
        """Return the topics of a bundle that its owner may have open; None when it is unowned. Raises as
        `AgentCalls`.
        """
        owner = self._mirror.find_owner(self._mirror.get_ownership(name))
        return None if owner is None else await self._agents.get_topics(owner.registration, name)

    async def split(
        self, name: BundleName, *, algorithm: str, positions: Sequence[int], unload: bool
    ) -> list[BundleName]:
        """Split a bundle for an operator.

        Raises as `ReshapeDriver.split`, and `ConflictError` if the parts shall be unloaded and no broker may own them.
        """
        self.must_lead()
        stranded = [each for each in self._mirror.unplaceable() if str(name.namespace) in each.namespaces]
        if unload and stranded:
            raise ConflictError(f"{stranded[0].sentence}; nothing was changed: split it without unloading")
        return await self._reshaper.split(name, algorithm=algorithm, positions=positions, unload=unload)

    async def merge(self, name: BundleName, with_: BundleRange | None) -> BundleName:
        """Merge two neighbours for an operator; raises as `ReshapeDriver.merge`."""
        self.must_lead()
        return await self._reshaper.merge(name, with_, MergeReason.ADMIN_MERGE)


_AGAIN_S = 0.1


class NamespaceDeletion:
    """Deletion of namespaces at an operator's command.

        close the namespace: no new owners ──▶ unload every bundle ──▶ delete its record and its operator config in one
        transaction, on condition that the record is unchanged and all its bundles are free

    So no broker serves a bundle of the namespace once the record is deleted, or later. Each former owner has received
    an unload, and remembers its version as a fence. A new namespace of the same name starts at the highest version of
    all deleted namespaces (`OwnershipLedger`), so its assignments pass these fences.

    Without force the deletion is refused while a topic is open. A topic that is opened between that check and the
    unload is closed.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        ledger: OwnershipLedger,
        operators: ConfigWriter,
        bundles: BundleCommands,
        persistence: Persistence,
    ) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._operators = operators
        self._bundles = bundles
        self._persistence = persistence

    async def delete(self, name: NamespaceName, *, force: bool) -> None:
        """Delete a namespace; with `force` also one with open topics, which are closed.

        Raises `NamespaceNotFoundError`; `ConflictError` while topics are open, or while another deletion runs;
        `OwnerSilentError` when an owner does not list its open topics; `UnloadFailedError` when an unload fails:
        bundles that were released by then stay free. `NotLeaderError` or a `StoreError`.
        """
        self._bundles.must_lead()
        self._mirror.get_namespace(str(name))
        with self._ledger.closed(str(name)):
            if not force:
                await self._refuse_if_open(name)
            await self._empty_and_delete(name)
        log.info("namespace_deleted", namespace=str(name), force=force)

    async def _refuse_if_open(self, name: NamespaceName) -> None:
        state = self._mirror.get_namespace(str(name)).state
        asked = [
            self._bundles.get_topics(BundleName(name, bundle_range))
            for bundle_range, each in zip(state.bundles.ranges(), state.ownerships, strict=True)
            if each.state is not OwnershipState.FREE
        ]
        topics = [topic.topic for found in await asyncio.gather(*asked) for topic in found or ()]
        if topics:
            raise ConflictError(
                f"namespace {name} is not empty: {len(topics)} topics are open, such as {min(topics)};"
                " force=true closes them"
            )

    async def _empty_and_delete(self, name: NamespaceName) -> None:
        for _ in range(_ATTEMPTS):
            try:
                await self._bundles.unload_namespace(name)
                async with self._persistence.resting():
                    along = await self._operators.forgetting(str(name))
                    await self._ledger.delete_namespace(str(name), along)
                    self._persistence.forget_averages(str(name))
            except (TransactionFailedError, IllegalTransitionError) as error:
                log.info("namespace_not_deleted_yet", namespace=str(name), error=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                return
        raise ConcurrentModificationError(f"namespace {name} is changed all the time: it is not deleted")
