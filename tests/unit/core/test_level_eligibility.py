from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given as each_of
from hypothesis import strategies as st
from support.builders import bundle, report, snapshot

from loadmanager.core.constraints.filters import (
    PlacementQuestion,
    allowed_brokers,
    find_anti_affinity_refusal,
    rules_of,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.level.search_task import SearchMove
from loadmanager.core.strategies.shedding.level_eligibility import MoveEligibility

NAMESPACES = ("tenant/free", "tenant/own", "tenant/a", "tenant/b")
POLICIES = Policies((IsolationPolicy("p", ("tenant/own",), ("x", "y")),), {"tenant/a": "group", "tenant/b": "group"})


def settings(most_topics: int = 1_000) -> PlannerSettings:
    return PlannerSettings(
        shedding_strategy="Level",
        placement_strategy="Level",
        broker_max_topics=most_topics,
        shedding_excluded_namespaces=frozenset({"tenant/b"}),
    )


def owning() -> Snapshot:
    """Brokers x, y and z with two bundles of each namespace in turn, each of two topics."""
    bundles = [bundle(i, NAMESPACES[i % 4]) for i in range(8)]
    given = snapshot(
        {
            host: report(bundles[i::3], topics=2 * len(bundles[i::3]), topics_per_bundle=2)
            for i, host in enumerate("xyz")
        }
    )
    return replace(given, policies=POLICIES, _derived={})


def row_of(given: Snapshot, index: int) -> int:
    row = given.bundles.find_row(bundle(index, NAMESPACES[index % 4]))
    assert row is not None
    return row


def test_bundles_have_owner_classes_and_group_members_are_limited() -> None:
    given = owning()
    eligibility = MoveEligibility(given, settings())
    free, own, a, b = (row_of(given, index) for index in range(4))
    assert eligibility.owners[eligibility.classes[own]].tolist() == [True, True, False]
    assert eligibility.owners[eligibility.classes[free]].tolist() == [False, False, True]
    assert eligibility.classes[a] == eligibility.classes[b]
    assert eligibility.limited[[free, own, a, b]].tolist() == [False, False, True, True]
    assert not eligibility.may_be_shed()[b]


def test_bundle_outside_its_isolation_policy_is_misplaced() -> None:
    given = owning()
    assigned = given.bundles.assigned
    for row, is_misplaced in enumerate(MoveEligibility(given, settings()).misplaced().tolist()):
        namespace = given.bundles.namespaces[given.bundles.namespace[row]]
        assert is_misplaced == ((assigned[row] == 2) == (namespace == "tenant/own"))
    assert not MoveEligibility(replace(given, policies=Policies(), _derived={}), settings()).misplaced().any()


def test_topics_of_moved_bundles_are_subtracted() -> None:
    given = owning()
    eligibility = MoveEligibility(given, settings(most_topics=9))
    assert eligibility.topics_left.tolist() == [2, 2, 4]
    eligibility.made(SearchMove(row_of(given, 0), 0, 2))
    assert eligibility.topics_left.tolist() == [2, 2, 2]


@each_of(
    most=st.integers(4, 12),
    moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.booleans()), max_size=12),
)
def test_movable_bundles_follow_the_filters(most: int, moves: list[tuple[int, int, bool]]) -> None:
    given, rules = owning(), rules_of(settings(), "Level")
    eligibility, projection = MoveEligibility(given, settings(most)), Projection(given)
    at = given.bundles.assigned.astype(np.int64)
    for index, destination, is_made in moves:
        row = row_of(given, index)
        namespace, source = NAMESPACES[index % 4], int(at[row])
        if source == destination:
            continue
        question = PlacementQuestion(namespace, projection, settings(most), source)
        kept = find_anti_affinity_refusal(rules, question) is not None
        wanted = not kept and bool(allowed_brokers(rules, question)[0][destination])
        assert eligibility.may_move((SearchMove(row, source, destination),)) == wanted
        if is_made:
            projection.move(namespace, row, source, destination)
            eligibility.made(SearchMove(row, source, destination))
            at[row] = destination


def test_without_bundles_none_is_misplaced() -> None:
    empty = replace(snapshot({"x": report()}), policies=POLICIES, _derived={})
    assert not MoveEligibility(empty, settings()).misplaced().size
