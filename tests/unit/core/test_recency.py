from __future__ import annotations

from dataclasses import replace

from support.builders import broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.plan import Assign, Plan, Unload
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State
from loadmanager.core.strategies.shedding.avg_shedder import AvgSheddingReason
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason, after_round, before_round

A, B, C = broker("a"), broker("b"), broker("c")
SETTINGS = PlannerSettings(broker_overloaded_threshold_percentage=85)


def a_cluster(cpu_of_a: float = 50.0, **changes: object) -> Snapshot:
    reports = {"a": report({bundle(0): throughput(9)}, cpu=cpu_of_a), "b": report(cpu=20), "c": report(cpu=20)}
    return snapshot(reports, **changes)  # type: ignore[arg-type]  # arguments of `snapshot`


def remembered(*brokers: str) -> State:
    return {"ThresholdShedder": {"usage": {f"{name}:8080": [1, 0.5] for name in brokers}}, "AvgShedder": {"hits": {}}}


def a_plan(*steps: Assign | Unload) -> Plan:
    return Plan(1, 0.0, steps, ())


def test_average_of_an_overloaded_broker_is_dropped_before_a_round() -> None:
    assert before_round(remembered("a", "b"), a_cluster(90), SETTINGS) == remembered("b")


def test_averages_are_kept_up_to_the_threshold() -> None:
    state = remembered("a", "b")
    assert before_round(state, a_cluster(80), SETTINGS) is state


def test_averages_of_source_and_destination_are_dropped_after_a_round() -> None:
    step = Unload(bundle(0), A, B, ThresholdReason.BROKER_ABOVE_AVERAGE)
    assert after_round(remembered("a", "b", "c"), a_plan(step), a_cluster()) == remembered("c")


def test_unload_without_a_destination_drops_the_average_of_its_source() -> None:
    step = Unload(bundle(0), A, None, ThresholdReason.BROKER_ABOVE_AVERAGE)
    assert after_round(remembered("a", "b"), a_plan(step), a_cluster()) == remembered("b")


def test_assignment_drops_the_average_of_its_destination() -> None:
    step = Assign(bundle(1), C, PlacementReason.ROUND_ROBIN)
    assert after_round(remembered("a", "c"), a_plan(step), a_cluster()) == remembered("a")


def test_averages_of_unsettled_brokers_are_dropped() -> None:
    given = a_cluster(preallocated={bundle(7): "c"})
    unsettled = given.brokers.settled.copy()
    unsettled[0] = False
    waiting = replace(given, brokers=given.brokers.with_bundles(given.bundles, unsettled), _derived={})
    assert after_round(remembered("a", "b", "c"), a_plan(), waiting) == remembered("b")


def test_state_of_other_strategies_is_kept() -> None:
    state: State = {"AvgShedder": {"hits": {"a:8080": [1, 2, 3]}}}
    step = Unload(bundle(0), A, B, AvgSheddingReason.BROKER_ABOVE_PARTNER)
    assert before_round(state, a_cluster(90), SETTINGS) is state
    assert after_round(state, a_plan(step), a_cluster()) is state
