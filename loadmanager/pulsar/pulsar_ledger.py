"""Ownership ledger of a Pulsar: follows the owners that Pulsar assigns, and assigns none itself.

    transition           action
    ----------           ------
    release              check the guardrails, record the move under the epoch, then set the bundle to Releasing
    complete, abandon    read the owner from Pulsar, after a lookup if the bundle is unowned; put that owner into the
                         mirror, whatever the transition's own result; record that the move has ended

A bundle in state Releasing is being moved by this process; nothing else changes it in the mirror. When a term ends,
`put_down` restores the last known owner of such bundles; the move log is for the next term.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.guardrails import PendingMove
from loadmanager.core.protocol.move_machine import StaleStepError
from loadmanager.core.protocol.state_machine import OwnerChange
from loadmanager.errors import BundleNotFoundError, InvalidRecordError, NamespaceNotFoundError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.guardrail_facts import GuardrailError, is_own
from loadmanager.pulsar.move_log import MoveLog
from loadmanager.pulsar.pulsar_owners import OwnerFinder, OwnerSource
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.util import clock


class PulsarLedger:
    """Ledger for the executor. `check` raises `GuardrailError` for a release that must not begin."""

    def __init__(
        self,
        mirror: ClusterMirror,
        intake: OwnerSource,
        owned: OwnerFinder,
        election: ElectionPort,
        check: Callable[[str, Ownership], None],
        move_log: MoveLog,
        decision_log: DecisionLog,
    ) -> None:
        self._mirror = mirror
        self._intake = intake
        self._owned = owned
        self._election = election
        self._check = check
        self._move_log = move_log
        self._decision_log = decision_log

    async def apply(self, namespace: str, bundle_range: BundleRange, transition: OwnerChange, reason: str) -> Ownership:
        """Apply a transition (see the table of the module) and return the new ownership in the mirror.

        Raises `GuardrailError`, `IllegalTransitionError`, `BundleNotFoundError`, `NamespaceNotFoundError`,
        `NotLeaderError`, or a `StoreError`.
        """
        name = BundleName(NamespaceName.parse_any(namespace), bundle_range)
        stamp = Stamp(self._election.get_term().epoch, clock.now_ms(), reason)
        try:
            current = self._mirror.get_ownership(name)
            following = transition(current, stamp)
            if following.state is OwnershipState.RELEASING:
                return await self._begin(name, current, following)
            return await self._end(name, following)
        except (BundleNotFoundError, NamespaceNotFoundError):
            await self._forget(name)
            raise

    async def settled(self) -> None:
        """Return at once: only this ledger changes a bundle that is being moved."""

    def put_down(self) -> None:
        """At the end of a term, restore the last known owner of each bundle that is being moved."""
        for bundle in self._move_log.history.in_progress:
            name = BundleName.parse(bundle)
            found = self._mirror.find_ownership(bundle)
            if found is not None and found.state is OwnershipState.RELEASING:
                self._store_ownership(
                    name, _with_owner(found._replace(version=found.version + 1), self._intake.owners.get(bundle))
                )

    async def _begin(self, name: BundleName, current: Ownership, released: Ownership) -> Ownership:
        self._must_pass(name, released)
        await self._move_log.begin(str(name), _move_of(released))
        found = self._mirror.find_ownership(str(name))
        if found != current:
            await self._move_log.withdraw(str(name))
            raise StaleStepError(f"it is {found} by now, and not {current}")
        self._store_ownership(name, released)
        return released

    def _must_pass(self, name: BundleName, released: Ownership) -> None:
        if str(name) in self._move_log.history.in_progress:
            raise IllegalTransitionError(f"a move of {name} is about to begin already")
        try:
            self._check(str(name), released)
        except GuardrailError as error:
            self._decision_log.stopped(str(name), error.stops, epoch=released.epoch)
            raise

    async def _end(self, name: BundleName, following: Ownership) -> Ownership:
        move = self._move_log.history.in_progress.get(str(name))
        owner = await self._owned.find(name, None if move is None else move.destination)
        if owner is None:  # it may have been split, or deleted with its namespace
            with contextlib.suppress(PulsarRefusedError, PulsarUnreachableError, InvalidRecordError):
                await self._intake.read_bundles(str(name.namespace))
        ended = _with_owner(following, owner)
        self._store_ownership(name, ended)
        broker = None if ended.owner is None else ended.owner.broker
        is_cancelled = following.reason == OwnershipReason.UNLOAD_CANCELLED
        was_released = move is not None and (following.owner is None or following.owner.broker != move.source)
        await self._move_log.end(str(name), broker, is_cancelled=is_cancelled, was_released=was_released)
        return ended

    async def _forget(self, name: BundleName) -> None:
        """End the move of a bundle that was split or merged meanwhile, without counting a failure."""
        if str(name) in self._move_log.history.in_progress:
            await self._move_log.end(str(name), None, is_cancelled=True)

    def _store_ownership(self, name: BundleName, ownership: Ownership) -> None:
        entry, index = self._mirror.bundle(name)
        self._mirror.put_namespace(replace(entry, state=entry.state.with_ownerships({index: ownership})))


def _move_of(released: Ownership) -> PendingMove:
    assert released.owner is not None, "what nobody owns cannot be released"
    destination = None if released.destination is None else released.destination.broker
    return PendingMove(released.owner.broker, destination, released.since_ms / 1000, is_own=is_own(released.reason))


def _with_owner(ownership: Ownership, owner: Registration | None) -> Ownership:
    """Return the ownership with the owner that Pulsar names."""
    state = OwnershipState.FREE if owner is None else OwnershipState.OWNED
    return ownership._replace(state=state, owner=owner, destination=None)
