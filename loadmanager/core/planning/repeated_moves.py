"""Completed moves, and which of them others had made for nothing: what was moved again, and what went back.

A bundle is moved *again* when shedding had moved it within the two hours before. It goes *back* when it comes to the
very registration that it had left, at whoever's word, within the four hours before. Both are told when a move is
completed, and depend on no setting: a cool-down that forbids bundles to return for an hour makes them return later, or
sends them on to somebody else.

A broker that has restarted is another registration: bundles that left it for its sake may come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from loadmanager.core.domain.ownership import Registration

AGAIN_WITHIN_S = 2 * 3600.0
BACK_WITHIN_S = 4 * 3600.0
NEVER = -math.inf
"""When something happened that did not, or that is not remembered any more."""


class Completed(Protocol):
    """A move that ended at `at_s`. `share` is what it carried of all load. `moved_s` is when shedding had moved the
    bundle before, `left_s` when the bundle had left the broker to which it went.
    """

    @property
    def at_s(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def is_own(self) -> bool: ...
    @property
    def moved_s(self) -> float: ...
    @property
    def left_s(self) -> float: ...


class PastMove(NamedTuple):
    """A completed move of a bundle from one life of a broker. `is_own`: by shedding, not at an operator's word."""

    at_s: float
    bundle: str
    source: str
    incarnation: int
    share: float
    is_own: bool
    moved_s: float = NEVER
    left_s: float = NEVER


def next_move(
    moves: Sequence[PastMove],
    at_s: float,
    bundle: str,
    source: Registration,
    destination: Registration | None,
    share: float,
    *,
    is_own: bool,
) -> PastMove:
    """The move that comes after these, which are in the order of their ends."""
    before = [move for move in moves if move.bundle == bundle]
    moved_s = max((move.at_s for move in before if move.is_own), default=NEVER)
    if destination == source:
        left_s = at_s
    else:
        left_s = NEVER if destination is None else find_departure(before, bundle, destination)
    return PastMove(at_s, bundle, source.broker, source.incarnation, share, is_own, moved_s, left_s)


class MoveTrail:
    """Tells of moves, in the order of their ends, what came before them; for whoever keeps no memory of churn."""

    def __init__(self) -> None:
        self._moves: dict[str, list[PastMove]] = {}

    def follow(self) -> MoveTrail:
        """A trail that goes on from here by itself."""
        other = MoveTrail()
        other._moves = {bundle: list(moves) for bundle, moves in self._moves.items()}
        return other

    def add(
        self,
        at_s: float,
        bundle: str,
        source: Registration,
        destination: Registration | None,
        *,
        is_own: bool = True,
    ) -> PastMove:
        """The move as it is remembered; what is too long before it to matter is forgotten."""
        known = [move for move in self._moves.get(bundle, ()) if at_s - move.at_s < BACK_WITHIN_S]
        move = next_move(known, at_s, bundle, source, destination, 0.0, is_own=is_own)
        self._moves[bundle] = [*known, move]
        return move


def find_departure(moves: Sequence[PastMove], bundle: str, broker: Registration) -> float:
    """When the bundle was last taken from that life of the broker."""
    for move in reversed(moves):
        if move.bundle == bundle and (move.source, move.incarnation) == (broker.broker, broker.incarnation):
            return move.at_s
    return NEVER


def is_again(move: Completed) -> bool:
    """Whether shedding had moved the bundle already within two hours before."""
    return move.at_s - move.moved_s < AGAIN_WITHIN_S


def is_back(move: Completed, within_s: float = BACK_WITHIN_S) -> bool:
    """Whether the bundle had left the broker to which it went within the time before."""
    return move.at_s - move.left_s < within_s


def share_again(moves: Iterable[Completed]) -> float:
    """The shares of all load that shedding moved again, added up."""
    return sum((move.share for move in moves if move.is_own and is_again(move)), 0.0)


def share_back(moves: Iterable[Completed]) -> float:
    """The shares of all load that shedding moved back, added up."""
    return sum((move.share for move in moves if move.is_own and is_back(move)), 0.0)
