from __future__ import annotations

import math

import numpy as np
from support.builders import broker, bundle, owned, releasing, report

from loadmanager.core.domain.ownership import FREE
from loadmanager.core.model.cluster_model import ClusterModel

A, B, GONE = broker("a"), broker("b"), broker("gone")
W, X, Y, Z = bundle(1), bundle(2), bundle(3), bundle(4)
NS = "tenant/ns"


def test_brokers_are_sorted_by_name_with_usage_load_and_ownership() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [W, X, Y, Z], [owned(A), releasing(A, B), owned(GONE), FREE])
    model.apply_report(B, report())
    model.apply_report(A, report({W: (1, 2, 30, 40), X: (1, 1, 1, 1)}))
    summary, brokers = model.summary(), model.snapshot(0.0, 0.0).brokers
    assert summary.brokers == brokers.ids == (A.broker, B.broker)
    assert np.nan_to_num(summary.usage_percent).tolist() == brokers.usage_percent.tolist()
    assert summary.load.tolist() == brokers.load.tolist()
    assert summary.owned.tolist() == [2, 0]
    assert summary.releasing == (X,)
    assert (summary.bundles, summary.unowned) == (4, 2)


def test_usage_without_a_limit_is_unknown() -> None:
    model = ClusterModel()
    model.apply_report(A, report(cpu=(40, 100), memory=(5, 0)))
    cpu, memory, *_ = model.summary().usage_percent[0].tolist()
    assert (cpu, math.isnan(memory)) == (40, True)


def test_reported_bundle_without_a_record_is_unowned() -> None:
    model = ClusterModel()
    model.apply_report(A, report({W: (1, 1, 1, 1)}))
    summary = model.summary()
    assert (summary.bundles, summary.unowned, summary.owned.tolist()) == (1, 0, [0])


def test_empty_model_has_an_empty_summary() -> None:
    summary = ClusterModel().summary()
    assert (summary.brokers, summary.bundles, summary.unowned) == ((), 0, 0)
    assert summary.usage_percent.shape == (0, 5)
    names, throughput = ClusterModel().throughput()
    assert (names, throughput.tolist()) == ((), [])


def test_throughput_names_are_reused_until_the_bundles_change() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [W, X], [owned(A), FREE])
    names, _ = model.throughput()
    model.apply_report(A, report({W: (1, 2, 30, 40)}))
    again, throughput = model.throughput()
    assert again is names == (W, X)
    assert throughput.tolist() == [70, 0]
    model.set_namespace(NS, [W, X, Y], [owned(A), FREE, FREE])
    assert model.throughput()[0] == (W, X, Y)
