from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import averages, broker, bundle, owned, releasing, report, rng, snapshot, throughput

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.plan import Assign, Plan, Unload
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason, Reason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import choose_destination, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.placement.least_long_term_message_rate import LongTermRateReason
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason

OVERLOAD = PlannerSettings(shedding_strategy="OverloadShedder")


def reasons(plan: Plan) -> dict[str, Reason]:
    return {verdict.subject: verdict.verdict for verdict in plan.verdicts}


def hot_a(**others: BrokerReport) -> Snapshot:
    """`a` is overloaded with two bundles to shed."""
    bundles = {bundle(i, f"tenant/ns-{i}"): throughput(i) for i in range(1, 11)}
    return snapshot({"a": report(bundles, cpu=99.9), **others})


def test_shed_bundles_move_with_verdicts() -> None:
    plan, _ = plan_shedding(hot_a(b=report(cpu=10)), OVERLOAD, {}, rng())
    last, second = bundle(10, "tenant/ns-10"), bundle(9, "tenant/ns-9")
    assert plan.steps == (
        Unload(last, broker("a"), broker("b"), OverloadReason.BROKER_OVERLOADED),
        Unload(second, broker("a"), broker("b"), OverloadReason.BROKER_OVERLOADED),
    )
    assert reasons(plan) == {
        "a:8080": OverloadReason.BROKER_OVERLOADED,
        "b:8080": SheddingReason.BELOW_THRESHOLD,
        last: LongTermRateReason.LEAST_LONG_TERM_MESSAGE_RATE,
        second: LongTermRateReason.LEAST_LONG_TERM_MESSAGE_RATE,
    }
    assert all(verdict.acted for verdict in plan.verdicts if verdict.subject in (last, second))


def test_moves_of_one_round_are_spread_by_load() -> None:
    bundles = {bundle(i, f"tenant/ns-{i:02d}"): (100.0, 0.0, 1000.0, 0.0) for i in range(50)}
    given = snapshot({"a": report(bundles, cpu=140), "b": report(cpu=10), "c": report(cpu=10)})
    plan, _ = plan_shedding(given, OVERLOAD, {}, rng())
    destinations = [step.destination for step in plan.steps]
    assert len(destinations) == 30
    assert destinations.count(broker("b")) == destinations.count(broker("c")) == 15


def test_source_is_never_the_destination() -> None:
    given = hot_a(b=report({bundle(1, "tenant/busy"): (9999, 0, 0, 0)}, cpu=10))
    plan, _ = plan_shedding(given, replace(OVERLOAD, broker_overloaded_threshold_percentage=50), {}, rng())
    assert {step.destination for step in plan.steps} == {broker("b")}


def test_bundles_of_excluded_namespaces_stay() -> None:
    settings = replace(OVERLOAD, shedding_excluded_namespaces=frozenset({"tenant/ns-10"}))
    plan, _ = plan_shedding(hot_a(b=report(cpu=10)), settings, {}, rng())
    assert [step.bundle for step in plan.steps] == [bundle(9, "tenant/ns-9")]
    excluded = next(verdict for verdict in plan.verdicts if verdict.subject == bundle(10, "tenant/ns-10"))
    assert not excluded.acted
    assert excluded.sentence() == "No move because tenant/ns-10 is in loadBalancerSheddingExcludedNamespaces"


def test_bundle_without_another_eligible_broker_stays() -> None:
    plan, _ = plan_shedding(hot_a(b=report(persistent_enabled=False)), OVERLOAD, {}, rng())
    assert plan.steps == ()
    verdict = plan.verdicts[-1]
    assert (verdict.verdict, verdict.why["persistence_disabled"]) == (PlacementReason.NO_OTHER_BROKER, 1)


@pytest.mark.parametrize(
    "settings", [replace(OVERLOAD, load_balancer_enabled=False), replace(OVERLOAD, shedding_enabled=False)]
)
def test_disabled_round_has_a_verdict(settings: PlannerSettings) -> None:
    plan, state = plan_shedding(hot_a(b=report()), settings, {"kept": 1}, rng())
    assert (plan.steps, state) == ((), {"kept": 1})
    assert reasons(plan) == {"cluster": SheddingReason.SHEDDING_DISABLED}
    assert "Enabled false" in plan.verdicts[0].sentence()


def test_single_broker_sheds_nothing() -> None:
    plan, _ = plan_shedding(hot_a(), OVERLOAD, {}, rng())
    assert reasons(plan) == {"cluster": SheddingReason.ONE_BROKER_ONLY}


def test_state_of_a_strategy_is_stored_under_its_name() -> None:
    _, state = plan_shedding(hot_a(b=report(cpu=10)), PlannerSettings(), {"other": 1}, rng())
    assert state["ThresholdShedder"]["usage"]["b:8080"][1] == pytest.approx(0.1)
    assert state["other"] == 1


def free_bundles(number: int, **reports: BrokerReport) -> tuple[Snapshot, list[str]]:
    model = ClusterModel()
    names = [bundle(i) for i in range(number)]
    model.set_namespace("tenant/ns", names, [FREE] * number)
    for name, given in reports.items():
        model.apply_report(broker(name), given)
    return model.snapshot(5.0, 0.0), names


def test_burst_of_lookups_is_spread_over_the_brokers() -> None:
    given, names = free_bundles(9, a=report(), b=report(), c=report())
    plan, _ = plan_assignments(given, names, PlannerSettings(distribute_bundles_evenly_enabled=False), {}, rng())
    destinations = [step.destination for step in plan.steps]
    assert sorted(destinations.count(broker(name)) for name in "abc") == [3, 3, 3]
    assert (plan.revision, plan.taken_at_s) == (given.revision, 5.0)


def test_namespace_is_spread_evenly_despite_different_loads() -> None:
    given, names = free_bundles(6, a=report(), b=report({bundle(1, "tenant/busy"): (9999, 0, 0, 0)}))
    plan, _ = plan_assignments(given, names, PlannerSettings(), {}, rng())
    destinations = [step.destination for step in plan.steps]
    assert destinations.count(broker("a")) == destinations.count(broker("b")) == 3


def test_bundle_requested_twice_is_assigned_once() -> None:
    given, names = free_bundles(1, a=report())
    plan, _ = plan_assignments(given, names * 2, PlannerSettings(), {}, rng())
    assert plan.steps == (Assign(names[0], broker("a"), LongTermRateReason.LEAST_LONG_TERM_MESSAGE_RATE),)


def test_unknown_bundle_is_assigned_with_the_default_load() -> None:
    busy = bundle(5, "tenant/busy")
    given = snapshot({"a": report(), "b": report({busy: (120, 0, 0, 0)})})
    new = [bundle(i, f"tenant/new-{i}") for i in range(3)]
    plan, _ = plan_assignments(given, new, PlannerSettings(), {}, rng())
    assert [step.destination for step in plan.steps] == [broker("a"), broker("a"), broker("b")]


def test_owned_or_releasing_bundle_is_not_assigned() -> None:
    model = ClusterModel()
    names = [bundle(i) for i in range(3)]
    a, b = broker("a"), broker("b")
    model.set_namespace("tenant/ns", names, [owned(a), releasing(a, b), releasing(a)])
    model.apply_report(a, report())
    model.apply_report(b, report())
    plan, _ = plan_assignments(model.snapshot(0, 0), names, PlannerSettings(), {}, rng())
    assert plan.steps == ()
    assert [(verdict.verdict, verdict.why["broker"]) for verdict in plan.verdicts] == [
        (PlacementReason.NOT_FREE, "a:8080"),
        (PlacementReason.NOT_FREE, "b:8080"),
        (PlacementReason.NOT_FREE, ""),
    ]


def test_without_brokers_a_lookup_gets_no_owner() -> None:
    given, names = free_bundles(1)
    plan, _ = plan_assignments(given, names, PlannerSettings(), {}, rng())
    assert plan.steps == ()
    assert plan.verdicts[0].sentence() == "Not placed because none of 0 registered brokers may own it"


def test_non_persistent_topic_needs_a_broker_that_serves_them() -> None:
    given, names = free_bundles(2, a=report(non_persistent_enabled=False), b=report(persistent_enabled=False))
    plan, _ = plan_assignments(given, names, PlannerSettings(), {}, rng(), non_persistent={names[0]})
    assert [step.destination for step in plan.steps] == [broker("b"), broker("a")]


def test_q12_overloaded_choice_is_repeated_within_the_topic_limit() -> None:
    """Pulsar's second choice ignores the topic limit too, and would take `full`, which has the least message rate."""
    model = ClusterModel()
    first, second = bundle(1), bundle(7)
    model.set_namespace("tenant/ns", [first, second], [FREE, owned(broker("other"))])
    model.apply_report(broker("hot"), report(cpu=90))
    model.apply_report(broker("other"), report({second: (500, 0, 0, 0)}, cpu=10))
    model.apply_report(broker("full"), report(topics=60_000, cpu=10))
    plan, _ = plan_assignments(model.snapshot(0, 0), [first], PlannerSettings(), {}, rng())
    assert [step.destination for step in plan.steps] == [broker("other")]


def test_all_overloaded_one_is_drawn_with_a_verdict() -> None:
    given, names = free_bundles(1, a=report(cpu=90), b=report(cpu=95))
    plan, _ = plan_assignments(given, names, PlannerSettings(), {}, rng())
    assert len(plan.steps) == 1
    assert plan.verdicts[0].verdict is PlacementReason.ALL_BROKERS_OVERLOADED
    assert "at random because each of 2 candidates" in plan.verdicts[0].sentence()


def test_destination_is_chosen_with_and_without_an_excluded_owner() -> None:
    given = snapshot({"a": report([bundle(1)]), "b": report([bundle(2)])}, {bundle(2): averages((9, 9, 9, 9))})
    chosen, verdict, _ = choose_destination(given, bundle(1), broker("a").broker, PlannerSettings(), {}, rng())
    assert (chosen, verdict.acted) == (broker("b"), True)
    chosen, verdict, _ = choose_destination(given, bundle(1), None, PlannerSettings(), {}, rng())
    assert chosen == broker("a")


def test_verdict_without_a_destination_depends_on_the_source() -> None:
    alone = snapshot({"a": report([bundle(1)])})
    chosen, verdict, _ = choose_destination(alone, bundle(1), broker("a").broker, PlannerSettings(), {}, rng())
    assert (chosen, verdict.verdict) == (None, PlacementReason.NO_OTHER_BROKER)
    chosen, verdict, _ = choose_destination(snapshot({}), bundle(1), None, PlannerSettings(), {}, rng())
    assert (chosen, verdict.verdict) == (None, PlacementReason.NO_BROKER_AVAILABLE)
    chosen, verdict, _ = choose_destination(alone, bundle(1), broker("gone").broker, PlannerSettings(), {}, rng())
    assert chosen == broker("a")


class InTurn:
    """A round-robin strategy that stores its turn."""

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle, projection, rng  # part of the protocol
        turn = state.get("turn", 0)
        row = int(candidates[turn % len(candidates)])
        return Placement(row, candidates, OwnershipReason.LOOKUP, {}, {"turn": turn + 1})


def test_placement_state_is_passed_on_and_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACEMENT_STRATEGIES, "InTurn", lambda _: InTurn())
    settings = PlannerSettings(placement_strategy="InTurn", distribute_bundles_evenly_enabled=False)
    given, names = free_bundles(3, a=report(), b=report())
    plan, state = plan_assignments(given, names, settings, {"InTurn": {"turn": 1}}, rng())
    assert [step.destination for step in plan.steps] == [broker("b"), broker("a"), broker("b")]
    assert state == {"InTurn": {"turn": 4}}
