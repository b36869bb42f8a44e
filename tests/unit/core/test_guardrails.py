from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.policies import InvalidPolicyError, Patterns
from loadmanager.core.domain.reasons import GuardrailReason, Reason
from loadmanager.core.protocol.guardrails import (
    BrokerFacts,
    ClusterFacts,
    GuardrailLimits,
    NamespaceSelection,
    WantedMove,
    check_controls,
    check_move,
    check_moves,
    check_round,
    check_split,
)

A, B, C, D = (BrokerId(f"{letter}:8080") for letter in "abcd")
NOW_S = 10_000.0
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
SOUND = BrokerFacts(sheds=False, splits=False, load_manager=MODULAR, reported_at_s=NOW_S - 30)
FACTS = ClusterFacts(now_s=NOW_S, brokers={A: SOUND, B: SOUND, C: SOUND}, pulsars_leader=C, quiet_for_s=100.0)
LIMITS = GuardrailLimits(settling_s=60.0, moves_per_round=10, moves_per_hour=60)
BUNDLE = "t/ns/0x00000000_0x80000000"
MOVE = WantedMove(BUNDLE, A, B, is_own=True)
ORDERED = replace(MOVE, is_own=False)


def with_broker(broker: BrokerId, **changes: Any) -> ClusterFacts:  # noqa: ANN401 - whatever a fact may be
    return replace(FACTS, brokers={**FACTS.brokers, broker: replace(SOUND, **changes)})


def reasons(verdicts: list[Verdict]) -> list[Reason]:
    assert not any(verdict.acted for verdict in verdicts)
    return [verdict.verdict for verdict in verdicts]


def test_sound_facts_stop_nothing() -> None:
    assert check_round(FACTS, LIMITS) == []
    assert check_move(FACTS, LIMITS, MOVE) == []
    assert check_move(FACTS, LIMITS, ORDERED) == []


STOPPED_BY: list[tuple[ClusterFacts, Reason, str]] = [
    (
        replace(FACTS, is_to_act=False),
        GuardrailReason.MODE_IS_OBSERVE,
        "No move because mode is observe: the process plans and compares, and changes nothing",
    ),
    (
        replace(FACTS, is_whole=False),
        GuardrailReason.CLUSTER_STATE_INCOMPLETE,
        "No move because not all brokers answered the last poll",
    ),
    (
        replace(FACTS, policies_fault="/admin/clusters/c: not JSON"),
        GuardrailReason.POLICIES_UNKNOWN,
        "No move because not all of the cluster's policies are known: /admin/clusters/c: not JSON",
    ),
    (
        replace(FACTS, open_moves="they are being looked at"),
        GuardrailReason.EARLIER_MOVES_UNRESOLVED,
        "No move because the outcome of earlier moves is unknown: they are being looked at",
    ),
    (
        with_broker(B, sheds=True),
        GuardrailReason.PULSAR_SHEDS,
        "No move because Pulsar's own shedding is on at 1 of 3 brokers: b:8080",
    ),
    (
        with_broker(D, splits=True),
        GuardrailReason.PULSAR_SPLITS,
        "No move because Pulsar's own splits are on at 1 of 4 brokers: d:8080",
    ),
    (
        with_broker(A, sheds=None),
        GuardrailReason.SETTINGS_UNKNOWN,
        ("No move because 1 of 3 brokers did not report their settings, so they may shed or split: a:8080"),
    ),
    (
        with_broker(A, splits=None),
        GuardrailReason.SETTINGS_UNKNOWN,
        ("No move because 1 of 3 brokers did not report their settings, so they may shed or split: a:8080"),
    ),
    (
        with_broker(C, load_manager=""),
        GuardrailReason.LOAD_MANAGER_UNKNOWN,
        "No move because 1 of 3 brokers run an unknown load manager: c:8080",
    ),
    (
        replace(FACTS, pulsars_leader=None),
        GuardrailReason.PULSAR_HAS_NO_LEADER,
        "No move because none of Pulsar's 3 registered brokers leads",
    ),
    (
        replace(FACTS, pulsars_leader=D),
        GuardrailReason.PULSAR_HAS_NO_LEADER,
        "No move because Pulsar's leader d:8080 is not among its 3 registered brokers",
    ),
    (
        replace(FACTS, failures=3),
        GuardrailReason.TOO_MANY_FAILURES,
        "No move because the last 3 moves failed",
    ),
]


@pytest.mark.parametrize(("facts", "reason", "sentence"), STOPPED_BY)
def test_general_stops_apply_to_rounds_splits_and_moves(facts: ClusterFacts, reason: Reason, sentence: str) -> None:
    for stops in (
        check_round(facts, LIMITS),
        check_move(facts, LIMITS, MOVE),
        check_move(facts, LIMITS, ORDERED),
        check_split(facts, LIMITS, BUNDLE),
    ):
        assert [(stop.subject, stop.verdict, stop.sentence()) for stop in stops] == [("cluster", reason, sentence)]
        assert stops[0].remedy()


@pytest.mark.parametrize("excluded", [frozenset(), frozenset({A})])
def test_controls_stop_nothing_while_a_broker_takes_bundles_or_none_is_known(excluded: frozenset[BrokerId]) -> None:
    assert list(check_controls(Controls(excluded=excluded), [A, B], 0.0)) == []
    assert list(check_controls(Controls(excluded=excluded), [], 0.0)) == []


def test_controls_that_stop_rounds_are_named_with_their_remedy() -> None:
    controls = Controls(frozen="a release", dry_run=True, excluded=frozenset({A}), draining={B: DrainOrder(0.0)})
    stops = list(check_controls(controls, [A, B], 89.6))
    assert [(stop.subject, stop.sentence(), stop.remedy()) for stop in stops] == [
        (
            "cluster",
            "No move because the balancer is frozen: a release",
            "loadmanager admin balancer unfreeze",
        ),
        ("cluster", "No move because dry run is on", "loadmanager admin balancer dry-run off"),
        (
            "cluster",
            "No move because shedding is stopped for another 90 s",
            "wait 90 s, or loadmanager admin balancer lift-breaker",
        ),
        (
            "cluster",
            "No move because all 2 registered brokers are excluded or drained",
            "loadmanager admin brokers include BROKER",
        ),
    ]


def test_while_brokers_settle_only_operators_move_anything() -> None:
    facts = replace(FACTS, quiet_for_s=59.4)
    sentence = "No move because a broker joined or left 59 s ago (settlingSeconds 60)"
    for stops in (check_round(facts, LIMITS), check_move(facts, LIMITS, MOVE), check_split(facts, LIMITS, BUNDLE)):
        assert [(stop.subject, stop.sentence()) for stop in stops] == [("cluster", sentence)]
    assert check_move(facts, LIMITS, ORDERED) == []


@pytest.mark.parametrize("facts", [replace(FACTS, quiet_for_s=60.0), replace(FACTS, failures=2)])
def test_nothing_is_stopped_up_to_the_limit(facts: ClusterFacts) -> None:
    assert check_round(facts, LIMITS) == check_move(facts, LIMITS, MOVE) == []


def test_first_move_passes_limits_of_one() -> None:
    one = replace(LIMITS, moves_per_round=1, moves_per_hour=1)
    assert check_round(FACTS, one) == check_move(FACTS, one, MOVE) == []


def test_extensible_brokers_need_no_leader_and_one_modular_broker_does() -> None:
    extensible = {each: replace(SOUND, load_manager="a.b.ExtensibleLoadManagerImpl") for each in (A, B, C)}
    facts = replace(FACTS, brokers=extensible, pulsars_leader=None)
    assert check_round(facts, LIMITS) == []
    mixed = replace(facts, brokers={**extensible, A: SOUND})
    assert reasons(check_round(mixed, LIMITS)) == [GuardrailReason.PULSAR_HAS_NO_LEADER]


def test_load_manager_class_without_its_package_is_accepted() -> None:
    assert check_round(with_broker(A, load_manager="ModularLoadManagerImpl"), LIMITS) == []
    other = with_broker(A, load_manager="org.example.NotTheModularLoadManagerImpl")
    assert reasons(check_round(other, LIMITS)) == [GuardrailReason.LOAD_MANAGER_UNKNOWN]


def test_each_guardrail_reports_itself_with_a_few_brokers() -> None:
    many = {BrokerId(f"b{number}:8080"): replace(SOUND, sheds=True, splits=None) for number in range(5)}
    stops = check_round(replace(FACTS, brokers=many, pulsars_leader=None, is_to_act=False), LIMITS)
    assert reasons(stops) == [
        GuardrailReason.MODE_IS_OBSERVE,
        GuardrailReason.PULSAR_SHEDS,
        GuardrailReason.SETTINGS_UNKNOWN,
        GuardrailReason.PULSAR_HAS_NO_LEADER,
    ]
    assert stops[1].why == {"brokers": 5, "registered": 5, "which": "b0:8080, b1:8080, b2:8080 and 2 more"}
    three = {broker: replace(SOUND, sheds=True) for broker in (C, A, B)}
    (stop,) = check_round(replace(FACTS, brokers=three), LIMITS)
    assert stop.why["which"] == "a:8080, b:8080, c:8080"


def test_hourly_limit_stops_rounds_and_own_moves_but_no_operator() -> None:
    full = replace(FACTS, moves_this_hour=60)
    for subject, stops in (
        ("cluster", check_round(full, LIMITS)),
        (BUNDLE, check_move(full, LIMITS, MOVE)),
    ):
        assert [(stop.subject, stop.verdict) for stop in stops] == [(subject, GuardrailReason.HOURLY_LIMIT_REACHED)]
        assert stops[0].sentence() == "No move because 60 moves began within the hour (movesPerHour 60)"
    assert check_move(full, LIMITS, ORDERED) == []
    assert check_move(replace(FACTS, moves_this_hour=59), LIMITS, MOVE) == []


def test_round_limit_stops_only_further_moves_of_the_round() -> None:
    full = replace(FACTS, moves_this_round=10)
    (stop,) = check_move(full, LIMITS, MOVE)
    assert (stop.subject, stop.verdict) == (BUNDLE, GuardrailReason.ROUND_LIMIT_REACHED)
    assert stop.sentence() == "No move because 10 moves of this round have begun (movesPerRound 10)"
    assert check_round(full, LIMITS) == check_move(full, LIMITS, ORDERED) == []
    assert check_move(replace(FACTS, moves_this_round=9), LIMITS, MOVE) == []


@pytest.mark.parametrize("broker", [A, B])
def test_move_waits_for_reports_of_its_recently_touched_brokers(broker: BrokerId) -> None:
    facts = with_broker(broker, touched_at_s=NOW_S - 30)
    (stop,) = check_move(facts, LIMITS, MOVE)
    assert (stop.subject, stop.verdict) == (BUNDLE, GuardrailReason.REPORT_BEFORE_MOVE)
    assert stop.sentence() == (
        f"No move because the last report of {broker} is older than the last move from or to it, 30 s ago"
    )
    assert check_move(facts, LIMITS, ORDERED) == []
    assert check_move(with_broker(broker, touched_at_s=NOW_S - 31), LIMITS, MOVE) == []
    assert check_move(with_broker(C, touched_at_s=NOW_S), LIMITS, MOVE) == [], "neither source nor destination"


def test_touched_broker_without_a_report_stops_moves() -> None:
    touched = replace(SOUND, reported_at_s=None, touched_at_s=NOW_S - 100)
    stops = check_move(replace(FACTS, brokers={A: touched, B: touched, C: SOUND}), LIMITS, MOVE)
    assert reasons(stops) == [GuardrailReason.REPORT_BEFORE_MOVE] * 2
    assert check_move(with_broker(A, reported_at_s=None), LIMITS, MOVE) == []


@pytest.mark.parametrize("destination", [None, D])
def test_missing_destination_does_not_hide_the_source(destination: BrokerId | None) -> None:
    move = replace(MOVE, destination=destination)
    assert check_move(FACTS, LIMITS, move) == []
    assert reasons(check_move(with_broker(A, touched_at_s=NOW_S), LIMITS, move)) == [GuardrailReason.REPORT_BEFORE_MOVE]


def limits_with(included: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> GuardrailLimits:
    return replace(LIMITS, namespaces=NamespaceSelection(Patterns(included), Patterns(excluded)))


@pytest.mark.parametrize(
    ("bundle", "limits", "sentence"),
    [
        ("pulsar/system/0x00000000_0xffffffff", LIMITS, "pulsar/system is excluded by pulsar/.*"),
        ("pulsar/cluster/host:8080/0x00000000_0xffffffff", LIMITS, "pulsar/cluster/host:8080 is excluded by"),
        ("sla-monitor/host:8080/0x00000000_0xffffffff", LIMITS, "sla-monitor/host:8080 is excluded by the brokers,"),
        (
            "t/c1/old/0x00000000_0xffffffff",
            limits_with(included=(".*",)),
            "t/c1/old is excluded by the form of its name",
        ),
        (BUNDLE, limits_with(excluded=("u/.*", "t/n.")), "t/ns is excluded by t/n."),
        (BUNDLE, limits_with(included=("t/.*",), excluded=("t/ns",)), "t/ns is excluded by t/ns"),
        (BUNDLE, limits_with(included=("u/.*", "t/n")), "t/ns is not one of the included namespaces"),
        ("pulsar/system/0x00000000_0xffffffff", limits_with(included=(".*",)), "pulsar/system is excluded by pulsar"),
    ],
)
def test_excluded_namespace_is_never_moved(bundle: str, limits: GuardrailLimits, sentence: str) -> None:
    for stops in (
        check_move(FACTS, limits, replace(MOVE, bundle=bundle)),
        check_move(FACTS, limits, replace(ORDERED, bundle=bundle)),
        check_split(FACTS, limits, bundle),
    ):
        (stop,) = stops
        assert (stop.subject, stop.verdict) == (bundle, GuardrailReason.NAMESPACE_NOT_INCLUDED)
        assert stop.sentence().startswith(f"No move because {sentence}")
    assert check_round(FACTS, limits) == []


@pytest.mark.parametrize(
    "limits", [LIMITS, limits_with(included=("u/.*", "t/.*")), limits_with(excluded=("t/n", "ns", "x/t/ns"))]
)
def test_patterns_match_whole_namespaces(limits: GuardrailLimits) -> None:
    assert check_move(FACTS, limits, MOVE) == []


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(InvalidPolicyError, match="missing"):
        Patterns(("t/(",))


def test_moves_are_checked_independently() -> None:
    facts = replace(with_broker(A, sheds=True), moves_this_round=10)
    moves = [MOVE, ORDERED, replace(MOVE, bundle="pulsar/system/0x00000000_0xffffffff")]
    assert [reasons(stops) for stops in check_moves(facts, LIMITS, moves)] == [
        [GuardrailReason.PULSAR_SHEDS, GuardrailReason.ROUND_LIMIT_REACHED],
        [GuardrailReason.PULSAR_SHEDS],
        [GuardrailReason.PULSAR_SHEDS, GuardrailReason.NAMESPACE_NOT_INCLUDED, GuardrailReason.ROUND_LIMIT_REACHED],
    ]
    assert check_moves(facts, LIMITS, []) == []


_BROKER = st.builds(
    BrokerFacts,
    sheds=st.sampled_from([False, False, True, None]),
    splits=st.sampled_from([False, False, True, None]),
    load_manager=st.sampled_from([MODULAR, MODULAR, "Other"]),
    reported_at_s=st.sampled_from([None, NOW_S - 5_000, NOW_S - 100, NOW_S]),
    touched_at_s=st.sampled_from([None, None, NOW_S - 50]),
)
_FACTS = st.builds(
    ClusterFacts,
    now_s=st.just(NOW_S),
    brokers=st.dictionaries(st.sampled_from([A, B, C]), _BROKER),
    pulsars_leader=st.sampled_from([None, A, B, C]),
    quiet_for_s=st.sampled_from([0.0, 60.0, 1e6]),
    is_to_act=st.sampled_from([True, True, False]),
    is_whole=st.sampled_from([True, True, False]),
    policies_fault=st.sampled_from(["", "", "why"]),
    open_moves=st.sampled_from(["", "", "why"]),
    failures=st.integers(0, 4),
    moves_this_round=st.integers(0, 12),
    moves_this_hour=st.integers(50, 70),
)
_MOVE = st.builds(
    WantedMove,
    bundle=st.sampled_from([BUNDLE, "pulsar/system/0x00000000_0xffffffff"]),
    source=st.sampled_from([A, B]),
    destination=st.sampled_from([None, A, B, C]),
    is_own=st.booleans(),
)


@given(_FACTS, _MOVE)
def test_moves_pass_exactly_when_all_guardrails_allow_them(facts: ClusterFacts, move: WantedMove) -> None:
    brokers = facts.brokers.values()
    is_sound = (
        facts.is_to_act
        and facts.is_whole
        and not facts.open_moves
        and not facts.policies_fault
        and facts.failures < 3
        and facts.quiet_for_s >= 60
        and facts.pulsars_leader in facts.brokers
        and all(each.sheds is False and each.splits is False and each.load_manager == MODULAR for each in brokers)
    )
    concerned = [known for each, known in facts.brokers.items() if each in (move.source, move.destination)]
    is_fresh = all(
        each.reported_at_s is not None
        and each.reported_at_s > (each.touched_at_s or 0)
        and each.reported_at_s >= NOW_S - 1_800
        for each in concerned
    )
    has_room = facts.moves_this_hour < 60
    may_move = (
        is_sound
        and not move.bundle.startswith("pulsar/")
        and (not move.is_own or (is_fresh and has_room and facts.moves_this_round < 10))
    )
    assert (check_move(facts, LIMITS, move) == []) == may_move
    assert (check_round(facts, LIMITS) == []) == (is_sound and has_room)
    assert (check_split(facts, LIMITS, move.bundle) == []) == (is_sound and not move.bundle.startswith("pulsar/"))
    if move.is_own and check_round(facts, LIMITS):
        assert check_move(facts, LIMITS, move), "a stopped round stops each of its moves"
