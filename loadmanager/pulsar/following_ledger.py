"""Follows, instead of writing, who owns what: owners beside a Pulsar are Pulsar's to make.

    transition       what is done
    ----------       ------------
    release          rails are asked; the move is recorded under the epoch; then the mirror says Releasing
    complete,        Pulsar's metadata are read; what nobody owns is looked up; the mirror then says what is true,
    abandon          whatever the transition would have made, and the move is written down as ended

A bundle that the mirror says to be Releasing is under way by a move of ours; nothing else changes it there. When a
term ends, `put_down` has the mirror say what is known of such bundles; the record is for the next term.
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
from loadmanager.core.protocol.move_machine import StaleStepError
from loadmanager.core.protocol.pulsar_moves import PendingMove
from loadmanager.core.protocol.state_machine import Transition
from loadmanager.errors import BundleNotFoundError, InvalidRecordError, NamespaceNotFoundError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.guardrail_facts import RailError, is_own
from loadmanager.pulsar.move_verification import PulsarOwnership, SeesOwners
from loadmanager.pulsar.pending_moves import ActsMemory
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError
from loadmanager.util import clock


class FollowingLedger:
    """The `Writes` of an executor beside a Pulsar. `check` raises `RailError` for a release that may not begin."""

    def __init__(
        self,
        mirror: ClusterMirror,
        picture: SeesOwners,
        owned: PulsarOwnership,
        election: ElectionPort,
        check: Callable[[str, Ownership], None],
        memory: ActsMemory,
        decision_log: DecisionLog,
    ) -> None:
        self._mirror = mirror
        self._picture = picture
        self._owned = owned
        self._election = election
        self._check = check
        self._memory = memory
        self._decision_log = decision_log

    async def apply(self, namespace: str, bundle_range: BundleRange, transition: Transition, reason: str) -> Ownership:
        """See the top; the ownership as the mirror has it then.

        Raises `RailError`, `IllegalTransitionError`, `BundleNotFoundError`, `NamespaceNotFoundError`, `NotLeaderError`,
        or a `StoreError`.
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
        """Nothing else than this changes what the mirror says of a move."""

    def put_down(self) -> None:
        """The term is over."""
        for bundle in self._memory.acts.under_way:
            name = BundleName.parse(bundle)
            found = self._mirror.find_ownership(bundle)
            if found is not None and found.state is OwnershipState.RELEASING:
                self._put(name, _as_it_is(replace(found, version=found.version + 1), self._picture.owners.get(bundle)))

    async def _begin(self, name: BundleName, current: Ownership, released: Ownership) -> Ownership:
        self._must_pass(name, released)
        await self._memory.begin(str(name), _move_of(released))
        found = self._mirror.find_ownership(str(name))
        if found != current:
            await self._memory.withdraw(str(name))
            raise StaleStepError(f"it is {found} by now, and not {current}")
        self._put(name, released)
        return released

    def _must_pass(self, name: BundleName, released: Ownership) -> None:
        if str(name) in self._memory.acts.under_way:
            raise IllegalTransitionError(f"a move of {name} is about to begin already")
        try:
            self._check(str(name), released)
        except RailError as error:
            self._decision_log.stopped(str(name), error.stops, epoch=released.epoch)
            raise

    async def _end(self, name: BundleName, following: Ownership) -> Ownership:
        move = self._memory.acts.under_way.get(str(name))
        owner = await self._owned.find(name, None if move is None else move.destination)
        if owner is None:  # it may have been split, or deleted with its namespace
            with contextlib.suppress(PulsarRefusedError, PulsarUnreachableError, InvalidRecordError):
                await self._picture.read_bundles(str(name.namespace))
        ended = _as_it_is(following, owner)
        self._put(name, ended)
        broker = None if ended.owner is None else ended.owner.broker
        is_cancelled = following.reason == OwnershipReason.UNLOAD_CANCELLED
        await self._memory.end(str(name), broker, is_cancelled=is_cancelled)
        return ended

    async def _forget(self, name: BundleName) -> None:
        """A bundle that was split or merged while it was under way is no more, and that is nobody's failure."""
        if str(name) in self._memory.acts.under_way:
            await self._memory.end(str(name), None, is_cancelled=True)

    def _put(self, name: BundleName, ownership: Ownership) -> None:
        entry, index = self._mirror.bundle(name)
        self._mirror.put_namespace(replace(entry, state=entry.state.with_ownerships({index: ownership})))


def _move_of(released: Ownership) -> PendingMove:
    assert released.owner is not None, "what nobody owns cannot be released"
    destination = None if released.destination is None else released.destination.broker
    return PendingMove(released.owner.broker, destination, released.since_ms / 1000, is_own=is_own(released.reason))


def _as_it_is(ownership: Ownership, owner: Registration | None) -> Ownership:
    """The same, with who owns it in truth."""
    state = OwnershipState.FREE if owner is None else OwnershipState.OWNED
    return replace(ownership, state=state, owner=owner, destination=None)
