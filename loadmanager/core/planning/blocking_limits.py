"""Limits that block moves at present: the setting of each, and the time when it ends.

A shedding round refuses moves for many reasons; those that expire by themselves are limits. The refusals of the last
round are shown until the limit ends or the next round begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ChurnReason, Reason, SheddingReason
from loadmanager.core.domain.settings import KEYS
from loadmanager.core.strategies.shedding.level_shedder import LevelReason

GRACE_PERIOD = "loadBalancerSheddingGracePeriodMinutes"
_MINUTE_S = 60.0


class BlockingLimit(NamedTuple):
    """Setting behind a limit, a sentence for operators, and its end in seconds since 1970, None if unknown."""

    key: str
    sentence: str
    until_s: float | None


class RoundPace(NamedTuple):
    """Time to the next round, and the grace period of bundles after an unload."""

    interval_s: float
    grace_s: float


class _Kind(NamedTuple):
    """Description of a limit: what waits, why, the setting, and the seconds left."""

    who: str
    why: str
    key: Callable[[Mapping[str, Figure]], str]
    left_s: Callable[[Mapping[str, Figure], RoundPace], float | None]


def _by(name: str) -> Callable[[Mapping[str, Figure]], str]:
    return lambda _: KEYS[name]


def _as_told(why: Mapping[str, Figure], pace: RoundPace) -> float | None:
    del pace
    left_s = why.get("seconds_left")
    return None if left_s is None else float(left_s)


def _until_next_round(why: Mapping[str, Figure], pace: RoundPace) -> float:
    return float(why.get("seconds_left", pace.interval_s))


def _until_return(why: Mapping[str, Figure], pace: RoundPace) -> float:
    del pace
    return float(why[KEYS["return_cool_down_minutes"]]) * _MINUTE_S - float(why["seconds_ago"])


_KINDS: Mapping[Reason, _Kind] = {
    ChurnReason.MOVED_ENOUGH_THIS_CYCLE: _Kind(
        "bundle", "a round moves no more of all load", _by("max_load_moved_per_cycle_percentage"), _until_next_round
    ),
    ChurnReason.MOVED_ENOUGH_THIS_HOUR: _Kind(
        "bundle", "no more of all load is moved within an hour", _by("max_load_moved_per_hour_percentage"), _as_told
    ),
    ChurnReason.NO_RETURN: _Kind(
        "bundle", "returning to a broker that was left a short time ago", _by("return_cool_down_minutes"), _until_return
    ),
    ChurnReason.KEEPS_RETURNING: _Kind(
        "bundle", "too many returns to former owners", _by("max_bundle_returns"), _as_told
    ),
    ChurnReason.SHEDDING_STOPPED: _Kind(
        "bundle", "the breaker has stopped shedding", _by("thrash_threshold_percentage"), _as_told
    ),
    LevelReason.BUDGET_SPENT: _Kind(
        "broker", "no more of all load is moved now", lambda why: str(why["key"]), _until_next_round
    ),
    LevelReason.NO_LEVELLING_MOVE: _Kind(
        "broker", "bundles rest where Level has put them", _by("level_rest_minutes"), _as_told
    ),
    LevelReason.RESTS_AFTER_RESTART: _Kind(
        "broker", "nothing is given to a broker that has restarted", _by("level_calm_minutes"), _as_told
    ),
    SheddingReason.NO_ELIGIBLE_BUNDLE: _Kind(
        "broker", "bundles were unloaded a short time ago", lambda _: GRACE_PERIOD, lambda _, pace: pace.grace_s
    ),
}
_NEEDS_FIGURE: Mapping[Reason, str] = {
    LevelReason.NO_LEVELLING_MOVE: "resting",
    SheddingReason.NO_ELIGIBLE_BUNDLE: "recently_unloaded",
}
"""Reasons that are a limit only where this figure is not 0."""


def find_round_limits(verdicts: Iterable[Verdict], decided_at_s: float, pace: RoundPace) -> tuple[BlockingLimit, ...]:
    """Return the limits behind the refused moves of a round, each with the time when a move is allowed again."""
    found: dict[tuple[str, Reason], list[float | None]] = {}
    for verdict in verdicts:
        kind = _KINDS.get(verdict.verdict)
        if verdict.acted or kind is None or not verdict.why.get(_NEEDS_FIGURE.get(verdict.verdict, ""), 1):
            continue
        left_s = kind.left_s(verdict.why, pace)
        until_s = None if left_s is None else decided_at_s + max(left_s, 0.0)
        found.setdefault((kind.key(verdict.why), verdict.verdict), []).append(until_s)
    return tuple(
        BlockingLimit(key, _sentence(_KINDS[reason], ends), _first(ends)) for (key, reason), ends in found.items()
    )


def _sentence(kind: _Kind, ends: list[float | None]) -> str:
    return f"{len(ends)} {kind.who}{'s wait' if len(ends) > 1 else ' waits'}: {kind.why}"


def _first(ends: list[float | None]) -> float | None:
    return min((end for end in ends if end is not None), default=None)


def find_active_limits(limits: Iterable[BlockingLimit], now_s: float) -> list[BlockingLimit]:
    """Return the limits that have not ended, soonest first, one per setting."""
    left = [limit for limit in limits if limit.until_s is None or limit.until_s > now_s]
    by_key: dict[str, BlockingLimit] = {}
    for limit in left:
        by_key.setdefault(limit.key, limit)
    return sorted(by_key.values(), key=lambda limit: (limit.until_s is None, limit.until_s or 0.0, limit.key))
