"""Record of moves and splits on a real Pulsar cluster, so that the next leader can continue.

    what happens        in progress   began          touched                 failures
    ------------        -----------   -----          -------                 --------
    begun               + the move    + now, if own
    not begun           - the move    (stays)
    ended: landed       - the move                   source, destination     0, unless they were too many
    ended: missed       - the move                   source, where it is     (stay)
    ended: did not      - the move                   source, where it is     + 1
    ended: cancelled    - the move                   source, where it is     (stay)
    split: made                                      its owner               0, unless they were too many
    split: failed                                                            + 1
    resume                                                                   0

A move has landed if its destination owns the bundle; without a destination, if any broker does. It has missed if Pulsar
placed the bundle on another broker, or back on its source. That harms no client, and the next round decides again. Once
failures reach their limit, only an operator resets them, not a move that lands late. Times are seconds since 1970;
expired entries are dropped. Splits are never in progress: each is a single request to Pulsar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadmanager.core.domain.names import BrokerId

_HOUR_S = 3_600.0
_TOUCHED_KEPT_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class PendingMove:
    """A move in progress. `destination` None: Pulsar places the bundle. `is_own`: requested by shedding."""

    source: BrokerId
    destination: BrokerId | None
    began_s: float
    is_own: bool

    def has_missed(self, owner: BrokerId | None) -> bool:
        """Return true if this owner is neither the source nor the destination."""
        return owner not in (None, self.source, self.destination) and self.destination is not None

    def has_landed(self, owner: BrokerId | None) -> bool:
        """Return True if the bundle's current owner is an expected destination."""
        return owner is not None and self.destination in (None, owner)


@dataclass(frozen=True, slots=True)
class MoveHistory:
    """Moves and splits so far. `in_progress` is by bundle; `began_s` are own moves of the last hour; `touched_s` is the
    time of the last move or split at each broker; `failures` counts failures since the last success.
    """

    in_progress: Mapping[str, PendingMove] = field(default_factory=dict)
    began_s: tuple[float, ...] = ()
    touched_s: Mapping[BrokerId, float] = field(default_factory=dict)
    failures: int = 0

    def at(self, now_s: float) -> MoveHistory:
        """Drop expired entries, and clamp future times of other clocks to now."""
        return replace(
            self,
            began_s=tuple(min(at_s, now_s) for at_s in self.began_s if at_s > now_s - _HOUR_S),
            touched_s={
                broker: min(at_s, now_s) for broker, at_s in self.touched_s.items() if at_s > now_s - _TOUCHED_KEPT_S
            },
        )

    def begun(self, bundle: str, move: PendingMove) -> MoveHistory:
        began_s = (*self.began_s, move.began_s) if move.is_own else self.began_s
        return replace(self, in_progress={**self.in_progress, bundle: move}, began_s=began_s).at(move.began_s)

    def not_begun(self, bundle: str) -> MoveHistory:
        """Remove a move that was announced but never requested."""
        return replace(self, in_progress={each: move for each, move in self.in_progress.items() if each != bundle})

    def ended(
        self, bundle: str, owner: BrokerId | None, now_s: float, *, is_excused: bool, failures_until_stop: int
    ) -> MoveHistory:
        """Record the end of a move; the bundle belongs to `owner` now. `is_excused`: cancelled, or a miss."""
        move = self.in_progress[bundle]
        if move.has_landed(owner):
            failures = self._after_success(failures_until_stop)
        else:
            failures = self.failures + (not is_excused)
        touched = {move.source: now_s} | ({} if owner is None else {owner: now_s})
        after = replace(self.not_begun(bundle), touched_s={**self.touched_s, **touched}, failures=failures)
        return after.at(now_s)

    def split(self, owner: BrokerId, now_s: float, *, failures_until_stop: int) -> MoveHistory:
        """Record the split of a bundle of this owner: its last report is stale now."""
        touched = {**self.touched_s, owner: now_s}
        return replace(self, touched_s=touched, failures=self._after_success(failures_until_stop)).at(now_s)

    def not_split(self) -> MoveHistory:
        """Record a failed split."""
        return replace(self, failures=self.failures + 1)

    def with_failures_reset(self) -> MoveHistory:
        """Reset the failure count at an operator's request."""
        return replace(self, failures=0)

    def _after_success(self, failures_until_stop: int) -> int:
        return 0 if self.failures < failures_until_stop else self.failures
