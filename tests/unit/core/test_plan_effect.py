from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, bundle, report, snapshot
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.domain.plan import Unload
from loadmanager.core.model.fleet_load import carried_load, share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.plan_effect import compute_effect, imbalance_of_move
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason


def of_loads(loads: Mapping[str, list[float]]) -> Snapshot:
    """Brokers by the loads of their bundles in bytes/s; bundles are numbered consecutively."""
    numbers = itertools.count()
    return snapshot(
        {
            name: report({bundle(next(numbers)): (0.0, 0.0, each / 2, each / 2) for each in its})
            for name, its in loads.items()
        }
    )


def move(number: int, source: str, destination: str | None) -> Unload:
    target = None if destination is None else broker(destination)
    return Unload(bundle(number), broker(source), target, OverloadReason.BROKER_OVERLOADED)


def test_imbalance_is_the_highest_load_over_the_mean() -> None:
    effect = compute_effect(of_loads({"a": [6, 2], "b": [], "c": [1]}), [move(1, "a", "b")], {bundle(1): 7})
    assert effect.imbalance_before == pytest.approx(8 / 3)
    assert effect.imbalance_after == pytest.approx(6 / 3)
    assert (effect.load_moved, effect.bundles_moved, effect.clients_disturbed) == (2, 1, 7)
    assert effect.share_moved == pytest.approx(2 / 9)
    assert effect.by_broker == {broker("a").broker: (8, 6), broker("b").broker: (0, 2), broker("c").broker: (1, 1)}
    assert effect.by_bundle == {bundle(1): (2, 7)}


def test_freed_bundle_leaves_its_broker_and_counts_nowhere() -> None:
    effect = compute_effect(of_loads({"a": [4], "b": [4]}), [move(0, "a", None)])
    assert (effect.imbalance_before, effect.imbalance_after, effect.bundles_moved) == (1.0, 1.0, 1)


def test_step_for_an_unknown_bundle_moves_nothing() -> None:
    effect = compute_effect(of_loads({"a": [4], "b": [4]}), [move(9, "a", "b")])
    assert (effect.bundles_moved, effect.load_moved) == (0, 0.0)


@pytest.mark.parametrize("loads", [{}, {"a": []}, {"a": [0, 0], "b": []}])
def test_an_idle_cluster_is_balanced(loads: Mapping[str, list[float]]) -> None:
    effect = compute_effect(of_loads(loads), [])
    assert (effect.imbalance_before, effect.imbalance_after, effect.share_moved) == (1.0, 1.0, 0.0)


def test_emptied_broker_does_not_count_for_the_mean() -> None:
    cluster = of_loads({"a": [4, 4], "b": [4], "c": [4]})
    effect = compute_effect(cluster, [move(0, "a", "b"), move(1, "a", "c")], emptied={broker("a").broker})
    assert (effect.imbalance_before, effect.imbalance_after) == (1.0, 1.0)


def test_share_of_a_bundle_is_relative_to_all_load() -> None:
    cluster = of_loads({"a": [3], "b": [1]})
    assert share_of(cluster, bundle(1)) == pytest.approx(0.25)
    assert share_of(cluster, bundle(9)) == 0.0
    assert share_of(of_loads({"a": [0]}), bundle(0)) == 0.0


@given(clusters(), st.data())
def test_plan_moves_at_most_all_load(cluster: SomeCluster, data: st.DataObject) -> None:
    taken = Build().snapshot(cluster)
    brokers = taken.brokers.registrations
    names = data.draw(st.lists(st.sampled_from(taken.bundles.names), unique=True)) if len(taken.bundles) else []
    steps = [
        Unload(name, brokers[0], data.draw(st.sampled_from(brokers)), OverloadReason.BROKER_OVERLOADED)
        for name in names
        if taken.bundles.assigned[taken.bundles.find_row(name)] >= 0
    ]
    effect = compute_effect(taken, steps)
    assert effect.load_moved <= carried_load(taken).sum() * (1 + 1e-9)


def test_effect_of_one_move() -> None:
    taken = of_loads({"b1": [60.0, 30.0], "b2": [10.0], "b3": []})
    b1, b2, b3 = (broker(name).broker for name in ("b1", "b2", "b3"))
    mean = 100 / 3
    assert imbalance_of_move(taken, bundle(0), b1, b3) == pytest.approx((90 / mean, 60 / mean))
    assert imbalance_of_move(taken, bundle(0), b1, None) == pytest.approx((90 / mean, 30 / mean))
    assert imbalance_of_move(taken, bundle(2), b1, b2) == pytest.approx((100 / mean, 90 / mean)), "it is there already"
    assert imbalance_of_move(taken, bundle(9), b1, b2) == pytest.approx((90 / mean, 90 / mean)), "an unknown bundle"


def test_effect_of_assigning_a_free_bundle() -> None:
    taken = of_loads({"b1": [60.0], "b2": [30.0]})
    taken = replace(taken, bundles=replace(taken.bundles, assigned=np.array([0, -1], dtype=np.int32)), _derived={})
    before, after = imbalance_of_move(taken, bundle(1), None, broker("b2").broker)
    assert (before, after) == pytest.approx((2.0, 2.0))
