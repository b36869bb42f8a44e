"""Deletion of namespaces at an operator's command.

    close the namespace: no new owners ──▶ unload every bundle ──▶ delete its record and its operator config in one
    transaction, on condition that the record is unchanged and all of it is free

So no broker serves any of it when the record goes, or later: each former owner was told, at a version that it does not
forget, that the bundle was taken away. A namespace that is created anew under the same name begins at the highest
version of all deleted namespaces (`OwnershipLedger`), so its assignments are newer than what former owners were told.

Without force the deletion is refused while a topic is open. A topic that is opened between that check and the unload is
closed.
"""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.core.domain.names import BundleName, NamespaceName
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState
from loadmanager.errors import ConcurrentModificationError, ConflictError, TransactionFailedError
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.operator_commands import BundleCommands
from loadmanager.leader.persistence import Persistence

log = structlog.get_logger(__name__)

_ATTEMPTS = 5
_AGAIN_S = 0.1


class NamespaceDeletion:
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
        `OwnerSilentError` when an owner does not name its open topics; `UnloadFailedError` when one did not let go:
        what was released by then stays free. `NotLeaderError` or a `StoreError`.
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
