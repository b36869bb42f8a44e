"""What bundles without any history are taken to carry once something was learned."""

from __future__ import annotations

import numpy as np
from support.builders import averages, broker, bundle, owned, report

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.learned import NOTHING_LEARNED, Learned
from loadmanager.core.load import DEFAULT_LOAD
from loadmanager.core.ownership import FREE
from loadmanager.core.snapshot import bundle_load, snapshot_of_reports

A = broker("a")
X, Y, OTHER = bundle(1), bundle(2), bundle(1, "tenant/other")
NS = "tenant/ns"
LOAD = np.array([1.0, 2.0, 3.0, 4.0])
LEARNED = Learned({NS: LOAD}, "run-1", 1)


def long_of(model: ClusterModel) -> dict[str, list[float]]:
    bundles = model.snapshot(0.0, 0.0).bundles
    assert bundles.short.tolist() == bundles.long.tolist()
    return dict(zip(bundles.names, bundles.long.tolist(), strict=True))


def test_a_new_bundle_is_taken_to_carry_what_was_learned_of_its_namespace() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.set_namespace(NS, [X], [FREE])
    model.set_namespace("tenant/other", [OTHER], [FREE])
    assert long_of(model) == {X: LOAD.tolist(), OTHER: DEFAULT_LOAD.tolist()}


def test_what_is_learned_later_holds_for_bundles_without_any_sample_and_goes_again() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X, Y], [owned(A), FREE])
    model.apply_report(A, report({X: (9, 9, 9, 9)}))
    revision = model.revision
    model.set_learned(LEARNED)
    assert model.revision > revision
    assert long_of(model) == {X: [9, 9, 9, 9], Y: LOAD.tolist()}
    model.set_learned(NOTHING_LEARNED)
    assert long_of(model) == {X: [9, 9, 9, 9], Y: DEFAULT_LOAD.tolist()}


def test_the_first_sample_replaces_what_was_learned() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.apply_report(A, report({X: (9, 8, 7, 6)}))
    assert long_of(model) == {X: [9, 8, 7, 6]}


def test_a_restored_model_expects_what_the_first_one_did() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.set_namespace(NS, [X, Y], [FREE, FREE])
    model.seed_bundle(Y, averages((5, 5, 5, 5)))
    again = ClusterModel()
    again.set_learned(LEARNED)
    again.restore(model.image())
    assert long_of(again) == long_of(model) == {X: LOAD.tolist(), Y: [5, 5, 5, 5]}


def test_a_bundle_that_the_snapshot_does_not_know_carries_what_was_learned_of_its_namespace() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    taken = model.snapshot(0.0, 0.0)
    assert taken.learned is LEARNED
    assert bundle_load(taken, None, NS) is LOAD
    assert bundle_load(taken, None, "tenant/other") is DEFAULT_LOAD


def test_a_bundle_that_was_given_to_a_broker_and_is_in_no_report_carries_it_too() -> None:
    given = snapshot_of_reports(0.0, {A: report()}, {}, preallocated={X: A.broker}, learned=LEARNED)
    assert given.bundles.long.tolist() == [LOAD.tolist()]
    assert given.brokers.preallocated.tolist() == [LOAD.tolist()]
