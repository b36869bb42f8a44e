"""Completed moves, and detection of repeated ones: bundles moved again, and bundles that returned.

A bundle is moved *again* if shedding also moved it in the two hours before. It goes *back* if it returns to a
registration that it left, for any reason, in the four hours before. Both are determined when a move is completed. The
times are not settings: a longer cool-down would only make bundles return later, or go elsewhere.

A restarted broker has a new registration: bundles that left it for the restart may come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from loadmanager.core.domain.ownership import Registration

AGAIN_WITHIN_S = 2 * 3600.0
BACK_WITHIN_S = 4 * 3600.0
NEVER = -math.inf
"""Time of an event that never happened or is forgotten."""


class Completed(Protocol):
    """A move completed at `at_s`, with its `share` of all load. `moved_s` is the last time shedding moved the bundle,
    `left_s` the last time it left its destination.
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
    """A completed move of a bundle from one registration of a broker. `is_own`: by shedding, not by an operator."""

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
    """Build the move that follows these, which are in order of completion."""
    before = [move for move in moves if move.bundle == bundle]
    moved_s = max((move.at_s for move in before if move.is_own), default=NEVER)
    if destination == source:
        left_s = at_s
    else:
        left_s = NEVER if destination is None else find_departure(before, bundle, destination)
    return PastMove(at_s, bundle, source.broker, source.incarnation, share, is_own, moved_s, left_s)


class MoveTrail:
    """Builds moves, in order of completion, with their predecessors; for callers without a memory of churn."""

    def __init__(self) -> None:
        self._moves: dict[str, list[PastMove]] = {}

    def add(
        self,
        at_s: float,
        bundle: str,
        source: Registration,
        destination: Registration | None,
        *,
        is_own: bool = True,
    ) -> PastMove:
        """Add a move and return it; expired moves are dropped."""
        known = [move for move in self._moves.get(bundle, ()) if at_s - move.at_s < BACK_WITHIN_S]
        move = next_move(known, at_s, bundle, source, destination, 0.0, is_own=is_own)
        self._moves[bundle] = [*known, move]
        return move


def find_departure(moves: Sequence[PastMove], bundle: str, broker: Registration) -> float:
    """Return the last time when the bundle left that registration of the broker."""
    for move in reversed(moves):
        if move.bundle == bundle and (move.source, move.incarnation) == (broker.broker, broker.incarnation):
            return move.at_s
    return NEVER


def is_again(move: Completed) -> bool:
    """Return True if shedding moved the bundle in the two hours before."""
    return move.at_s - move.moved_s < AGAIN_WITHIN_S


def is_back(move: Completed) -> bool:
    """Return True if the bundle had left its destination in the four hours before."""
    return move.at_s - move.left_s < BACK_WITHIN_S


def share_again(moves: Iterable[Completed]) -> float:
    """Return the share of all load that shedding moved again."""
    return sum((move.share for move in moves if move.is_own and is_again(move)), 0.0)


def share_back(moves: Iterable[Completed]) -> float:
    """Return the share of all load that shedding moved back."""
    return sum((move.share for move in moves if move.is_own and is_back(move)), 0.0)
