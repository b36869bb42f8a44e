from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import Load, broker, bundle, report

from loadmanager.core.diagnosis.explanation import DecisionInput, explain_bundle
from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.core.domain.reasons import ValidationReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BANDWIDTH_IN, BANDWIDTH_OUT, BrokerReport
from loadmanager.core.model.report_validation import NO_FAULTS, ReportValidator, ValidatedReport
from loadmanager.core.planning.planner import plan_shedding

HOUR_S = 3_600.0
MOST_AGE_S = 1_800.0
A, B = broker("a"), broker("b")
LOAD: Load = (1_000.0, 1_000.0, 50e6, 50e6)
CPU_AND_BANDWIDTH = ResourceWeights()


def a_report(**changes: object) -> BrokerReport:
    """A valid report."""
    good = report({bundle(0): LOAD}, cpu=(300, 800), bandwidth_in=(400, 1_000), bandwidth_out=(400, 1_000))
    return replace(good, **changes)  # type: ignore[arg-type]  # fields of a report


def with_usage(resource: int, used: float, limit: float) -> BrokerReport:
    usage = a_report().usage.copy()
    usage[resource] = used, limit
    return a_report(usage=usage)


def with_limits(factor: float) -> BrokerReport:
    usage = a_report().usage.copy()
    usage[:, 1] *= factor
    usage[:, 0] *= min(factor, 1.0)
    return a_report(usage=usage)


def judged(gate: ReportValidator, given: BrokerReport, at_s: float = HOUR_S) -> ValidatedReport:
    return gate.judge(A, given, at_s, MOST_AGE_S)


def test_good_report_is_accepted_unchanged() -> None:
    gate, given = ReportValidator(), a_report()
    found = judged(gate, given)
    assert (found.report, found.counts, found.fault) == (given, True, None)
    assert gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH) is NO_FAULTS
    assert gate.find_fault(A.broker) is None
    assert gate.find_fault(B.broker) is None


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (a_report(load=np.array([np.nan, 0.0, 0.0, 0.0])), "it has numbers that are negative, or none"),
        (a_report(bundle_load=np.array([[-1.0, 0.0, 0.0, 0.0]])), "it has numbers that are negative, or none"),
        (a_report(last_update_ms=1_000_000), "it is 2600 s old"),
        (
            a_report(last_update_ms=90_000_000),
            "it is from 86400 s in the future: the clock of the broker or of the leader is wrong",
        ),
        (with_usage(BANDWIDTH_IN, 2_500, 1_000), "it uses 250 % of its bandwidth in"),
        (a_report(load=np.full(4, 1e-20)), "its rates have decayed to 1e-20"),
        (a_report(load=np.array(LOAD) * 10), "it carries 2e+04 messages/s and its bundles 2000"),
        (a_report(load=np.array([1e3, 1e3, 5e8, 5e8])), "it carries 953.7 MiB/s and its bundles 95.37"),
        (a_report(load=np.zeros(4)), "it carries 0 messages/s and its bundles 2000"),
    ],
)
def test_implausible_report_is_rejected_and_the_last_good_one_counts(given: BrokerReport, fault: str) -> None:
    gate = ReportValidator()
    assert judged(gate, a_report()).counts
    found = judged(gate, given)
    assert (found.counts, found.fault, gate.find_fault(A.broker)) == (False, fault, fault)
    verdict = gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH).rejected[A.broker]
    assert verdict.verdict is ValidationReason.REPORT_DISTRUSTED
    assert verdict.sentence() == (
        f"Neither gives nor gets bundles because its report is implausible: {fault}; its last plausible load counts"
    )
    assert judged(gate, a_report()).fault is None
    assert not gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH).rejected


@pytest.mark.parametrize(
    "given",
    [
        a_report(last_update_ms=2_000_000),
        with_usage(BANDWIDTH_IN, 1_900, 1_000),
        a_report(load=np.array(LOAD) * 1.9),
        report({bundle(0): (1.0, 1.0, 10.0, 10.0)}, load=(100.0, 100.0, 1e5, 1e5), cpu=(1, 800)),
        report({bundle(0): (0.0, 0.0, 0.0, 0.0)}, cpu=(1, 800)),
    ],
)
def test_unusual_but_possible_report_is_accepted(given: BrokerReport) -> None:
    assert judged(ReportValidator(), given).fault is None


def test_clock_may_be_a_minute_ahead() -> None:
    assert judged(ReportValidator(), a_report(last_update_ms=3_660_000)).fault is None
    assert judged(ReportValidator(), a_report(last_update_ms=3_660_001)).fault is not None


def test_first_report_counts_even_if_implausible() -> None:
    gate = ReportValidator()
    found = judged(gate, a_report(load=np.array(LOAD) * 10))
    assert found.counts
    assert found.fault is not None


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_changed_capacity_is_accepted_after_a_while(factor: float) -> None:
    gate, changed = ReportValidator(), with_limits(factor)
    judged(gate, a_report())
    found = judged(gate, changed)
    assert found.fault == f"its limit of CPU is {factor:.3g} times what it was"
    assert judged(gate, changed, HOUR_S + MOST_AGE_S).fault is not None
    assert judged(gate, changed, HOUR_S + MOST_AGE_S + 1).fault is None
    assert judged(gate, changed, HOUR_S + MOST_AGE_S + 2).fault is None


def test_restarted_broker_may_have_another_capacity() -> None:
    gate = ReportValidator()
    judged(gate, a_report())
    assert gate.judge(broker("a", incarnation=2), with_limits(10), HOUR_S, MOST_AGE_S).fault is None


def test_missing_limit_is_replaced_by_the_last_one_with_a_remark() -> None:
    gate = ReportValidator()
    judged(gate, a_report())
    found = judged(gate, with_usage(BANDWIDTH_OUT, 500, 0))
    assert found.fault is None
    assert found.report.usage[BANDWIDTH_OUT].tolist() == [500, 1_000]
    (remark,) = gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH).remarks
    assert (remark.subject, remark.verdict) == (A.broker, ValidationReason.LIMIT_UNKNOWN)
    assert remark.sentence() == "The limits of bandwidth out are no longer reported; the last known ones count"


def test_never_known_limit_of_a_weighted_resource_is_remarked() -> None:
    gate = ReportValidator()
    judged(gate, with_usage(BANDWIDTH_OUT, 500, 0))
    judged(gate, with_usage(BANDWIDTH_OUT, 500, 0))
    (remark,) = gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH).remarks
    assert remark.sentence() == "The limits of bandwidth out are unknown, so their usage does not count: declare them"
    cpu_alone = ResourceWeights(1.0, 0.0, 0.0, 0.0)
    assert gate.faults(HOUR_S, MOST_AGE_S, cpu_alone) is NO_FAULTS


def test_silent_broker_is_rejected_until_it_reports() -> None:
    gate = ReportValidator()
    judged(gate, a_report())
    assert not gate.faults(HOUR_S + MOST_AGE_S, MOST_AGE_S, CPU_AND_BANDWIDTH).rejected
    late_s = HOUR_S + MOST_AGE_S + 5
    verdict = gate.faults(late_s, MOST_AGE_S, CPU_AND_BANDWIDTH).rejected[A.broker]
    assert verdict.why == {"fault": "it has not reported for 1805 s"}
    judged(gate, a_report(), late_s)
    assert not gate.faults(late_s, MOST_AGE_S, CPU_AND_BANDWIDTH).rejected


def test_removed_broker_is_forgotten() -> None:
    gate = ReportValidator()
    judged(gate, a_report(load=np.zeros(4)))
    gate.forget(A.broker)
    gate.forget(B.broker)
    assert gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH) is NO_FAULTS


def a_model(gate: ReportValidator, hot: BrokerReport) -> ClusterModel:
    """Three brokers; one is hot, and faults of its report are set."""
    model, names = ClusterModel(), [bundle(number) for number in range(4)]
    owned = Ownership(OwnershipState.OWNED, A, None, 1)
    model.set_namespace("tenant/ns", names, [owned] * 4)
    model.apply_report(A, hot)
    for other in (B, broker("c")):
        model.apply_report(other, report(cpu=(10, 800)))
    judged(gate, hot)
    model.set_faults(gate.faults(HOUR_S, MOST_AGE_S, CPU_AND_BANDWIDTH))
    return model


def hot_report(**changes: object) -> BrokerReport:
    given = report(
        {bundle(number): LOAD for number in range(4)}, cpu=(760, 800), bandwidth_in=(0, 1), bandwidth_out=(0, 1)
    )
    return replace(given, **changes)  # type: ignore[arg-type]  # fields of a report


def test_shedding_skips_a_broker_with_a_rejected_report() -> None:
    settings, rng = PlannerSettings(), np.random.default_rng(0)
    trusted = a_model(ReportValidator(), hot_report()).snapshot(HOUR_S, 0.0)
    assert plan_shedding(trusted, settings, {}, rng)[0].steps
    model = a_model(ReportValidator(), hot_report(load=np.zeros(4)))
    plan = plan_shedding(model.snapshot(HOUR_S, 0.0), settings, {}, rng)[0]
    assert not plan.steps
    reasons = {(verdict.subject, verdict.verdict) for verdict in plan.verdicts}
    assert (A.broker, ValidationReason.REPORT_DISTRUSTED) in reasons


def test_bundle_on_a_broker_with_a_rejected_report_is_explained() -> None:
    model = a_model(ReportValidator(), hot_report(load=np.zeros(4)))
    situation = DecisionInput(model.snapshot(HOUR_S, 0.0), PlannerSettings(), {}, np.random.default_rng(0))
    explained = explain_bundle(situation, bundle(0)).shedding
    assert explained.stays is not None
    assert (explained.stays.verdict, explained.stays_by_rule) == (ValidationReason.REPORT_DISTRUSTED, True)
    assert explained.stays.remedy() == "correct what its agent reports, or restart the broker"


def test_rejected_report_of_an_unknown_broker_has_no_verdict() -> None:
    model = a_model(ReportValidator(), hot_report(load=np.zeros(4)))
    model.remove_broker(A.broker)
    plan = plan_shedding(model.snapshot(HOUR_S, 0.0), PlannerSettings(), {}, np.random.default_rng(0))[0]
    assert ValidationReason.REPORT_DISTRUSTED not in {verdict.verdict for verdict in plan.verdicts}


def test_equal_faults_do_not_change_the_revision() -> None:
    model = ClusterModel()
    before = model.revision
    model.set_faults(NO_FAULTS)
    assert model.revision == before
