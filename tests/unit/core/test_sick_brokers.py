"""No strategy moves bundles to a sick or stuck broker; verdicts give the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import Load, broker, bundle, owned, report, snapshot

from loadmanager.core.constraints.filters import (
    EXTENSIBLE,
    LEVEL,
    MODULAR,
    SIMPLE,
    FilterRules,
    PlacementQuestion,
    allowed_brokers,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.diagnosis.explanation import DecisionInput, explain_broker, why_not
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.policies import NO_POLICIES, IsolationPolicy, Policies
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.domain.resources import HealthFigures, ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults, ReportValidator
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import planner

A, B, C = (broker(name).broker for name in "abc")
WHY: dict[str, Figure] = {
    "figure": "latency",
    "value": "2500 ms",
    "peers": "10 ms",
    "seconds": 240,
    "well_after_s": 360,
}
STUCK = NO_FAULTS.with_stuck(C, "it opens none")
SICK = ReportFaults(sick={C: Verdict(C, FilterReason.BROKER_SICK, acted=False, why=WHY)})
LOAD: Load = (1_000.0, 1_000.0, 50e6, 50e6)
MINE = Policies((IsolationPolicy("mine", ("tenant/ns",), ("c.*",), ("b.*",)),))
STRATEGIES = ("ThresholdShedder", "UniformLoadShedder", "AvgShedder", "TransferShedder", "Level")


def hot(faults: ReportFaults = SICK, policies: Policies = NO_POLICIES, controls: Controls | None = None) -> Snapshot:
    """Broker a must shed, b has room, and c looks idle."""
    first = report({bundle(number): LOAD for number in range(20)}, cpu=95)
    second = report({bundle(number): LOAD for number in range(20, 26)}, cpu=40)
    given = snapshot({"a": first, "b": second, "c": report({}, cpu=2)}, policies=policies)
    return replace(given, faults=faults, controls=controls or Controls())


def cool(faults: ReportFaults) -> Snapshot:
    """Three brokers with room."""
    given = snapshot({"a": report({bundle(0): LOAD}, cpu=20), "b": report({}, cpu=20), "c": report({}, cpu=20)})
    return replace(given, faults=faults)


def ask(given: Snapshot, *, is_homeless: bool = False) -> PlacementQuestion:
    return PlacementQuestion("tenant/ns", Projection(given), PlannerSettings(), is_homeless=is_homeless)


def shed(given: Snapshot, strategy: str) -> Plan:
    """Largest plan of twelve rounds, a minute apart: some strategies act only after several observations."""
    settings = PlannerSettings(shedding_strategy=strategy, max_unload_percentage=0.5)
    state: planner.State = {}
    plans = []
    for minute in range(12):
        now = replace(given, taken_at_s=given.taken_at_s + 60 * minute)
        plan, state = planner.plan_shedding(now, settings, state, np.random.default_rng(0))
        plans.append(plan)
    return max(plans, key=lambda each: len(each.steps))


def takers(plan: Plan) -> set[str]:
    return {step.destination.broker for step in plan.steps if isinstance(step, Unload) and step.destination}


@pytest.mark.parametrize("rules", [MODULAR, EXTENSIBLE, SIMPLE, LEVEL])
def test_sick_broker_is_dropped_by_all_rules(rules: FilterRules) -> None:
    kept, dropped = allowed_brokers(rules, ask(hot()))
    assert (kept.tolist(), dropped) == ([True, True, False], {"broker_sick": 1})
    assert allowed_brokers(rules, ask(hot(NO_FAULTS)))[0].all()


@pytest.mark.parametrize("rules", [MODULAR, EXTENSIBLE, SIMPLE, LEVEL])
def test_sick_broker_gets_a_homeless_bundle_without_another_eligible_broker(rules: FilterRules) -> None:
    given = hot(policies=Policies((IsolationPolicy("mine", ("tenant/ns",), ("c.*",), ()),)))
    assert not allowed_brokers(rules, ask(given))[0].any()
    kept, dropped = allowed_brokers(rules, ask(given, is_homeless=True))
    assert (kept.tolist(), dropped) == ([False, False, True], {"isolation_policy": 2})


def test_secondary_brokers_replace_a_sick_primary_one() -> None:
    assert allowed_brokers(MODULAR, ask(hot(NO_FAULTS, MINE)))[0].tolist() == [False, False, True]
    assert allowed_brokers(MODULAR, ask(hot(SICK, MINE)))[0].tolist() == [False, True, False]


def too_many_sick(**times: float) -> ReportFaults:
    """More sick brokers than can be quarantined."""
    why: dict[str, Figure] = {"figure": "latency", "value": "2500 ms", "peers": "10 ms", "off": 3, "brokers": 4}
    return ReportFaults(
        remarks=tuple(
            Verdict(broker(name).broker, ValidationReason.SICK_WITH_OTHERS, acted=False, why=why | {"times": each})
            for name, each in times.items()
        )
    )


@pytest.mark.parametrize("rules", [MODULAR, EXTENSIBLE, SIMPLE, LEVEL])
@pytest.mark.parametrize(
    ("faults", "kept"),
    [
        (too_many_sick(b=9.0, c=9.0), [True, False, False]),
        (too_many_sick(a=9.0, b=4.0, c=5.0), [False, True, True]),
        (too_many_sick(a=9.0, b=9.0, c=2.0), [False, False, True]),
        (too_many_sick(b=1.0), [True, False, True]),
    ],
)
def test_least_sick_of_many_sick_brokers_are_allowed(
    rules: FilterRules, faults: ReportFaults, kept: list[bool]
) -> None:
    allowed, dropped = allowed_brokers(rules, ask(cool(faults)))
    assert allowed.tolist() == kept
    assert dropped == {"sicker_than_others": kept.count(False)}


def test_overloaded_well_broker_does_not_exclude_sick_ones() -> None:
    assert allowed_brokers(MODULAR, ask(hot(too_many_sick(b=9.0, c=9.0))))[0].tolist() == [True, True, True]
    full = snapshot({name: report({}, cpu=95) for name in "abc"})
    assert allowed_brokers(MODULAR, ask(replace(full, faults=too_many_sick(b=9.0))))[0].all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_shed_to_a_sick_broker_beside_a_well_one(strategy: str) -> None:
    assert C in takers(shed(hot(NO_FAULTS), strategy))
    assert takers(shed(hot(too_many_sick(c=25.0)), strategy)) <= {B}


def test_homeless_bundle_goes_to_the_least_sick_broker() -> None:
    sick = {each: Verdict(each, FilterReason.BROKER_SICK, acted=False, why=WHY | {"times": 9.0}) for each in (A, B)}
    sick[C] = replace(sick[A], subject=C, why=WHY | {"times": 2.0})
    assert allowed_brokers(MODULAR, ask(cool(ReportFaults(sick=sick)), is_homeless=True))[0].tolist() == [
        False,
        False,
        True,
    ]


def test_why_not_names_the_sickness_among_many_sick_brokers() -> None:
    situation = DecisionInput(cool(too_many_sick(b=4.0, c=9.0)), PlannerSettings(), {}, np.random.default_rng(0))
    explained = why_not(situation, bundle(0), C)
    assert explained.verdict.verdict is FilterReason.SICKER_THAN_OTHERS
    assert explained.verdict.sentence() == (
        f"Not on {C} because healthier brokers may own it: its latency is 2500 ms, that of healthy brokers 10 ms"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_shed_to_an_idle_sick_broker(strategy: str) -> None:
    assert C in takers(shed(hot(NO_FAULTS), strategy))
    plan = shed(hot(), strategy)
    assert C not in takers(plan)
    verdict = next(each for each in plan.verdicts if each.verdict is FilterReason.BROKER_SICK)
    assert (verdict.subject, verdict.why) == (C, WHY)


def test_hot_sick_broker_is_shed() -> None:
    faults = ReportFaults(sick={A: replace(SICK.sick[C], subject=A)})
    assert takers(shed(hot(faults), "ThresholdShedder")) == {B, C}


def test_placement_and_drain_avoid_a_sick_broker() -> None:
    given, rng = hot(), np.random.default_rng(0)
    plan, _ = planner.plan_assignments(given, [bundle(50)], PlannerSettings(), {}, rng)
    assert [step.destination.broker for step in plan.steps if step.destination] == [B]
    alone = hot(policies=Policies((IsolationPolicy("mine", ("tenant/ns",), ("[ac].*",), ()),)))
    plan, _ = planner.plan_drain(alone, [A], PlannerSettings(), {}, rng)
    assert plan.steps == ()
    assert {verdict.why["broker_sick"] for verdict in plan.verdicts} == {1}


def test_pinned_bundle_waits_until_its_broker_is_well() -> None:
    controls = Controls(pinned={bundle(0): C})
    assert len(planner.plan_pins(hot(NO_FAULTS, controls=controls), PlannerSettings()).steps) == 1
    plan = planner.plan_pins(hot(controls=controls), PlannerSettings())
    assert plan.steps == ()
    (verdict,) = plan.verdicts
    assert verdict.subject == bundle(0)
    assert verdict.sentence() == (
        f"Not on {C} because it has been sick for 240 s: its latency was 2500 ms, that of its peers 10 ms"
    )
    assert verdict.remedy() == "repair or restart it, or wait until it has been healthy for 360 s more"


def test_operator_may_move_a_bundle_to_a_sick_broker() -> None:
    assert planner.find_move_refusal(hot(), bundle(0), C, PlannerSettings()) is None


def test_why_not_and_broker_explanation_name_the_sickness() -> None:
    situation = DecisionInput(hot(), PlannerSettings(), {}, np.random.default_rng(0))
    explained = why_not(situation, bundle(0), C)
    assert explained.verdict.verdict is FilterReason.BROKER_SICK
    assert explained.verdict.why["value"] == "2500 ms"
    explained_broker = explain_broker(situation, C)
    assert FilterReason.BROKER_SICK in {verdict.verdict for verdict in explained_broker.verdicts}
    assert [each.verdict for each in explained_broker.obstacles] == [FilterReason.BROKER_SICK]


def test_only_figures_of_accepted_reports_count() -> None:
    gate, weights = ReportValidator(), ResourceWeights(bandwidth_in=0, bandwidth_out=0)
    brokers = [broker(name) for name in "abcdefg"]

    def report_all(at_s: float, **figures: HealthFigures) -> ReportFaults:
        for each in brokers:
            name = each.broker[0]
            health = figures.get(name, HealthFigures(latency_ms=10.0))
            gate.judge(each, replace(report({}, cpu=10), health=health), at_s, 1_800.0)
        return gate.faults(at_s, 1_800.0, weights, 60.0)

    bad = HealthFigures(latency_ms=900.0)
    assert report_all(0.0, a=bad) is NO_FAULTS
    assert report_all(60.0, a=bad).sick.keys() == {A}
    gate.forget(A)
    assert not gate.faults(60.0, 1_800.0, weights, 60.0).sick
    assert report_all(120.0, a=bad, b=bad, c=bad) is NO_FAULTS
    faults = report_all(180.0, a=bad, b=bad, c=bad)
    assert not faults.sick
    assert [each.verdict for each in faults.remarks] == [ValidationReason.SICK_WITH_OTHERS] * 3
    distrusted = replace(report({}, cpu=10), health=bad, load=np.full(4, -1.0))
    gate.judge(brokers[5], distrusted, 180.0, 1_800.0)
    assert len(gate.faults(400.0, 1_800.0, weights, 60.0).remarks) == 3


def test_quarantine_can_be_switched_off() -> None:
    assert PlannerSettings().sick_after_s == 180.0
    assert PlannerSettings(sick_broker_quarantine_enabled=False).sick_after_s is None


def test_bundles_of_a_registration_follow_the_records() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0), bundle(1)], [owned(broker("a")), FREE])
    assert model.bundles_of(broker("a")) == [bundle(0)]
    assert model.bundles_of(broker("a", 2)) == []
    assert model.faults() is NO_FAULTS


# Stuck brokers


@pytest.mark.parametrize("rules", [MODULAR, EXTENSIBLE, SIMPLE, LEVEL])
def test_stuck_broker_gets_nothing_beside_another_eligible_broker(rules: FilterRules) -> None:
    allowed, dropped = allowed_brokers(rules, ask(cool(STUCK), is_homeless=True))
    assert (allowed.tolist(), dropped) == ([True, True, False], {"broker_stuck": 1})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_strategy_moves_anything_to_a_stuck_broker(strategy: str) -> None:
    assert C not in takers(shed(hot(STUCK), strategy))


def test_verdict_and_remedy_of_a_stuck_broker() -> None:
    faults = STUCK.with_stuck(B, "it asks for no lease")
    assert [faults.is_stuck(each) for each in (A, B, C)] == [False, True, True]
    assert not faults.with_stuck(B, "").is_stuck(B)
    verdict = faults.sick[B]
    assert verdict.sentence() == ("Nothing is moved to it because it serves none of its bundles: it asks for no lease")
    assert verdict.remedy() == "restart it, or drain it with `loadmanager admin brokers drain BROKER`"
    explained = why_not(DecisionInput(hot(STUCK), PlannerSettings(), {}, np.random.default_rng(0)), bundle(0), C)
    assert explained.verdict.sentence() == "Not on c:8080 because it serves none of its bundles: it opens none"
    assert explained.verdict.remedy() == "restart c:8080, or drain it: `loadmanager admin brokers drain c:8080`"


def test_stuck_reports_count_without_quarantine_of_sick_brokers() -> None:
    gate = ReportValidator()
    registration = broker("c")
    gate.judge(registration, replace(report({}), stuck="it opens none"), 100.0, 60.0)
    assert gate.faults(100.0, 60.0, ResourceWeights()).is_stuck(C)
    gate.judge(registration, report({}), 101.0, 60.0)
    assert not gate.faults(101.0, 60.0, ResourceWeights()).is_stuck(C)
