from __future__ import annotations

from typing import Any

import pytest
from support.builders import broker, bundle

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import GuardrailReason, OwnershipReason, PlacementReason, SheddingReason
from loadmanager.core.planning.plan_effect import MoveEffect
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason
from loadmanager.leader.audit.decision_log import DecisionLog


def below(subject: str, usage: float = 10.0) -> Verdict:
    return Verdict(subject, SheddingReason.BELOW_THRESHOLD, acted=False, why={"usage_percent": usage})


@pytest.fixture
def decision_log() -> DecisionLog:
    return DecisionLog(10)


def test_newest_decisions_are_kept_and_all_are_counted() -> None:
    decision_log = DecisionLog(3)
    for number in range(10):
        decision_log.moved("assign", bundle(number), OwnershipReason.LOOKUP, epoch=1, destination=broker("b1"))
    assert [entry["subject"] for entry in decision_log.recent(100)] == [bundle(9), bundle(8), bundle(7)]
    assert decision_log.counts["assign", "lookup", True] == 10


def test_repeated_non_decision_is_one_entry_with_its_latest_figures(decision_log: DecisionLog) -> None:
    for usage in (10.0, 20.0, 30.0):
        decision_log.judged("shed", below("b1:8080", usage), epoch=1)
    (entry,) = decision_log.recent(100)
    assert entry["times"] == 3
    assert entry["why"] == {"usage_percent": 30.0}
    assert decision_log.counts["shed", "below_threshold", False] == 3


def test_guardrail_stops_of_a_bundle_are_one_entry(decision_log: DecisionLog) -> None:
    stops = [Verdict("cluster", GuardrailReason.CLUSTER_STATE_INCOMPLETE, acted=False), below("cluster", 10.0)]
    decision_log.stopped(bundle(1), stops, epoch=1)
    decision_log.stopped(bundle(1), [stops[0], below("cluster", 20.0)], epoch=1)
    (entry,) = decision_log.recent(10)
    assert (entry["kind"], entry["subject"], entry["reason"]) == ("guardrail", bundle(1), "cluster_state_incomplete")
    assert (entry["acted"], entry["times"], entry["why"]) == (False, 2, {"usage_percent": 20.0})
    assert entry["sentence"] == ". ".join(stop.sentence() for stop in [stops[0], below("cluster", 20.0)])
    assert decision_log.counts == {("guardrail", "cluster_state_incomplete", False): 2}


def test_non_decision_of_a_later_epoch_is_a_new_entry(decision_log: DecisionLog) -> None:
    decision_log.judged("shed", below("b1:8080"), epoch=1)
    decision_log.judged("shed", below("b1:8080"), epoch=2)
    (entry,) = decision_log.recent(100)
    assert (entry["epoch"], entry["times"]) == (2, 1)


def test_non_decisions_are_bounded() -> None:
    decision_log = DecisionLog(2)
    for number in range(5):
        decision_log.judged("shed", below(f"b{number}:8080"), epoch=1)
    assert {entry["subject"] for entry in decision_log.recent(100)} == {"b3:8080", "b4:8080"}


def test_subject_matches_bundle_source_and_destination(decision_log: DecisionLog) -> None:
    decision_log.moved("assign", bundle(1), OwnershipReason.LOOKUP, epoch=1, destination=broker("b1"))
    decision_log.moved("unload", bundle(2), OwnershipReason.ADMIN_UNLOAD, epoch=1, source=broker("b1"))
    decision_log.moved("unload", bundle(3), OwnershipReason.ADMIN_UNLOAD, epoch=1, source=broker("b2"))
    assert {entry["subject"] for entry in decision_log.recent(100, "b1:8080")} == {bundle(1), bundle(2)}
    assert [entry["subject"] for entry in decision_log.recent(100, bundle(3))] == [bundle(3)]
    assert decision_log.recent(100, "b9:8080") == []


def test_entry_has_the_sentence_of_its_verdict(decision_log: DecisionLog) -> None:
    why = Verdict(bundle(1), PlacementReason.NO_BROKER_AVAILABLE, acted=False, why={"brokers": 0})
    decision_log.judged("assign", why, epoch=1)
    (entry,) = decision_log.recent(1)
    assert entry["sentence"] == why.sentence()
    assert "none of 0 registered brokers" in entry["sentence"]


def test_dry_run_move_may_have_no_destination(decision_log: DecisionLog) -> None:
    reason = OverloadReason.BROKER_OVERLOADED
    for destination in (None, broker("b2")):
        decision_log.moved(
            "would_unload", bundle(1), reason, epoch=1, source=broker("b1"), destination=destination, acted=False
        )
    newest, oldest = decision_log.recent(10)
    assert (oldest["source"], oldest["destination"]) == (broker("b1").broker, None)
    assert newest["destination"] == broker("b2").broker


def test_shedding_moves_have_the_number_of_their_round(decision_log: DecisionLog) -> None:
    shed, asked = OverloadReason.BROKER_OVERLOADED, OwnershipReason.ADMIN_UNLOAD
    why: dict[str, Figure] = {"round": 7, "bundles": 1, "share_percent": 2.0, "routes": "b1 -> b2 (1)"}
    decision_log.moved("unload", bundle(1), shed, epoch=1, source=broker("b1"))
    decision_log.judged("round", Verdict("cluster", SheddingReason.ROUND_MOVES, acted=True, why=why), epoch=1)
    decision_log.moved("unload", bundle(2), shed, epoch=1, source=broker("b1"))
    decision_log.moved("unload", bundle(3), asked, epoch=1, source=broker("b1"))
    decision_log.moved("assign", bundle(4), OwnershipReason.LOOKUP, epoch=1, destination=broker("b1"))
    decision_log.moved("unload", bundle(5), shed, epoch=2, source=broker("b1"))
    assert [entry["round"] for entry in reversed(decision_log.recent(10))] == [None, 7, 7, None, None, None]


def test_followers_get_later_entries_and_measured_moves_again(
    decision_log: DecisionLog,
) -> None:
    effect = MoveEffect(predicted=(2.0, 1.5), load=1e6)
    decision_log.moved("unload", bundle(1), SheddingReason.BELOW_THRESHOLD, epoch=1, effect=effect)
    decision_log.judged("shed", below("b1:8080"), epoch=1)
    seen = decision_log.place
    assert [entry["kind"] for _, entry in decision_log.later_than(0, 10)] == ["unload", "shed"]
    assert [entry["kind"] for _, entry in decision_log.later_than(0, 1)] == ["shed"]
    assert decision_log.later_than(seen, 10) == []

    effect.measured, effect.measured_at_ms = (2.0, 1.6), 7
    decision_log.measured(effect)
    ((place, again),) = decision_log.later_than(seen, 10)
    assert place == decision_log.place > seen
    assert again["sequence"] == 1
    assert again["effect"]["predicted"] == {"imbalanceBefore": 2.0, "imbalanceAfter": 1.5}
    assert again["effect"]["measured"] == {"imbalanceBefore": 2.0, "imbalanceAfter": 1.6}
    decision_log.measured(MoveEffect(predicted=(1.0, 1.0), load=0.0))
    assert decision_log.later_than(place, 10) == []


def test_entries_are_filtered_by_kind_and_time(decision_log: DecisionLog) -> None:
    for number in range(3):
        decision_log.moved("assign", bundle(number), OwnershipReason.LOOKUP, epoch=1)
    decision_log.judged("shed", below("b1:8080"), epoch=1)
    decision_log.judged("shed", below("b1:8080"), epoch=1)
    times = {"assign 0": 100, "assign 1": 200, "assign 2": 300}
    for entry, at_ms in zip(decision_log._decisions, times.values(), strict=True):
        entry.at_ms = entry.last_ms = at_ms
    (repeated,) = decision_log._refrained.values()
    repeated.at_ms, repeated.last_ms = 50, 250

    def subjects(**wanted: Any) -> list[str]:  # noqa: ANN401 - whatever is wanted
        return [entry["subject"] for entry in decision_log.recent(10, **wanted)]

    assert subjects(kinds=["assign"]) == [bundle(2), bundle(1), bundle(0)]
    assert subjects(kinds=["shed", "other"]) == ["b1:8080"]
    assert subjects(since_ms=250) == [bundle(2), "b1:8080"]
    assert subjects(until_ms=200) == ["b1:8080", bundle(0)]
    assert subjects(since_ms=150, until_ms=300) == ["b1:8080", bundle(1)]
