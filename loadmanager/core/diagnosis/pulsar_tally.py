"""Statistics of a period beside a real Pulsar: imbalance of its brokers, and moves by origin.

a level     is valid until the next one
an entry    counts at its time; a bundle that came back counts as a move too: its clients were disconnected
a repeat    is a move of a bundle that had moved before, or that returned, within the times of
            `core.planning.repeated_moves`, whoever moved it
a stall     counts for its duration
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loadmanager.core.diagnosis.pulsar_comparison import PULSARS_MOVES, STALLS, WE_ALONE, ComparisonEntry
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import ComparisonReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.repeated_moves import MoveTrail, is_again, is_back

_AGREED = (ComparisonReason.MOVED_AS_WE_WOULD, ComparisonReason.MOVED_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class UsageLevel:
    """Highest usage of any broker, by its most used resource, and the mean usage; fractions."""

    brokers: int
    busiest: BrokerId
    highest: float
    mean: float

    @property
    def max_over_mean(self) -> float:
        """Return the imbalance; 1 is perfect, and that of an idle fleet."""
        return self.highest / self.mean if self.mean > 0 else 1.0


def level_of(snapshot: Snapshot, weights: ResourceWeights) -> UsageLevel | None:
    """Return the usage level of the reporting brokers, None if there are none."""
    if not len(snapshot.brokers):
        return None
    usage = usage_per_broker(snapshot, weights)
    row = int(usage.argmax())
    return UsageLevel(len(usage), snapshot.brokers.ids[row], float(usage[row]), float(usage.mean()))


@dataclass(slots=True)
class PeriodTotals:
    """Totals over `from_ms` <= time < `to_ms`; loads in bytes/s.

    `max_over_mean` is the mean imbalance over `known_ms`, the time for which it is known. `agreed` counts those of
    Pulsar's `moves` whose bundle we also wanted to move; `alone` counts moves that we wanted and Pulsar did not make.
    `again_load` and `back_load` include Pulsar's moves and ours.
    """

    from_ms: int
    to_ms: int
    known_ms: int = 0
    max_over_mean: float = 1.0
    worst_usage: float = 0.0
    moves: int = 0
    moved_load: float = 0.0
    agreed: int = 0
    alone: int = 0
    alone_load: float = 0.0
    our_moves: int = 0
    our_moved_load: float = 0.0
    again_load: float = 0.0
    back_load: float = 0.0
    stalled_ms: int = 0


class Tally:
    """Counters from `from_ms` on. Times must not decrease."""

    def __init__(
        self, from_ms: int, level: UsageLevel | None = None, trail: MoveTrail | None = None, *, is_stalled: bool = False
    ) -> None:
        self._totals = PeriodTotals(from_ms, from_ms, worst_usage=0.0 if level is None else level.highest)
        self._level = level
        self._is_stalled = is_stalled
        self._area = 0.0
        self._trail = trail or MoveTrail()

    @property
    def from_ms(self) -> int:
        return self._totals.from_ms

    def follow(self, at_ms: int) -> Tally:
        """Return a new tally that continues from here, in place of this one."""
        return Tally(at_ms, self._level, self._trail, is_stalled=self._is_stalled)

    def see(self, at_ms: int, level: UsageLevel | None) -> None:
        """Set the usage level from now on."""
        self._pass(at_ms)
        self._level = level
        if level is not None:
            self._totals.worst_usage = max(self._totals.worst_usage, level.highest)

    def count(self, entries: Iterable[ComparisonEntry]) -> None:
        """Count findings."""
        for entry in entries:
            self._count(entry)

    def measure(self, at_ms: int) -> PeriodTotals:
        """Return the totals up to then."""
        self._pass(at_ms)
        known_ms = self._totals.known_ms
        return replace(self._totals, to_ms=at_ms, max_over_mean=self._area / known_ms if known_ms else 1.0)

    def _pass(self, at_ms: int) -> None:
        totals = self._totals
        passed_ms = max(0, at_ms - totals.to_ms)
        totals.to_ms += passed_ms
        totals.stalled_ms += passed_ms * self._is_stalled
        if self._level is not None:
            totals.known_ms += passed_ms
            self._area += passed_ms * self._level.max_over_mean

    def _count(self, entry: ComparisonEntry) -> None:
        totals, reason = self._totals, entry.reason
        if reason in PULSARS_MOVES:
            totals.moves += 1
            totals.moved_load += entry.load
            self._remember(entry)
            totals.agreed += reason in _AGREED
        elif reason is ComparisonReason.MOVED_BY_US:
            totals.our_moves += 1
            totals.our_moved_load += entry.load
            self._remember(entry)
        elif reason in STALLS or reason is ComparisonReason.STALL_OVER:
            self._pass(entry.at_ms)
            self._is_stalled = reason in STALLS
        elif reason in WE_ALONE:
            totals.alone += 1
            totals.alone_load += entry.load

    def _remember(self, entry: ComparisonEntry) -> None:
        """Count the move as repeated if it is; incarnations are unknown, as entries have none."""
        names = (entry.verdict.why.get(end) for end in ("source", "destination"))
        source, destination = (None if name is None else Registration(BrokerId(str(name)), 0) for name in names)
        if source is not None:
            move = self._trail.add(entry.at_ms / 1000, entry.verdict.subject, source, destination)
            self._totals.again_load += is_again(move) * entry.load
            self._totals.back_load += is_back(move) * entry.load
