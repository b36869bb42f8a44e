"""What a balancer beside a Pulsar remembers of the moves and splits that it makes, so that a successor can go on.

    what happens        under way     began          touched                 failures
    ------------        ---------     -----          -------                 --------
    begun               + the move    + now, if own
    not begun           - the move    (stays)
    ended: landed       - the move                   source, destination     0, unless they were too many
    ended: did not      - the move                   source, where it is     + 1
    ended: cancelled    - the move                   source, where it is     (stay)
    split: made                                      its owner               0, unless they were too many
    split: failed                                                            + 1
    go on                                                                    0

A move has landed if its destination owns the bundle; one without a destination has if anybody does. What has failed too
often is for an operator to judge: moves that were under way and land after all do not set that back. Times are seconds
since 1970; what is older than it can matter is forgotten. Of splits nothing is under way: Pulsar makes one as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadmanager.core.domain.names import BrokerId

_HOUR_S = 3_600.0
_TOUCHED_KEPT_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class MoveUnderWay:
    """Where a bundle is taken from and where it is to go, None: wherever Pulsar places it. `is_own`: shedding's."""

    source: BrokerId
    destination: BrokerId | None
    began_s: float
    is_own: bool

    def has_landed(self, owner: BrokerId | None) -> bool:
        """Whether it has, if this is who owns the bundle now."""
        return owner is not None and self.destination in (None, owner)


@dataclass(frozen=True, slots=True)
class Acts:
    """`under_way` by bundle; `began_s`: own moves, of the last hour; `touched_s`: when a move last took a bundle from a
    broker, or gave it one, or one of its own was split; `failures`: how many moves and splits have failed since the
    last one that did not.
    """

    under_way: Mapping[str, MoveUnderWay] = field(default_factory=dict)
    began_s: tuple[float, ...] = ()
    touched_s: Mapping[BrokerId, float] = field(default_factory=dict)
    failures: int = 0

    def at(self, now_s: float) -> Acts:
        """Without what is too old; what lies in the future, by another's clock, was now."""
        return replace(
            self,
            began_s=tuple(min(at_s, now_s) for at_s in self.began_s if at_s > now_s - _HOUR_S),
            touched_s={
                broker: min(at_s, now_s) for broker, at_s in self.touched_s.items() if at_s > now_s - _TOUCHED_KEPT_S
            },
        )

    def begun(self, bundle: str, move: MoveUnderWay) -> Acts:
        began_s = (*self.began_s, move.began_s) if move.is_own else self.began_s
        return replace(self, under_way={**self.under_way, bundle: move}, began_s=began_s).at(move.began_s)

    def not_begun(self, bundle: str) -> Acts:
        """It was to begin, and nobody was asked."""
        return replace(self, under_way={each: move for each, move in self.under_way.items() if each != bundle})

    def ended(
        self, bundle: str, owner: BrokerId | None, now_s: float, *, is_cancelled: bool, failures_until_stop: int
    ) -> Acts:
        """The bundle of a move under way belongs to `owner` now, and nothing more comes of it."""
        move = self.under_way[bundle]
        if move.has_landed(owner):
            failures = self._after_success(failures_until_stop)
        else:
            failures = self.failures + (not is_cancelled)
        touched = {move.source: now_s} | ({} if owner is None else {owner: now_s})
        after = replace(self.not_begun(bundle), touched_s={**self.touched_s, **touched}, failures=failures)
        return after.at(now_s)

    def split(self, owner: BrokerId, now_s: float, *, failures_until_stop: int) -> Acts:
        """A bundle of this owner was split: what it has reported is about a bundle that is no more."""
        touched = {**self.touched_s, owner: now_s}
        return replace(self, touched_s=touched, failures=self._after_success(failures_until_stop)).at(now_s)

    def not_split(self) -> Acts:
        """A split has failed."""
        return replace(self, failures=self.failures + 1)

    def went_on(self) -> Acts:
        """An operator has said so."""
        return replace(self, failures=0)

    def _after_success(self, failures_until_stop: int) -> int:
        return 0 if self.failures < failures_until_stop else self.failures
