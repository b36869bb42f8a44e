from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.builders import MIB, averages, broker, bundle, owned, releasing, report, snapshot, throughput

from loadmanager.core.diagnosis.explanation import DecisionInput, explain_broker, explain_bundle, why_not
from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import FREE, Ownership
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import (
    CertificateReason,
    ChurnReason,
    ExplanationReason,
    FilterReason,
    PlacementReason,
    Reason,
    SheddingReason,
)
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import NO_FAULTS
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn

A, B, C = (BrokerId(f"{name}:8080") for name in "abc")
OVERLOAD = PlannerSettings(shedding_strategy="OverloadShedder", max_load_moved_per_cycle_percentage=100)
HEAVY, LIGHT = bundle(9, "tenant/ns-9"), bundle(1, "tenant/ns-1")


def situation(
    given: Snapshot, settings: PlannerSettings = OVERLOAD, state: Mapping[str, Any] | None = None
) -> DecisionInput:
    return DecisionInput(given, settings, dict(state or {}), np.random.default_rng(3))


def under(given: Snapshot, **controls: Any) -> DecisionInput:  # noqa: ANN401 - whatever a control may be
    return situation(replace(given, controls=Controls(**controls)))


def hot_a(recently_unloaded: tuple[str, ...] = (), **others: BrokerReport) -> Snapshot:
    """`a` is overloaded, and sheds the heaviest of its bundles."""
    loads = {bundle(i, f"tenant/ns-{i}"): throughput(i) for i in (1, 2, 9)}
    others = others or {"b": report(cpu=10), "c": report({bundle(5, "tenant/c"): (10, 0, 0, 0)}, cpu=20)}
    return snapshot({"a": report(loads, cpu=90), **others}, recently_unloaded=recently_unloaded, taken_at_s=100.0)


def model(**bundles: Any) -> ClusterModel:  # noqa: ANN401 - the owner of each bundle of one namespace
    """Brokers a, b and c; a reports the bundles in `reported`."""
    made = ClusterModel()
    names = [bundle(i) for i in range(len(bundles["ownerships"]))]
    made.set_namespace("tenant/ns", names, bundles["ownerships"])
    made.apply_report(broker("a"), report([names[i] for i in bundles.get("reported", ())]))
    made.apply_report(broker("b"), report())
    made.apply_report(broker("c"), report())
    return made


def taken(made: ClusterModel) -> Snapshot:
    return made.snapshot(0.0, 0.0)


# Shedding of a bundle.


def test_bundle_about_to_move_is_explained_with_destination_and_reason() -> None:
    explained = explain_bundle(situation(hot_a()), HEAVY)
    assert explained.shedding.would_move
    assert explained.shedding.destination == B
    assert explained.shedding.stays is None
    (because,) = explained.shedding.broker_verdicts
    assert because.sentence().startswith("Shed 1 of 3 bundles because usage 90 % is not below")


def test_movable_bundle_stays_because_others_are_taken() -> None:
    explained = explain_bundle(situation(hot_a()), LIGHT)
    assert not explained.shedding.would_move
    assert not explained.shedding.stays_by_rule
    assert explained.shedding.stays is not None
    assert explained.shedding.stays.sentence() == "No move because a round takes 1 others from a:8080"


def test_bundle_stays_with_the_verdict_of_its_broker() -> None:
    explained = explain_bundle(situation(hot_a()), bundle(5, "tenant/c"))
    assert explained.shedding.stays is not None
    assert explained.shedding.stays.sentence() == "No move because a round takes nothing from c:8080"
    assert [each.verdict for each in explained.shedding.broker_verdicts] == [SheddingReason.BELOW_THRESHOLD]


RULES: list[tuple[dict[str, Any], Reason, str]] = [
    ({"draining": {A: DrainOrder(40.0)}}, FilterReason.BROKER_DRAINING, "stop its drain"),
    ({"pinned": {HEAVY: A}}, SheddingReason.BUNDLE_PINNED, "unpin it"),
    ({"frozen_bundles": {HEAVY: "audit"}}, SheddingReason.BUNDLE_FROZEN, "unfreeze it"),
    ({"frozen": "audit"}, SheddingReason.SHEDDING_FROZEN, "loadmanager admin balancer unfreeze"),
    ({"excluded": frozenset({B, C})}, PlacementReason.NO_OTHER_BROKER, "start another broker that may own it"),
]


@pytest.mark.parametrize(("controls", "reason", "change"), RULES)
def test_controls_keep_a_bundle(controls: dict[str, Any], reason: Reason, change: str) -> None:
    shedding = explain_bundle(under(hot_a(), **controls), HEAVY).shedding
    assert not shedding.would_move
    assert shedding.stays_by_rule
    assert shedding.stays is not None
    assert (shedding.stays.verdict, shedding.stays.remedy()) == (reason, change)


SETTINGS = [
    (replace(OVERLOAD, shedding_enabled=False), SheddingReason.SHEDDING_DISABLED),
    (replace(OVERLOAD, shedding_excluded_namespaces=frozenset({"tenant/ns-9"})), SheddingReason.NAMESPACE_EXCLUDED),
    (replace(OVERLOAD, max_load_moved_per_hour_percentage=10), ChurnReason.MOVED_ENOUGH_THIS_HOUR),
]


@pytest.mark.parametrize(("settings", "reason"), SETTINGS)
def test_settings_keep_a_bundle(settings: PlannerSettings, reason: Reason) -> None:
    shedding = explain_bundle(situation(hot_a(), settings), HEAVY).shedding
    assert shedding.stays_by_rule
    assert shedding.stays is not None
    assert shedding.stays.verdict is reason


def test_grace_period_keeps_a_bundle() -> None:
    shedding = explain_bundle(situation(hot_a(recently_unloaded=(HEAVY,))), HEAVY).shedding
    assert shedding.stays is not None
    assert shedding.stays.sentence() == "No move because it was unloaded within the grace period"
    assert "loadBalancerSheddingGracePeriodMinutes" in shedding.stays.remedy()


def test_self_test_bundle_stays() -> None:
    own = bundle(1, "pulsar/a:8080")
    shedding = explain_bundle(situation(snapshot({"a": report([own]), "b": report()})), own).shedding
    assert shedding.stays is not None
    assert shedding.stays.verdict is SheddingReason.SELF_TEST_BUNDLE


def test_anti_affinity_keeps_a_bundle() -> None:
    policies = Policies(anti_affinity_groups={"tenant/x": "g", "tenant/y": "g"})
    given = snapshot(
        {"a": report([bundle(1, "tenant/x"), bundle(2, "tenant/z")]), "b": report([bundle(1, "tenant/y")])},
        policies=policies,
    )
    stays = explain_bundle(situation(given), bundle(1, "tenant/x")).shedding.stays
    assert stays is not None
    assert stays.verdict is SheddingReason.ANTI_AFFINITY_KEPT
    assert stays.remedy() == "start a broker that may own it and has fewer than 1 namespaces of g"


def test_churn_limits_keep_a_returning_bundle() -> None:
    given = hot_a(b=report(cpu=10))
    state, _ = churn.noted({}, HEAVY, broker("b"), broker("a"), 0.5, OVERLOAD, at_s=given.taken_at_s - 60, is_own=True)
    stays = explain_bundle(situation(given, state=state), HEAVY).shedding.stays
    assert stays is not None
    assert stays.verdict is ChurnReason.NO_RETURN
    assert stays.sentence().startswith("No move because it would return to b:8080, which it left 60 s ago")


def test_refusal_by_the_round_is_explained() -> None:
    """Each of the two fits into the budget of a round, both together do not."""
    loads = {bundle(i, f"tenant/ns-{i}"): throughput(10) for i in (1, 2, 3, 4)}
    given = snapshot({"a": report(loads, cpu=120), "b": report(cpu=10), "c": report(cpu=20)})
    explained = explain_bundle(
        situation(given, replace(OVERLOAD, max_load_moved_per_cycle_percentage=30)), bundle(2, "tenant/ns-2")
    )
    assert explained.shedding.stays is not None
    assert explained.shedding.stays.verdict is ChurnReason.MOVED_ENOUGH_THIS_ROUND
    assert not explained.shedding.stays_by_rule


@pytest.mark.parametrize(
    ("ownership", "reported", "reason", "sentence"),
    [
        (FREE, (), SheddingReason.NO_OWNER, "No move because it has no owner"),
        (
            owned(broker("b")),
            (),
            SheddingReason.NOT_REPORTED,
            "No move because b:8080 has not reported it since it received it",
        ),
        (
            releasing(broker("a"), broker("b")),
            (0,),
            SheddingReason.MOVE_IN_PROGRESS,
            "No move because it is moving from a:8080 to b:8080",
        ),
        (
            releasing(broker("a")),
            (0,),
            SheddingReason.MOVE_IN_PROGRESS,
            "No move because its owner is releasing it; the next lookup assigns it",
        ),
    ],
)
def test_unsettled_bundle(ownership: Ownership, reported: tuple[int, ...], reason: Reason, sentence: str) -> None:
    given = taken(model(ownerships=[ownership], reported=reported))
    explained = explain_bundle(situation(given), bundle(0))
    assert explained.shedding.stays is not None
    assert (explained.shedding.stays.verdict, explained.shedding.stays.sentence()) == (reason, sentence)


# Load and placement of a bundle.


def test_load_is_explained_with_its_shares() -> None:
    known = {HEAVY: averages((4, 0, 3 * MIB, 0), (2, 0, MIB, 0), topics=7), LIGHT: averages((0, 0, MIB, 0))}
    given = snapshot({"a": report([HEAVY, LIGHT]), "b": report({bundle(3): (0, 0, 4 * MIB, 0)})}, known)
    load = explain_bundle(situation(given), HEAVY)
    assert load.short.tolist() == [4, 0, 3 * MIB, 0]
    assert load.long.tolist() == [2, 0, MIB, 0]
    assert load.topics == 7
    assert (load.share_of_broker, load.share_of_cluster) == (0.75, 0.375)


def test_bundle_without_a_broker_or_load_has_no_share() -> None:
    free = explain_bundle(situation(taken(model(ownerships=[FREE]))), bundle(0))
    assert (free.share_of_broker, free.share_of_cluster) == (0, 0)
    idle = snapshot({"a": report([LIGHT]), "b": report()}, {LIGHT: averages((0, 0, 0, 0))})
    assert explain_bundle(situation(idle), LIGHT).share_of_broker == 0


def test_runner_up_is_explained_with_its_figures() -> None:
    placement = explain_bundle(situation(hot_a()), HEAVY).placement
    assert placement.chosen == B
    assert placement.runner_up is not None
    assert placement.runner_up.sentence() == (
        "Placed because c:8080 has the least long-term message rate, 10 messages/s, of 1 candidates"
    )
    assert FilterReason.BROKER_EXCLUDED.value not in placement.runner_up.why
    rates = {each.broker_id: each.msg_rate_per_s for each in placement.standings}
    assert rates == {A: 0, B: 0, C: 10}


def test_stuck_broker_is_counted_as_kept_away() -> None:
    given = replace(hot_a(), faults=NO_FAULTS.with_stuck(C, "it does not answer"))
    assert explain_bundle(situation(given), HEAVY).placement.dropped == {"broker_stuck": 1}


def test_excluded_brokers_are_counted_for_the_runner_up() -> None:
    placement = explain_bundle(under(hot_a(d=report(), b=report(), c=report(cpu=20)), excluded={C}), HEAVY).placement
    assert placement.dropped == {"broker_excluded": 1}
    assert placement.runner_up is not None
    assert placement.runner_up.why["broker_excluded"] == 1


def test_no_runner_up_with_one_candidate_and_no_winner_with_none() -> None:
    placement = explain_bundle(situation(hot_a(b=report())), HEAVY).placement
    assert (placement.chosen, placement.runner_up) == (B, None)
    nobody = explain_bundle(situation(snapshot({"a": report([LIGHT])})), LIGHT).placement
    assert (nobody.chosen, nobody.runner_up, nobody.drawn_from) == (None, None, ())
    assert nobody.verdict.verdict is PlacementReason.NO_OTHER_BROKER


def test_unknown_bundle_is_refused() -> None:
    with pytest.raises(LookupError, match="tenant/none/0x00000001_0x00000002 is not known"):
        explain_bundle(situation(hot_a()), bundle(1, "tenant/none"))


# Brokers.


def test_shedding_broker_is_explained_with_steps_and_figures() -> None:
    explained = explain_broker(situation(hot_a()), A)
    assert [step.bundle for step in explained.steps] == [HEAVY]
    assert explained.margin is None
    assert explained.thresholds == {"loadBalancerBrokerOverloadedThresholdPercentage": 85}
    np.testing.assert_array_equal(explained.usage_percent, [90, *[np.nan] * 4], "the others have no limit")
    assert explained.is_overloaded
    assert explained.strategy == "OverloadShedder"
    assert (explained.standing.bundles, explained.standing.mib_per_s) == (3, 24)
    assert explained.certificate.verdict is CertificateReason.PLAN_CERTIFIED
    assert explain_broker(situation(hot_a()), B).certificate.why == explained.certificate.why


def test_broker_below_the_threshold_has_its_margin() -> None:
    explained = explain_broker(situation(hot_a()), B)
    assert explained.steps == ()
    assert not explained.is_overloaded
    assert explained.margin is not None
    assert explained.margin.sentence() == "A round would shed if usage were 75 points higher"
    assert explained.verdicts[0].verdict is SheddingReason.BELOW_THRESHOLD


def test_broker_above_the_threshold_that_cannot_shed_has_no_margin() -> None:
    alone = snapshot({"a": report([LIGHT], cpu=90), "b": report()})
    explained = explain_broker(situation(alone), A)
    assert (explained.steps, explained.margin) == ((), None)
    assert explained.verdicts[0].verdict is SheddingReason.SINGLE_BUNDLE


def test_a_drained_broker_has_no_margin_and_takes_no_bundles() -> None:
    explained = explain_broker(under(hot_a(), draining={B: DrainOrder(40.0)}), B)
    assert explained.margin is None
    assert [each.sentence() for each in explained.obstacles] == ["Not on b:8080 because it has been draining for 60 s"]
    assert [each.verdict for each in explained.verdicts] == [FilterReason.BROKER_DRAINING]


def test_held_off_broker_has_the_remaining_wait() -> None:
    assert explain_broker(under(hot_a(), held_off={B: 130.0}), B).waits_s == 30.0


def test_broker_without_a_report_is_refused() -> None:
    with pytest.raises(LookupError, match="broker z:8080 has not reported"):
        explain_broker(situation(hot_a()), BrokerId("z:8080"))


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("ThresholdShedder", "A round would shed if usage were 55 points higher"),
        ("AvgShedder", "Round 2 from now would shed if nothing changes"),
        ("TransferShedder", "Round 4 from now would shed if usage were 60 points higher"),
        ("UniformLoadShedder", "A round would shed with 151 messages/s more, or 5 MiB/s more"),
    ],
)
def test_margin_of_each_strategy(strategy: str, sentence: str) -> None:
    loads = {bundle(1): (0.0, 0.0, 0.0, 0.0), bundle(2): (0.0, 0.0, 0.0, 0.0)}
    given = snapshot({"a": report(cpu=0), "b": report(loads, cpu=60)})
    if strategy == "ThresholdShedder":
        given = snapshot({"a": report(cpu=50), "b": report(loads, cpu=15)})
    if strategy == "TransferShedder":
        given = snapshot({"a": report(cpu=30), "b": report(loads, cpu=20)})
    if strategy == "UniformLoadShedder":
        given = snapshot({"a": report(load=(0, 101, 1.25 * MIB, 0)), "b": report(loads, load=(0, 0.5, 0, 0))})
    settings = PlannerSettings(shedding_strategy=strategy)
    margin = explain_broker(situation(given, settings), B).margin
    assert margin is not None
    assert margin.sentence() == sentence


# Why not.


def test_why_not_names_the_first_filter_and_lists_all_others() -> None:
    answer = why_not(under(hot_a(), excluded=frozenset({C}), draining={C: DrainOrder(0.0)}), HEAVY, C)
    assert answer.verdict.sentence() == "Not on c:8080 because it has been draining for 100 s"
    assert [each.verdict for each, _ in answer.obstacles] == [
        FilterReason.BROKER_DRAINING,
        FilterReason.BROKER_EXCLUDED,
    ]
    assert answer.placement.why["broker"] == B
    assert [each.broker_id for each in answer.standings] == [C, B]


def test_why_not_counts_the_candidates_ahead() -> None:
    answer = why_not(situation(hot_a()), HEAVY, C)
    assert answer.obstacles == ()
    assert answer.verdict.sentence() == ("Not on c:8080 because 1 of 2 candidates rank before it, b:8080 first")
    assert (
        answer.verdict.remedy()
        == "reduce the load of c:8080 below that of the 1 before it, or pin the bundle to c:8080"
    )


def test_why_not_of_the_chosen_broker_waits_for_the_release() -> None:
    answer = why_not(situation(hot_a()), HEAVY, B)
    assert answer.verdict.sentence() == (
        "Not on b:8080 because it has not left a:8080: placement would choose b:8080, of 2 candidates"
    )


def test_why_not_of_equally_good_brokers_names_the_drawn_one() -> None:
    given = situation(taken(model(ownerships=[FREE])))
    answers = [why_not(given, bundle(0), each).verdict for each in (A, B, C)]
    chosen = next(each for each in answers if each.verdict is ExplanationReason.WOULD_BE_CHOSEN)
    assert "Placement would choose" in chosen.sentence()
    others = [each for each in answers if each is not chosen]
    assert [each.verdict for each in others] == [ExplanationReason.AS_GOOD_AS_CHOSEN] * 2
    assert f"{chosen.why['broker']} was drawn at random from 3 equally good brokers" in others[0].sentence()


def test_why_not_of_the_owner_says_that_it_owns_the_bundle() -> None:
    assert why_not(situation(hot_a()), HEAVY, A).verdict.verdict is ExplanationReason.OWNS_IT_ALREADY
    moving = taken(model(ownerships=[releasing(broker("a"), broker("b"))], reported=(0,)))
    assert why_not(situation(moving), bundle(0), B).verdict.sentence() == "It is on b:8080, or moving there"
    assert why_not(situation(moving), bundle(0), A).verdict.verdict is not ExplanationReason.OWNS_IT_ALREADY


def test_why_not_without_a_report_has_no_figures() -> None:
    answer = why_not(situation(hot_a()), HEAVY, BrokerId("z:8080"))
    assert answer.verdict.verdict is ExplanationReason.NOT_REGISTERED
    assert [each.broker_id for each in answer.standings] == [B]


def test_pin_overrides_preferences() -> None:
    given = hot_a(b=report(cpu=10), c=report([bundle(5, "tenant/ns-9")]))
    answer = why_not(under(given, pinned={HEAVY: B}), HEAVY, C)
    assert answer.obstacles == ()
    assert answer.verdict.sentence() == "Placed on b:8080 because it is pinned there"


def test_why_not_names_the_pin_to_the_current_owner() -> None:
    answer = why_not(under(hot_a(), pinned={HEAVY: A}), HEAVY, C)
    assert answer.verdict.sentence() == "No move because it is pinned to a:8080"
    assert answer.verdict.remedy() == "unpin it"


def test_preference_is_an_obstacle_unless_the_preferred_broker_is_overloaded() -> None:
    more = report([bundle(5, "tenant/ns-9")], cpu=10)
    kept = why_not(situation(hot_a(b=report(cpu=10), c=more)), HEAVY, C)
    assert [(each.verdict, is_preference) for each, is_preference in kept.obstacles] == [
        (FilterReason.OWNS_MORE_OF_NAMESPACE, True)
    ]
    given_up = why_not(situation(hot_a(b=report(cpu=99), c=more)), HEAVY, C)
    assert given_up.obstacles == ()
    assert given_up.verdict.verdict is ExplanationReason.WOULD_BE_CHOSEN


def test_round_robin_brokers_are_ranked_by_turn() -> None:
    settings = replace(OVERLOAD, placement_strategy="RoundRobinBrokerSelector")
    given = snapshot({"a": report([LIGHT]), **{name: report() for name in "bcde"}})
    state = {"RoundRobinBrokerSelector": {"turn": 6, "order": [f"{name}:8080" for name in "bcde"]}}
    answers = {name: why_not(situation(given, settings, state), LIGHT, BrokerId(f"{name}:8080")) for name in "bcde"}
    assert answers["d"].verdict.verdict is ExplanationReason.WOULD_BE_CHOSEN
    assert {name: answers[name].verdict.why["ahead"] for name in "ebc"} == {"e": 1, "b": 2, "c": 3}


def test_policies_count_in_the_answer() -> None:
    policies = Policies((IsolationPolicy("gold", ("tenant/ns-9",), ("b",)),))
    answer = why_not(situation(replace(hot_a(), policies=policies)), HEAVY, C)
    assert answer.verdict.verdict is FilterReason.ISOLATION_POLICY


def test_remembered_destination_overrides_the_comparison() -> None:
    settings = PlannerSettings(shedding_strategy="AvgShedder", placement_strategy="AvgShedder")
    state = {"AvgShedder": {"planned": {HEAVY: B}}}
    answer = why_not(situation(hot_a(), settings, state), HEAVY, C).verdict
    assert answer.sentence() == "Placed on b:8080, the destination of its move"
    assert answer.remedy() == "wait for the next round of shedding, which forgets this destination"


def test_verdict_that_only_load_can_change_has_no_remedy() -> None:
    verdict = explain_broker(situation(hot_a()), B).verdicts[0]
    assert verdict.remedy() == ""


def test_excluding_each_winner_reaches_all_candidates() -> None:
    given = snapshot({"a": report({bundle(0): (1.0, 0.0, 0.0, 0.0)}), "b": report(), "c": report()})
    trial = DecisionInput(given, PlannerSettings(), {}, np.random.default_rng(1)).trial(bundle(0), None)
    seen = {row for placement in trial.choices() for row in placement.drawn_from.tolist()}
    assert seen == set(trial.candidates.tolist())
