"""Broker filters beyond Pulsar's own cases."""

from __future__ import annotations

import numpy as np
from support.builders import broker, bundle, owned, report, snapshot

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.filters import (
    PREFERRED,
    REQUIRED,
    Question,
    apply,
    keep_below_topic_limit,
    keep_fewest_of_namespace,
)
from loadmanager.core.placement.base import Projection
from loadmanager.core.planner import PlannerSettings
from loadmanager.core.snapshot import Snapshot

TEN_TOPICS = PlannerSettings(broker_max_topics=10)


def question(given: Snapshot, settings: PlannerSettings | None = None) -> Question:
    return Question(
        "tenant/ns",
        non_persistent=False,
        snapshot=given,
        projection=Projection(given),
        settings=settings or PlannerSettings(),
    )


def test_a_broker_with_exactly_the_greatest_number_of_topics_is_kept() -> None:
    given = snapshot({"a": report(topics=10), "b": report(topics=11)})
    assert keep_below_topic_limit(np.array([True, True]), question(given, TEN_TOPICS)).tolist() == [
        True,
        False,
    ]


def test_all_brokers_are_kept_when_each_has_too_many_topics() -> None:
    given = snapshot({"a": report(topics=12), "b": report(topics=11)})
    assert keep_below_topic_limit(np.array([True, True]), question(given, TEN_TOPICS)).all()


def test_topics_of_bundles_on_their_way_count() -> None:
    model = ClusterModel()
    x = bundle(1)
    model.set_namespace("tenant/ns", [x], [owned(broker("a"))])
    model.apply_report(broker("a"), report([x], topics=6, topics_per_bundle=6))
    model.set_namespace("tenant/ns", [x], [owned(broker("b"))])
    model.apply_report(broker("b"), report(topics=5))
    asked = question(model.snapshot(0, 0), TEN_TOPICS)
    assert keep_below_topic_limit(np.array([True, True]), asked).tolist() == [True, False]
    asked.projection.move("tenant/ns", 0, 1, 0)
    assert keep_below_topic_limit(np.array([True, True]), asked).tolist() == [False, True]


def test_even_distribution_can_be_switched_off_and_leaves_nobody_to_nobody() -> None:
    given = snapshot({"a": report([bundle(1)]), "b": report()})
    uneven = PlannerSettings(distribute_bundles_evenly_enabled=False)
    everyone, nobody = np.array([True, True]), np.array([False, False])
    assert keep_fewest_of_namespace(everyone, question(given)).tolist() == [False, True]
    assert keep_fewest_of_namespace(everyone, question(given, uneven)).all()
    assert not keep_fewest_of_namespace(nobody, question(given)).any()


def test_each_filter_says_how_many_brokers_it_dropped() -> None:
    reports = {
        "a": report(persistent_enabled=False),
        "b": report(topics=60_000),
        "c": report([bundle(1)]),
        "d": report(),
    }
    asked = question(snapshot(reports))
    allowed, dropped = apply(REQUIRED, np.ones(4, dtype=bool), asked)
    assert allowed.tolist() == [False, False, True, True]
    assert dropped == {"persistence_disabled": 1, "topic_limit_reached": 1}
    preferred, passed_over = apply(PREFERRED, allowed, asked)
    assert preferred.tolist() == [False, False, False, True]
    assert passed_over == {"owns_more_of_namespace": 1}
