"""Reconciler: periodically compares all records with the cluster, and completes unfinished changes.

    phase     event                       if                                then
    -----     -----                       --                                ----
    RESTING   TIME                        the next scan is due              ScanRecords                      ─▶ SCANNING
    SCANNING  RecordsScanned              bundles are to be freed           Write that they are free         ─▶ FREEING
                                          there are none                                                     ─▶ RESTING
    FREEING   WriteEnded                                                    Freed, or NotFreed
                                          it was the last one                                                ─▶ RESTING

A scan is due when a term begins and when brokers join or leave (MEMBERSHIP), also during a scan, but not sooner than
`least_pause_s` after the last one, so that brokers that restart together share a scan. Otherwise it is due when a hold
ends, when bundles are to be freed, and after 30 s at the latest. A scan completes:

    a bundle is                           if                                then
    -----------                           --                                ----
    Releasing                                                               ResumeRelease, unless a move does
    Owned by a broker that has left       it is held, the broker is back    AssignBundles: the broker gets it
                                          it is held, the broker is away    (wait for the end of the hold)
                                          found FREED_AFTER_S ago, and no
                                          assignment is pending, or found
                                          25 s earlier                      Write that it is free
                                          else                              (wait for a lookup)

An ended registration never comes back, so nobody serves the bundles of a lost owner, and a lookup assigns each in one
write. When all brokers restart, each bundle is written only once. Bundles without lookups are freed later, one write
per namespace, so that no record names a lost owner for long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    Registration,
    Stamp,
    owner_gone,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.state_machine import (
    Mirror,
    OwnerChange,
    Signal,
    Write,
    WriteEnded,
    find_gone_owner,
    group_writes,
)

FREED_AFTER_S = 5.0
"""Delay before bundles of a lost owner are freed. Clients that reconnect at once look their bundles up earlier."""

_LONGEST_PAUSE_S = 30.0
_SOON_S = 0.05
_WHILE_ASSIGNING_S = 0.5
"""Pause between scans while assignments are pending, so that scans do not delay them."""
_AT_MOST_LATER_S = 25.0
"""Limit of that delay, since clients that keep retrying failed lookups keep assignments pending."""

# Events


@dataclass(frozen=True, slots=True)
class RecordsScanned:
    """Result of a scan: released bundles, and unregistered owners of other bundles."""

    releasing: Sequence[str]
    gone: Sequence[Registration]


Event = RecordsScanned | WriteEnded | Signal

# Actions


@dataclass(frozen=True, slots=True)
class ScanRecords:
    """Scan all records; answered by RecordsScanned."""


@dataclass(frozen=True, slots=True)
class ResumeRelease:
    """Complete the release of this bundle, unless a move already does."""

    bundle: str


@dataclass(frozen=True, slots=True)
class AssignBundles:
    """Assign owners to these bundles; no lookup waits for them."""

    bundles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Freed:
    """A bundle of a lost owner was stored as free."""

    bundle: str
    owner: Registration
    stored: Ownership


@dataclass(frozen=True, slots=True)
class NotFreed:
    """A bundle of a lost owner was not freed, or the outcome is unknown."""

    bundle: str
    error: Exception


Action = ScanRecords | ResumeRelease | AssignBundles | Write | Freed | NotFreed


@dataclass(slots=True)
class ReconcilerMachine:
    """State machine of the reconciler. Callables return current values: `bundles_of` the unreleased bundles of these
    owners; `is_assigning` if assignments are pending.
    """

    mirror: Mirror
    bundles_of: Callable[[Iterable[Registration]], Sequence[str]]
    is_assigning: Callable[[float], bool] = lambda _: False
    least_pause_s: float = 0.05
    _due_s: float = -math.inf
    _soonest_s: float = -math.inf
    _is_scanning: bool = False
    _free_s: dict[Registration, float] = field(default_factory=dict)
    """Time from which the bundles of each lost owner are freed."""
    _writes: set[Write] = field(default_factory=set)
    _former: dict[str, Registration] = field(default_factory=dict)
    """Lost owner of each bundle in a pending write."""
    _actions: list[Action] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """Return the time of the next scan; None during a scan and its writes."""
        return None if self._is_scanning or self._writes else max(self._due_s, self._soonest_s)

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process an event and return the actions that follow. Stale events are ignored."""
        match event:
            case RecordsScanned() if self._is_scanning:
                self._is_scanning = False
                self._actions += map(ResumeRelease, event.releasing)
                self._finish(event, now_s)
                self._rest(now_s)
            case WriteEnded() if event.write in self._writes:
                self._on_written(event)
                self._rest(now_s)
            case Signal.MEMBERSHIP:
                self._due_s = min(self._due_s, now_s)
            case Signal.TIME if self.wake_s is not None and self.wake_s <= now_s:
                self._is_scanning, self._due_s = True, math.inf
                self._actions.append(ScanRecords())
        actions, self._actions = self._actions, []
        return actions

    def forget(self) -> None:
        """Drop all state at the end of the term."""
        self._is_scanning, self._due_s, self._soonest_s = False, -math.inf, -math.inf
        self._free_s.clear()
        self._writes.clear()
        self._former = {}

    def _finish(self, scan: RecordsScanned, now_s: float) -> None:
        """Give held bundles to their broker that is back, and free those of other lost owners."""
        there, holds = self.mirror.registrations, self.mirror.holds()
        back = [owner for owner in scan.gone if owner.broker in holds and owner.broker in there]
        bundles = self.bundles_of(back) if back else ()
        if bundles:
            self._actions.append(AssignBundles(bundles))
        left = [owner for owner in scan.gone if owner.broker not in holds]
        self._free_s = {owner: self._free_s.get(owner, now_s + FREED_AFTER_S) for owner in left}
        later_s = _AT_MOST_LATER_S if self.is_assigning(now_s) else 0.0
        self._free({owner for owner, free_s in self._free_s.items() if free_s + later_s <= now_s})

    def _free(self, owners: set[Registration]) -> None:
        """Free the bundles of these owners. A failed write is retried after the same delay."""
        for owner in owners:
            del self._free_s[owner]
        self._former = {}
        bundles = self.bundles_of(owners) if owners else ()
        transitions = {bundle: self._freeing(bundle, owners, self._former) for bundle in bundles}
        writes = group_writes(transitions, OwnershipReason.OWNER_GONE.value)
        self._writes.update(writes)
        self._actions += writes

    def _freeing(self, bundle: str, owners: set[Registration], former: dict[str, Registration]) -> OwnerChange:
        def free(current: Ownership, stamp: Stamp) -> Ownership:
            owner = find_gone_owner(self.mirror, current)
            if owner is None or owner not in owners:
                raise IllegalTransitionError(f"{bundle} has moved on: {current}")
            former[bundle] = owner
            return owner_gone(current, stamp)

        return free

    def _on_written(self, ended: WriteEnded) -> None:
        self._writes.discard(ended.write)
        for bundle, outcome in ended.made.items():
            if isinstance(outcome, Ownership):
                self._actions.append(Freed(bundle, self._former[bundle], outcome))
            else:
                self._actions.append(NotFreed(bundle, outcome))

    def _rest(self, now_s: float) -> None:
        """Schedule the next scan, unless writes are pending."""
        if not self._writes:
            ends_s = [now_s + left_s + _SOON_S for left_s in self.mirror.holds().values()]
            free_s = [max(free_s, now_s + _WHILE_ASSIGNING_S) for free_s in self._free_s.values()]
            self._due_s = min([self._due_s, now_s + _LONGEST_PAUSE_S, *ends_s, *free_s])
            self._soonest_s = now_s + self.least_pause_s
