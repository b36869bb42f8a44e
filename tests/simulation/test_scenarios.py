"""Every packaged scenario under the default configuration: which bounds hold, and which ones honestly do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from support.deep import deep_except
from support.scenarios import PROJECT, TRACES, a_scenario

from loadmanager.cli.simulate_command import packaged_scenarios, recorded_for
from loadmanager.core.diagnosis.stuck_diagnosis import find_stuck_causes
from loadmanager.core.domain.settings import AS_PULSAR, PlannerSettings
from loadmanager.core.model.report_validation import ReportValidator, ValidatedReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.repeated_moves import NEVER, is_back
from loadmanager.core.planning.shedding_round import Round, shed
from loadmanager.lab.simulate import sim_execution
from loadmanager.lab.simulate.scenario import Scenario
from loadmanager.lab.simulate.scenario_run import SIDE_BY_SIDE, run

SCENARIOS = packaged_scenarios()
LONGEST_S = 14_400.0
TRAFFIC = sorted(TRACES.glob("tweets_*.csv"))

NOT_HELD = {
    "domain-lost": {"movedAgainAtMost"},
    "five-to-ten-brokers": {"levelled"},
    "idle-new-broker": {"filled"},
    "in-and-out": {"filled", "movedShareAtMost"},
    "outstanding-bundle": {"thrashAtMost"},
    "recorded-traffic": {"movedAgainAtMost", "thrashAtMost"},
    "region-failover": {"levelled"},
    "slow-and-stale": {"movesTo"},
    "slow-noise": {"movedAgainAtMost", "quietFromS", "thrashAtMost"},
    "three-generations": {"imbalanceAtMost", "movedShareAtMost", "thrashAtMost"},
    "unequal-capacities": {"levelled", "movedAgainAtMost", "movedShareAtMost", "quietFromS", "thrashAtMost"},
}
"""The default strategy acts from a fifth of the mean usage above it on, as Pulsar does, and follows short bursts.
LeastLongTermMessageRate places what it sheds, whatever a broker can carry.
"""

NOT_HELD_AS_PULSAR = {
    "five-to-ten-brokers": {"levelled"},
    "low-but-uneven": {"movesAtLeast", "levelled"},
    "unequal-capacities": {"levelled", "movedAgainAtMost", "movedShareAtMost", "quietFromS", "thrashAtMost"},
    "slow-and-stale": {"movesTo"},
}
"""The bounds that do not hold with Pulsar's thresholds, which are not proportional to the load."""

NOT_HELD_BY_LEVEL = {
    "correlated-bursts": {"movedShareAtMost"},
    "flash-crowd": {"movedShareAtMost"},
    "slow-and-stale": {"movesTo"},
    "slow-noise": {"quietFromS"},
    "two-dimensions": {"quietFromS"},
    "unequal-capacities": {"quietFromS"},
}
"""It moves what is not worth it in some."""


QUICK = {
    "low-but-uneven",
    "mass-failure",
    "maximum-of-bundles",
    "real-overload",
    "two-measures",
    "unequal-capacities",
    "wrong-sum",
    "zipf-drift",
}
"""One scenario of each kind."""

NOTHING_CAN_MOVE = {"one-hot-topic": {"defaultNumberOfNamespaceBundles"}}
"""The keys that leaders name in these scenarios, and in no other: where the load is even, or something can move, nobody
says that nothing can.
"""


def told_in(keys: set[str]) -> Callable[..., Round]:
    """A round of shedding that adds to the keys why nothing can move, if that is what the leader says."""

    def told(snapshot: Snapshot, settings: PlannerSettings, *more: Any) -> Round:  # noqa: ANN401 - as it is called
        keys.update(each.key for each in find_stuck_causes(snapshot, settings))
        return shed(snapshot, settings, *more)

    return told


def shortened(scenario: Scenario, duration_s: float) -> Scenario:
    """The same for less time."""
    return scenario.model_copy(update={"duration_s": min(duration_s, scenario.duration_s)})


def broken(
    scenario: Scenario, strategy: str = "", settings: dict[str, str] | None = None, *, is_deceived: bool = False
) -> set[str]:
    """The bounds that do not hold. A leader that is deceived about usage may say that nothing can move."""
    recorded = recorded_for(scenario, PROJECT, [str(path) for path in TRAFFIC]) if scenario.traces else []
    keys: set[str] = set()
    with patch.object(sim_execution, "shed", told_in(keys)):
        done = run(shortened(scenario, LONGEST_S), strategy, settings, recorded=recorded)
    assert is_deceived or keys <= NOTHING_CAN_MOVE.get(scenario.name, set())
    assert len(done.checks) >= 1
    return {check.key for check in done.checks if not check.held}


@pytest.mark.parametrize("name", deep_except(QUICK, SCENARIOS))
def test_the_default_configuration_holds_all_bounds_but_those_that_are_known(name: str) -> None:
    scenario = SCENARIOS[name]
    if scenario.traces is not None and not TRAFFIC:
        pytest.skip(f"no recorded traffic in {TRACES}")
    assert broken(scenario) == NOT_HELD.get(name, set())


@pytest.mark.parametrize("name", deep_except({"unequal-capacities"}, NOT_HELD_AS_PULSAR))
def test_pulsars_thresholds_hold_less(name: str) -> None:
    assert broken(SCENARIOS[name], "", AS_PULSAR) == NOT_HELD_AS_PULSAR[name]


@pytest.mark.parametrize("name", deep_except(QUICK, SCENARIOS))
def test_level_holds_all_bounds_but_those_that_are_known(name: str) -> None:
    scenario = SCENARIOS[name]
    if scenario.traces is not None and not TRAFFIC:
        pytest.skip(f"no recorded traffic in {TRACES}")
    assert broken(scenario, "Level") <= NOT_HELD_BY_LEVEL.get(name, set())


@pytest.mark.deep
@pytest.mark.parametrize("name", ["real-overload", "ninety-ten", "two-measures", "restarted-broker", "mass-failure"])
def test_what_holds_does_not_hold_by_chance(name: str) -> None:
    assert not broken(SCENARIOS[name].model_copy(update={"seed": 2}))


@pytest.mark.deep
def test_a_day_of_stationary_load_with_a_fifth_of_noise_moves_nothing() -> None:
    done = run(SCENARIOS["stationary-noise"])
    assert done.held
    assert done.result.duration_s == 86_400
    assert done.result.rounds >= 1_400
    assert float(done.result.series.imbalance.std()) > 0.01, "there is noise"


def test_the_lower_boundary_fills_a_new_broker_that_the_default_leaves_idle() -> None:
    assert "idle-new-broker" in NOT_HELD
    assert not broken(SCENARIOS["idle-new-broker"], "", {"lowerBoundarySheddingEnabled": "true"})


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("decayed-rates", {"movesTo"}),
        ("wrong-sum", {"movesFrom"}),
        ("wrong-capacity", {"movesFrom", "movesAtMost", "thrashAtMost"}),
        ("unknown-nic", {"movesTo", "movesAtMost"}),
    ],
)
def test_bounds_need_report_validation(name: str, bounds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportValidator, "judge", lambda *given: ValidatedReport(given[2], counts=True, fault=None))
    assert broken(SCENARIOS[name], is_deceived=True) == {*bounds, "said"}


@pytest.mark.parametrize("strategy", SIDE_BY_SIDE)
def test_every_strategy_runs_and_gives_the_same_result_twice(strategy: str) -> None:
    scenario = shortened(SCENARIOS["two-measures"], 1_800)
    assert run(scenario, strategy).result.digest() == run(scenario, strategy).result.digest()


@pytest.mark.parametrize("cool_down", ["0", "60"])
def test_what_goes_to_and_fro_is_seen_with_and_without_a_cool_down(cool_down: str) -> None:
    if not TRAFFIC:
        pytest.skip(f"no recorded traffic in {TRACES}")
    settings = {"loadBalancerReturnCoolDownMinutes": cool_down}
    assert "movedAgainAtMost" in broken(SCENARIOS["recorded-traffic"], "", settings)


def test_each_move_says_when_its_bundle_had_moved_and_when_it_had_left_where_it_went_to() -> None:
    moves = run(shortened(SCENARIOS["unequal-capacities"], LONGEST_S), "", AS_PULSAR).result.moves
    for number, move in enumerate(moves):
        before = [each for each in moves[:number] if each.bundle == move.bundle]
        left = [each.at_s for each in before if each.source == move.destination]
        assert move.moved_s == pytest.approx(before[-1].at_s if before else NEVER)
        assert move.left_s == pytest.approx(left[-1] if left else NEVER)
    assert any(is_back(move) for move in moves)


def test_each_event_of_a_file_happens() -> None:
    scenario = a_scenario(
        durationS=1_200,
        stepS=10,
        brokers=[{"count": 3}],
        namespaces=[{"name": "t/ns", "count": 2, "bundles": 8, "weights": {"kind": "heavyTailed"}, "owners": "dealt"}],
        shapes=[
            {"kind": "diurnal", "amplitude": 0.5, "phases": "spread"},
            {"kind": "diurnal", "amplitude": 0.1},
            {"kind": "ramp", "factor": 2, "fromS": 100, "untilS": 200},
        ],
        events=[
            {"kind": "brokersJoin", "atS": 60, "everyS": 10, "brokers": {"count": 2}},
            {"kind": "brokersJoin", "atS": 60, "brokers": {"id": "own:8080"}},
            {"kind": "brokersStop", "atS": 120, "brokers": ["broker-0000:8080"]},
            {"kind": "brokersCrash", "atS": 180, "brokers": ["broker-0001:8080"]},
            {"kind": "brokersRestart", "atS": 240, "brokers": ["broker-0002:8080"]},
            {"kind": "brokerSlows", "atS": 300, "broker": "own:8080", "factor": 0.5},
            {"kind": "namespaceAppears", "atS": 360, "namespace": {"name": "t/new", "bundles": 4}},
            {"kind": "loadJumps", "atS": 420, "untilS": 480, "bundles": ["t/ns-0000#0"], "factor": 3},
            {"kind": "reportsGoBad", "atS": 480, "broker": "own:8080", "fault": "sum_differs"},
        ],
    )
    result = run(scenario, "", AS_PULSAR).result
    brokers = dict(zip(result.series.t_s.tolist(), result.series.brokers.tolist(), strict=True))
    assert [brokers[t_s] for t_s in (50.0, 100.0, 200.0, 240.0, 300.0)] == [3, 6, 4, 3, 4]
    assert result.bundles == 20
    assert result.series.load[15] > result.series.load[5]
