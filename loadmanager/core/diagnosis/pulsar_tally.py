"""What there is to count of a stretch of time beside a Pulsar: how level its brokers were, and who moved what.

a level     holds until the next one is known
an entry    counts where it was said; one that moved nothing, as a bundle that came back, counts as a move all the
            same: its clients were cut off
a repeat    is a move whose bundle had moved before, or came back to where it had been, within the times of
            `core.planning.repeated_moves`; whoever had it moved
a stall     counts for as long as it lasts
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
    """How much the busiest broker used of its most used resource, and all of them on average; fractions."""

    brokers: int
    busiest: BrokerId
    highest: float
    mean: float

    @property
    def max_over_mean(self) -> float:
        """1 is perfect, and what an idle fleet has."""
        return self.highest / self.mean if self.mean > 0 else 1.0


def level_of(snapshot: Snapshot, weights: ResourceWeights) -> UsageLevel | None:
    """How level the brokers are that have reported, None where none has."""
    if not len(snapshot.brokers):
        return None
    usage = usage_per_broker(snapshot, weights)
    row = int(usage.argmax())
    return UsageLevel(len(usage), snapshot.brokers.ids[row], float(usage[row]), float(usage.mean()))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was counted of `from_ms` <= time < `to_ms`. `max_over_mean` is a mean over the time for which it is known,
    of which there are `known_ms`. `agreed` of Pulsar's `moves` are of bundles that we wanted moved, too; `alone` are
    moves that we wanted and Pulsar did not make; `again_load` and `back_load` are of all moves, Pulsar's and ours.
    Loads are in bytes/s.
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
    """Counts from `from_ms` on. Times do not descend."""

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
        """The tally of the time from then on, which begins as this one ends."""
        return Tally(at_ms, self._level, self._trail.follow(), is_stalled=self._is_stalled)

    def see(self, at_ms: int, level: UsageLevel | None) -> None:
        """How level the brokers are from now on."""
        self._pass(at_ms)
        self._level = level
        if level is not None:
            self._worst = max(self._worst, level.highest)

    def count(self, entries: Iterable[ComparisonEntry]) -> None:
        """What was said."""
        for entry in entries:
            self._count(entry)

    def measure(self, at_ms: int) -> Measured:
        """All that was counted until then."""
        self._pass(at_ms)
        return Measured(
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
        """Whether the move repeats another one; of brokers only the names are said."""
        names = (entry.verdict.why.get(end) for end in ("source", "destination"))
        source, destination = (None if name is None else Registration(BrokerId(str(name)), 0) for name in names)
        if source is not None:
            move = self._trail.add(entry.at_ms / 1000, entry.verdict.subject, source, destination)
            self._again += is_again(move) * entry.load
            self._back += is_back(move) * entry.load
