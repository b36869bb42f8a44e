from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, broker, owned, releasing, report

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import NamespaceState
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import MergeReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.strategies.merging import Merge, MergeCandidate, find_candidates, find_merges

A, B = broker("a"), broker("b")
SETTINGS = PlannerSettings(auto_bundle_merge_enabled=True)
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def small_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.strategies.merging.MIN_BUNDLES", 2)


def bundles(*changes: dict[str, object]) -> list[MergeCandidate]:
    """Neighbours of owner A, cold and old enough to merge except for these changes."""
    calm = MergeCandidate("", A, topics=1, sessions=2, msg_rate=1.0, throughput=100.0, age_s=2 * HOUR_S)
    return [replace(calm, name=f"t/ns/{number}", **change) for number, change in enumerate(changes)]  # type: ignore[arg-type]  # fields by name


def found(*changes: dict[str, object], settings: PlannerSettings = SETTINGS) -> Merge | Verdict:
    merges, verdicts = find_merges({"t/ns": bundles(*changes)}, settings)
    assert len(merges) + len(verdicts) == 1
    return merges[0] if merges else verdicts[0]


def test_coldest_neighbours_are_merged() -> None:
    merge = found({"throughput": 5.0}, {}, {"throughput": 1.0}, {})
    assert isinstance(merge, Merge)
    assert (merge.lower, merge.upper) == ("t/ns/1", "t/ns/2")
    assert merge.why.sentence() == (
        "Merged with t/ns/2 because both are cold: together 2 of at most 100 topics, 4 of 100 sessions, 2 of 1000"
        " messages/s and 0 of 5 MiB/s"
    )


def test_first_of_equally_cold_neighbours_are_merged() -> None:
    merge = found({}, {}, {})
    assert isinstance(merge, Merge)
    assert merge.lower == "t/ns/0"


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"owner": B}, "apart"),
        ({"owner": None}, "apart"),
        ({"age_s": HOUR_S - 1}, "young"),
        ({"is_held": True}, "held"),
        ({"topics": 100}, "warm"),
        ({"sessions": 99}, "warm"),
        ({"msg_rate": 999.5}, "warm"),
        ({"throughput": 5.0 * MIB}, "warm"),
    ],
)
def test_reasons_against_a_merge_are_counted(change: dict[str, object], count: str) -> None:
    verdict = found({}, change, {})
    assert isinstance(verdict, Verdict)
    assert verdict.verdict is MergeReason.NO_COLD_NEIGHBOURS
    assert (verdict.why["pairs"], verdict.why[count]) == (2, 2)
    assert verdict.sentence().startswith("No merge because of 2 pairs of neighbours")


@pytest.mark.parametrize(
    "change", [{"topics": 99}, {"sessions": 98}, {"msg_rate": 999.0}, {"throughput": 5.0 * MIB - 100.0}]
)
def test_neighbours_exactly_at_a_limit_are_merged(change: dict[str, object]) -> None:
    assert isinstance(found({}, change, {"owner": B}), Merge)


def test_unowned_bundles_are_not_merged() -> None:
    assert isinstance(found({"owner": None}, {"owner": None}, {"owner": None}), Verdict)


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        ({"namespace_bundle_max_topics": 10}, {"topics": 5}),
        ({"namespace_bundle_max_sessions": 10}, {"sessions": 4}),
        ({"namespace_bundle_max_msg_rate": 100}, {"msg_rate": 50.0}),
        ({"namespace_bundle_max_bandwidth_mbytes": 2}, {"throughput": 1.0 * MIB}),
    ],
)
def test_merge_stays_below_half_of_each_split_limit(limit: dict[str, int], change: dict[str, object]) -> None:
    assert isinstance(found({}, change, {"owner": B}), Merge)
    assert isinstance(found({}, change, {"owner": B}, settings=replace(SETTINGS, **limit)), Verdict)  # type: ignore[arg-type]  # fields by name


def test_merge_limit_on_sessions_holds_without_a_split_limit() -> None:
    settings = replace(SETTINGS, namespace_bundle_max_sessions=0)
    assert isinstance(found({"sessions": 98}, {}, {"owner": B}, settings=settings), Merge)
    assert isinstance(found({"sessions": 99}, {}, {"owner": B}, settings=settings), Verdict)


def test_namespace_keeps_its_minimum_of_bundles() -> None:
    verdict = found({}, {})
    assert isinstance(verdict, Verdict)
    assert verdict.sentence() == "No merge because it has only 2 bundles"
    assert isinstance(found({}, {}, {}), Merge)


def test_one_merge_per_namespace_and_round() -> None:
    merges, verdicts = find_merges({"t/b": bundles({}, {}, {}, {}, {}), "t/a": bundles({}, {}, {})}, SETTINGS)
    assert len(merges) == 2
    assert verdicts == []


# Merge candidates


def test_candidates_combine_the_owners_report_with_long_term_rates() -> None:
    state = NamespaceState.unowned(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(4)))
    names = state.bundle_names()
    ownerships = (owned(A), owned(A)._replace(since_ms=40_000), owned(B), releasing(A))
    reported = report({names[0]: (1.0, 2.0, 3.0, 4.0), names[2]: (9.0,) * 4}, topics_per_bundle=7)
    model = ClusterModel()
    model.set_namespace("t/ns", names, ownerships)
    model.apply_report(A, reported)
    given = {A: replace(reported, bundle_sessions=np.array([5, 6]))}
    found = find_candidates(
        given,
        {"t/ns": replace(state, ownerships=ownerships)},
        model.snapshot(0.0, 0.0),
        Controls(frozen_bundles={names[2]: "slow disks"}),
        now_s=100.0,
    )
    assert found == {
        "t/ns": [
            MergeCandidate(names[0], A, 7, 5, 3.0, 7.0, 100.0),
            MergeCandidate(names[1], A, 0, 0, 0.0, 0.0, 60.0),
            MergeCandidate(names[2], None, 0, 0, 0.0, 0.0, 100.0, is_held=True),
            MergeCandidate(names[3], None, 0, 0, 0.0, 0.0, 100.0),
        ]
    }
