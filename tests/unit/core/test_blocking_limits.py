from __future__ import annotations

import pytest

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ChurnReason, Reason, SheddingReason
from loadmanager.core.planning.blocking_limits import (
    BlockingLimit,
    RoundPace,
    find_active_limits,
    find_round_limits,
)
from loadmanager.core.strategies.shedding.level_shedder import LevelReason

NOW_S = 1_000_000.0
PACE = RoundPace(60.0, 1800.0)


def limits(*verdicts: tuple[Reason, dict[str, Figure]]) -> tuple[BlockingLimit, ...]:
    said = [Verdict(f"t/{number}", reason, acted=False, why=why) for number, (reason, why) in enumerate(verdicts)]
    return find_round_limits(said, NOW_S, PACE)


@pytest.mark.parametrize(
    ("reason", "why", "left_s"),
    [
        (ChurnReason.MOVED_ENOUGH_THIS_ROUND, {}, 60.0),
        (ChurnReason.MOVED_ENOUGH_THIS_HOUR, {"seconds_left": 90}, 90.0),
        (ChurnReason.MOVED_ENOUGH_THIS_HOUR, {}, None),
        (ChurnReason.NO_RETURN, {"seconds_ago": 600, "loadBalancerReturnCoolDownMinutes": 60}, 3000.0),
        (ChurnReason.KEEPS_RETURNING, {"seconds_left": 5}, 5.0),
        (ChurnReason.SHEDDING_STOPPED, {"seconds_left": 7}, 7.0),
        (LevelReason.BUDGET_SPENT, {}, 60.0),
        (LevelReason.BUDGET_SPENT, {"seconds_left": 8}, 8.0),
        (LevelReason.NO_LEVELLING_MOVE, {"resting": 2, "seconds_left": 9}, 9.0),
        (LevelReason.RESTS_AFTER_RESTART, {"seconds_left": 3}, 3.0),
        (SheddingReason.NO_ELIGIBLE_BUNDLE, {"recently_unloaded": 1}, 1800.0),
    ],
)
def test_limit_has_a_reason_and_an_end(reason: Reason, why: dict[str, Figure], left_s: float | None) -> None:
    (limit,) = limits((reason, why))
    assert (limit.reason, limit.until_s) == (reason, None if left_s is None else NOW_S + left_s)
    assert " waits: " in limit.sentence


def test_verdict_without_an_end_is_no_limit() -> None:
    acted = Verdict("t/x", ChurnReason.MOVED_ENOUGH_THIS_ROUND, acted=True)
    assert find_round_limits([acted], NOW_S, PACE) == ()
    assert not limits(
        (LevelReason.NO_LEVELLING_MOVE, {"resting": 0}),
        (SheddingReason.NO_ELIGIBLE_BUNDLE, {"recently_unloaded": 0}),
        (SheddingReason.SINGLE_BUNDLE, {}),
    )


def test_limits_of_one_reason_are_counted_and_end_with_the_first() -> None:
    (limit,) = limits(
        (ChurnReason.KEEPS_RETURNING, {"seconds_left": 9}), (ChurnReason.KEEPS_RETURNING, {"seconds_left": 4})
    )
    assert limit.sentence == "2 bundles wait: too many returns to former owners"
    assert limit.until_s == NOW_S + 4


def test_active_limits_exclude_ended_ones_and_repeated_reasons() -> None:
    told = [
        BlockingLimit(ChurnReason.NO_RETURN, "1", NOW_S + 9),
        BlockingLimit(ChurnReason.NO_RETURN, "2", NOW_S + 1),
        BlockingLimit(ChurnReason.KEEPS_RETURNING, "3", None),
        BlockingLimit(LevelReason.BUDGET_SPENT, "4", NOW_S + 2),
        BlockingLimit(ChurnReason.SHEDDING_STOPPED, "5", NOW_S),
    ]
    assert [limit.sentence for limit in find_active_limits(told, NOW_S)] == ["4", "1", "3"]
