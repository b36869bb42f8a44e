"""Limits that currently block moves: the reason of each, and the time when it ends.

A shedding round refuses moves for many reasons. Reasons that expire by themselves are limits. The limits of the last
round are shown until they end or the next round begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ChurnReason, Reason, SheddingReason
from loadmanager.core.domain.settings import KEYS
from loadmanager.core.strategies.shedding.level_shedder import LevelReason

_MINUTE_S = 60.0


class BlockingLimit(NamedTuple):
    """Reason of the refused moves, a sentence for operators, and the end in seconds since 1970, None if unknown."""

    reason: Reason
    sentence: str
    until_s: float | None


class RoundPace(NamedTuple):
    """Time to the next round, and the grace period of bundles after an unload."""

    interval_s: float
    grace_s: float


class _Kind(NamedTuple):
    """Description of a limit: what waits, why, and the seconds left."""

    who: str
    why: str
    left_s: Callable[[Mapping[str, Figure], RoundPace], float | None]


def _seconds_left(why: Mapping[str, Figure], pace: RoundPace) -> float | None:
    del pace
    left_s = why.get("seconds_left")
    return None if left_s is None else float(left_s)


def _until_next_round(why: Mapping[str, Figure], pace: RoundPace) -> float:
    return float(why.get("seconds_left", pace.interval_s))


def _until_return(why: Mapping[str, Figure], pace: RoundPace) -> float:
    del pace
    return float(why[KEYS["return_cool_down_minutes"]]) * _MINUTE_S - float(why["seconds_ago"])


_KINDS: Mapping[Reason, _Kind] = {
    ChurnReason.MOVED_ENOUGH_THIS_ROUND: _Kind("bundle", "a round moves no more of all load", _until_next_round),
    ChurnReason.MOVED_ENOUGH_THIS_HOUR: _Kind("bundle", "no more of all load is moved within an hour", _seconds_left),
    ChurnReason.NO_RETURN: _Kind("bundle", "returning to a broker that was left a short time ago", _until_return),
    ChurnReason.KEEPS_RETURNING: _Kind("bundle", "too many returns to former owners", _seconds_left),
    ChurnReason.SHEDDING_STOPPED: _Kind("bundle", "the breaker has stopped shedding", _seconds_left),
    LevelReason.BUDGET_SPENT: _Kind("broker", "no more of all load is moved now", _until_next_round),
    LevelReason.NO_LEVELLING_MOVE: _Kind("broker", "bundles rest where Level has put them", _seconds_left),
    LevelReason.RESTS_AFTER_RESTART: _Kind("broker", "nothing is given to a broker that has restarted", _seconds_left),
    SheddingReason.NO_ELIGIBLE_BUNDLE: _Kind(
        "broker", "bundles were unloaded a short time ago", lambda _, pace: pace.grace_s
    ),
}
_NEEDS_FIGURE: Mapping[Reason, str] = {
    LevelReason.NO_LEVELLING_MOVE: "resting",
    SheddingReason.NO_ELIGIBLE_BUNDLE: "recently_unloaded",
}
"""Reasons that are a limit only if this figure is not 0."""


def find_round_limits(verdicts: Iterable[Verdict], decided_at_s: float, pace: RoundPace) -> tuple[BlockingLimit, ...]:
    """Return the limits behind the refused moves of a round, each with the time when a move is allowed again."""
    found: dict[Reason, list[float | None]] = {}
    for verdict in verdicts:
        kind = _KINDS.get(verdict.verdict)
        if verdict.acted or kind is None or not verdict.why.get(_NEEDS_FIGURE.get(verdict.verdict, ""), 1):
            continue
        left_s = kind.left_s(verdict.why, pace)
        found.setdefault(verdict.verdict, []).append(None if left_s is None else decided_at_s + max(left_s, 0.0))
    return tuple(BlockingLimit(reason, _sentence(_KINDS[reason], ends), _first(ends)) for reason, ends in found.items())


def _sentence(kind: _Kind, ends: list[float | None]) -> str:
    return f"{len(ends)} {kind.who}{'s wait' if len(ends) > 1 else ' waits'}: {kind.why}"


def _first(ends: list[float | None]) -> float | None:
    return min((end for end in ends if end is not None), default=None)


def find_active_limits(limits: Iterable[BlockingLimit], now_s: float) -> list[BlockingLimit]:
    """Return the limits that have not ended, by end time, at most one per reason."""
    by_reason: dict[Reason, BlockingLimit] = {}
    for limit in limits:
        if limit.until_s is None or limit.until_s > now_s:
            by_reason.setdefault(limit.reason, limit)
    return sorted(by_reason.values(), key=lambda limit: (limit.until_s is None, limit.until_s or 0.0, limit.reason))
