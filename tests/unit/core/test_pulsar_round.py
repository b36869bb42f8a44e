from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import broker, bundle, report, rng, snapshot, throughput

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import PlacementReason, SheddingReason, ValidationReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import plan_shedding
from loadmanager.core.planning.shedding_round import plan_as_pulsar
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason


def verdicts(plan: Plan) -> dict[str, Verdict]:
    return {verdict.subject: verdict for verdict in plan.verdicts}


def stalling(cpu: float = 60, controls: Controls = NO_CONTROLS, faults: ReportFaults = NO_FAULTS) -> Snapshot:
    """Broker a is hot with two bundles of the namespace; b and c have three each."""

    def other(first: int) -> BrokerReport:
        return report({bundle(first + i): throughput(1) for i in range(3)}, cpu=10)

    hot = report({bundle(1): throughput(50), bundle(2): throughput(40)}, cpu=cpu)
    return replace(snapshot({"a": hot, "b": other(3), "c": other(6)}), controls=controls, faults=faults)


def test_bundle_stays_when_its_owner_is_chosen() -> None:
    plan, state = plan_as_pulsar(stalling(), PlannerSettings(), {}, rng())
    said = verdicts(plan)[bundle(1)]
    assert plan.steps == ()
    assert (said.verdict, said.acted) == (PlacementReason.OWNER_CHOSEN, False)
    assert said.sentence() == (
        "No move because the destination chosen is its owner a:8080: 2 of 3 brokers were passed over, which have more"
        " bundles of tenant/ns than others (loadBalancerDistributeBundlesEvenlyEnabled)"
    )
    assert said.remedy() == (
        "set loadBalancerDistributeBundlesEvenlyEnabled to false: 2 more brokers are candidates then"
    )
    assert verdicts(plan)["a:8080"].verdict is ThresholdReason.BROKER_ABOVE_AVERAGE
    assert state["ThresholdShedder"]["usage"]["a:8080"] == [1, pytest.approx(0.6)]


def test_own_planner_never_chooses_the_owner() -> None:
    plan, _ = plan_shedding(stalling(), PlannerSettings(), {}, rng())
    assert [step.bundle for step in plan.steps] == [bundle(1)]


def test_overloaded_owner_is_not_preferred() -> None:
    plan, _ = plan_as_pulsar(stalling(cpu=86), PlannerSettings(), {}, rng())
    assert [step.bundle for step in plan.steps] == [bundle(1)]
    assert isinstance(plan.steps[0], Unload)
    assert plan.steps[0].destination in (broker("b"), broker("c"))


def test_verdict_of_an_owner_chosen_by_load() -> None:
    """Pulsar's placement compares message rates; the hot broker has none."""
    settings = PlannerSettings(distribute_bundles_evenly_enabled=False)
    given = snapshot(
        {
            "a": report({bundle(1): throughput(50), bundle(2): throughput(40)}, cpu=60),
            "b": report({bundle(3): (10.0, 0.0, 0.0, 0.0)}, cpu=10),
        }
    )
    said = verdicts(plan_as_pulsar(given, settings, {}, rng())[0])[bundle(1)]
    assert said.sentence() == "No move because the destination chosen is its owner a:8080, of 2 candidates"
    assert said.remedy() == ""


def test_own_controls_and_rejected_reports_are_ignored() -> None:
    doubt = Verdict("a:8080", ValidationReason.REPORT_DISTRUSTED, acted=False, why={"fault": "it is old"})
    given = stalling(
        cpu=86,
        controls=Controls(frozen="for tonight", frozen_bundles={bundle(1): "mine"}),
        faults=ReportFaults({BrokerId("a:8080"): doubt}),
    )
    assert [step.bundle for step in plan_as_pulsar(given, PlannerSettings(), {}, rng())[0].steps] == [bundle(1)]


def test_pulsar_does_not_wait_for_a_report_after_a_release() -> None:
    given = stalling(cpu=86)
    unsettled = given.brokers.with_bundles(given.bundles, np.array([False, True, True]))
    given = replace(given, brokers=unsettled, _derived={})
    assert verdicts(plan_shedding(given, PlannerSettings(), {}, rng())[0])["a:8080"].verdict is (
        SheddingReason.AWAITING_REPORT
    )
    assert [step.bundle for step in plan_as_pulsar(given, PlannerSettings(), {}, rng())[0].steps] == [bundle(1)]


def test_verdict_of_a_wanted_bundle_that_may_not_move() -> None:
    hot = report({bundle(1): throughput(50), bundle(2): throughput(40)}, cpu=60)
    given = snapshot({"a": hot, "b": report(cpu=10)}, recently_unloaded=[bundle(1)])
    plan, _ = plan_as_pulsar(given, PlannerSettings(), {}, rng(), [bundle(1), bundle(2), bundle(99)])
    assert verdicts(plan)[bundle(1)].verdict is SheddingReason.RECENTLY_UNLOADED
    assert [step.bundle for step in plan.steps] == [bundle(2)]
    assert bundle(99) not in verdicts(plan)


def test_wanted_bundle_that_may_move_gets_no_verdict() -> None:
    given = snapshot({"a": report([bundle(1), bundle(2)], cpu=20), "b": report(cpu=20)})
    plan, _ = plan_as_pulsar(given, PlannerSettings(), {}, rng(), [bundle(1)])
    assert set(verdicts(plan)) == {"a:8080", "b:8080"}
