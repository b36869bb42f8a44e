"""Statistics of a period beside a real Pulsar: imbalance of its brokers, and moves by origin.

a level     is valid until the next one
an entry    counts at its time; a bundle that came back counts as a move too: its clients were disconnected
a repeat    is a move of a bundle that had moved before, or that returned, within the times of
            `core.planning.repeated_moves`, whoever moved it
a stall     counts for its duration
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """Totals over `from_ms` <= time < `to_ms`; loads in bytes/s.

    `max_over_mean` is the mean imbalance over `known_ms`, the time for which it is known. `agreed` counts those of
    Pulsar's `moves` whose bundle we also wanted to move; `alone` counts moves that we wanted and Pulsar did not make.
    `again_load` and `back_load` include Pulsar's moves and ours.
    """

    from_ms: int
    to_ms: int
    known_ms: int
    max_over_mean: float
    worst_usage: float
    moves: int
    moved_load: float
    agreed: int
    alone: int
    alone_load: float
    our_moves: int
    our_moved_load: float
    again_load: float
    back_load: float
    stalled_ms: int


class Tally:
    """Counters from `from_ms` on. Times must not decrease."""

    def __init__(
        self, from_ms: int, level: UsageLevel | None = None, trail: MoveTrail | None = None, *, is_stalled: bool = False
    ) -> None:
        self.from_ms = from_ms
        self._at_ms = from_ms
        self._level = level
        self._is_stalled = is_stalled
        self._known_ms = self._stalled_ms = 0
        self._area = 0.0
        self._worst = 0.0 if level is None else level.highest
        self._moves = self._agreed = self._alone = self._ours = 0
        self._moved = self._alone_load = self._our_load = self._again = self._back = 0.0
        self._trail = trail or MoveTrail()

    def follow(self, at_ms: int) -> Tally:
        """Return a new tally that continues from here."""
        return Tally(at_ms, self._level, self._trail.follow(), is_stalled=self._is_stalled)

    def see(self, at_ms: int, level: UsageLevel | None) -> None:
        """Set the usage level from now on."""
        self._pass(at_ms)
        self._level = level
        if level is not None:
            self._worst = max(self._worst, level.highest)

    def count(self, entries: Iterable[ComparisonEntry]) -> None:
        """Count findings."""
        for entry in entries:
            self._count(entry)

    def measure(self, at_ms: int) -> PeriodTotals:
        """Return the totals up to then."""
        self._pass(at_ms)
        return PeriodTotals(
            from_ms=self.from_ms,
            to_ms=at_ms,
            known_ms=self._known_ms,
            max_over_mean=self._area / self._known_ms if self._known_ms else 1.0,
            worst_usage=self._worst,
            moves=self._moves,
            moved_load=self._moved,
            agreed=self._agreed,
            alone=self._alone,
            alone_load=self._alone_load,
            our_moves=self._ours,
            our_moved_load=self._our_load,
            again_load=self._again,
            back_load=self._back,
            stalled_ms=self._stalled_ms,
        )

    def _pass(self, at_ms: int) -> None:
        passed_ms = max(0, at_ms - self._at_ms)
        self._at_ms += passed_ms
        self._stalled_ms += passed_ms * self._is_stalled
        if self._level is not None:
            self._known_ms += passed_ms
            self._area += passed_ms * self._level.max_over_mean

    def _count(self, entry: ComparisonEntry) -> None:
        reason = entry.reason
        if reason in PULSARS_MOVES:
            self._moves += 1
            self._moved += entry.load
            self._remember(entry)
            self._agreed += reason in _AGREED
        elif reason is ComparisonReason.MOVED_BY_US:
            self._ours += 1
            self._our_load += entry.load
            self._remember(entry)
        elif reason in STALLS or reason is ComparisonReason.STALL_OVER:
            self._pass(entry.at_ms)
            self._is_stalled = reason in STALLS
        elif reason in WE_ALONE:
            self._alone += 1
            self._alone_load += entry.load

    def _remember(self, entry: ComparisonEntry) -> None:
        """Count the move as repeated if it is; incarnations are unknown, as entries have none."""
        names = (entry.verdict.why.get(end) for end in ("source", "destination"))
        source, destination = (None if name is None else Registration(BrokerId(str(name)), 0) for name in names)
        if source is not None:
            move = self._trail.add(entry.at_ms / 1000, entry.verdict.subject, source, destination)
            self._again += is_again(move) * entry.load
            self._back += is_back(move) * entry.load
