from __future__ import annotations

from typing import Any

import pytest
from support.scenarios import a_move, a_result, a_scenario

from loadmanager.core.domain.reasons import SplitReason
from loadmanager.lab.simulate.scenario_run import BoundCheck, check, mean_imbalance
from loadmanager.lab.simulate.sim_result import Result


def checked(expect: dict[str, Any], result: Result) -> BoundCheck:
    (found,) = check(a_scenario(expect=expect).expect, result)
    return found


BACK = a_move(20, source="b", destination="a", moved_s=5, left_s=5)
MOVED = a_result([2.0, 1.5, 1.0, 1.0], worst=[0.9, 0.7, 0.5, 0.5], moves=(a_move(5), BACK, a_move(25, bundle=1)))


@pytest.mark.parametrize(
    ("expect", "held", "measured"),
    [
        ({"movedAgainAtMost": 0.05}, False, 0.1),
        ({"thrashAtMost": 0}, False, 0.1),
        ({"thrashAtMost": 0.1}, True, 0.1),
        ({"returnsAtMost": 0}, False, 1),
        ({"movesAtMost": 3}, True, 3),
        ({"movesAtMost": 2}, False, 3),
        ({"movesAtLeast": 3}, True, 3),
        ({"movesAtLeast": 4}, False, 3),
        ({"movesPerBundleAtMost": 1}, False, 2),
        ({"quietFromS": 25}, True, 25),
        ({"quietFromS": 24}, False, 25),
        ({"splitsAtMost": 0}, True, 0),
        ({"splitsAtLeast": 1}, False, 0),
        ({"bundlesAtMost": 3}, False, 4),
        ({"imbalanceAtMost": 1.3}, False, 1.375),
        ({"imbalanceAtMost": 1.3, "settledAfterS": 10}, True, 3.5 / 3),
        ({"worstUsageAtMost": 0.8}, False, 0.9),
        ({"worstUsageAtMost": 0.8, "settledAfterS": 10}, True, 0.7),
        ({"unownedSAtMost": 6}, False, 7.0),
        ({"movesTo": [{"broker": "c:8080", "atMost": 0}]}, True, 0),
    ],
)
def test_figure_is_compared_with_its_bound(expect: dict[str, Any], held: bool, measured: float) -> None:  # noqa: FBT001 - a case
    found = checked(expect, MOVED)
    assert (found.key, found.held) == (next(iter(expect)), held)
    assert found.measured == pytest.approx(measured)
    assert "expected" in found.sentence


def test_moves_of_one_broker_are_counted_within_a_time() -> None:
    to_b = {"broker": "b:8080", "atMost": 1}
    assert not checked({"movesTo": [to_b]}, MOVED).held
    assert checked({"movesTo": [{**to_b, "untilS": 24}]}, MOVED).held
    assert checked({"movesTo": [{**to_b, "fromS": 6}]}, MOVED).held
    assert checked({"movesFrom": [{"broker": "b:8080", "atMost": 1}]}, MOVED).measured == 1


def test_levelling_time_starts_at_the_first_report_of_the_imbalance() -> None:
    result = a_result([1.0, 2.0, 2.0, 1.1, 1.0], reports=[1, 0, 1, 0, 0])
    wanted = {"imbalance": 1.2, "withinS": 10, "afterS": 10}
    found = checked({"levelled": wanted}, result)
    assert (found.held, found.measured) == (True, 10.0)
    assert found.sentence == "Imbalance 1.2 10 s after the reports, expected within 10 s"
    assert not checked({"levelled": {**wanted, "withinS": 5}}, result).held


def test_levelling_time_of_new_brokers_starts_at_their_last_first_report() -> None:
    result = a_result([1.0, 2.0, 2.0, 1.0], first_reports={"a": 0.0, "b": 12.0, "c": 25.0})
    assert (
        checked({"levelled": {"imbalance": 1.2, "withinS": 5, "afterS": 10, "by": "newBrokers"}}, result).measured
        == 5.0
    )


def test_load_uneven_at_the_end_was_never_levelled() -> None:
    found = checked({"levelled": {"imbalance": 1.2, "withinS": 100}}, a_result([2.0, 1.0, 2.0]))
    assert (found.held, found.measured, found.sentence) == (False, None, "Never to stay: imbalance 1.2")


def test_levelling_without_a_report_does_not_hold() -> None:
    result = a_result([1.0, 1.0, 1.0], reports=[1, 0, 0])
    found = checked({"levelled": {"imbalance": 1.2, "withinS": 100, "afterS": 10}}, result)
    assert not found.held
    assert found.sentence == "No report has shown what happened: imbalance 1.2"


def test_overload_is_relieved_once_no_broker_is_above_the_usage() -> None:
    result = a_result([1.0] * 4, worst=[0.5, 1.2, 1.0, 0.8])
    found = checked({"relieved": {"usage": 0.85, "withinS": 20, "afterS": 5}}, result)
    assert (found.held, found.measured) == (True, 20.0)
    assert found.sentence.startswith("Every broker at 85 % or less 20 s after")


def test_filled_share_is_moves_to_the_broker_minus_moves_away() -> None:
    scenario = {"broker": "broker-0000:8080", "share": 0.5, "withinS": 20}
    moves = (
        a_move(5, destination="broker-0000", share=0.5),  # before its first report
        a_move(15, destination="broker-0000", share=0.4),
        a_move(16, source="broker-0000", share=0.1),
        a_move(45, destination="broker-0000", share=0.4),  # too late
    )
    result = a_result([1.0] * 6, moves=moves, first_reports={"broker-0000": 10.0})
    assert checked({"filled": [scenario]}, result).measured == pytest.approx(0.6)
    assert not checked({"filled": [scenario]}, a_result([1.0] * 6, moves=moves)).held, "it never reported"


def test_unowned_time_is_the_longest_stretch() -> None:
    result = a_result([1.0] * 6, unowned=[3, 0, 1, 2, 0, 1])
    assert checked({"allOwnedWithinS": 20}, result).held
    assert checked({"allOwnedWithinS": 10}, result).measured == 20.0


def test_reasons_are_counted_over_all_decisions() -> None:
    reason = SplitReason.ONE_HOT_TOPIC
    result = a_result([1.0], verdicts={("split", reason, False): 2, ("shed", reason, True): 1})
    assert checked({"said": [{"reason": "one_hot_topic"}]}, result).measured == 3
    assert not checked({"said": [{"reason": "one_hot_topic", "atMost": 2}]}, result).held
    assert not checked({"said": [{"reason": "no_return"}]}, result).held
    assert checked({"said": [{"reason": "no_return", "atLeast": 0, "atMost": 0}]}, result).held


def test_nothing_is_checked_without_expectations() -> None:
    assert check(a_scenario().expect, MOVED) == ()


def test_mean_imbalance_ignores_times_without_brokers() -> None:
    assert mean_imbalance(a_result([2.0, float("nan"), 1.0])) == 1.5
    assert mean_imbalance(a_result([float("nan")])) == 1.0
