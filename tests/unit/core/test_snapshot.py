from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import averages, bundle, report, snapshot

from loadmanager.core.model.load import DEFAULT_LOAD
from loadmanager.core.model.snapshot import bundle_load, intern_namespaces

X, Y, Z = bundle(1), bundle(2), bundle(3)


def test_bundle_without_a_record_belongs_to_its_last_reporter() -> None:
    given = snapshot({"a": report([X, Y], last_update_ms=5), "b": report([Y, Z], last_update_ms=4)})
    assert given.bundles.broker.tolist() == [0, 0, 1]
    assert given.bundles.movable.all()


def test_unreported_bundle_is_free() -> None:
    given = snapshot({"a": report([X])}, {Y: averages((1, 2, 3, 4), topics=5)})
    assert given.bundles.free.tolist() == [False, True]
    assert given.bundles.long[1].tolist() == [1, 2, 3, 4]
    assert given.bundles.topics.tolist() == [1, 5]


def test_bundle_without_history_has_the_reported_load() -> None:
    given = snapshot({"a": report({X: (1, 2, 3, 4)})})
    assert given.bundles.short.tolist() == given.bundles.long.tolist() == [[1, 2, 3, 4]]


def test_rows_are_found_by_name() -> None:
    given = snapshot({"a": report([X]), "b": report([Y])})
    assert [given.bundles.find_row(name) for name in (X, Y, Z, "")] == [0, 1, None, None]
    assert given.brokers.find_row(given.brokers.ids[1]) == 1
    assert given.find_namespace("tenant/ns") == 0
    assert given.find_namespace("tenant/other") is None


def test_unknown_bundle_has_the_default_load() -> None:
    given = snapshot({"a": report({X: (1, 2, 3, 4)})})
    assert bundle_load(given, None, "t/ns") is DEFAULT_LOAD
    assert bundle_load(given, 0, "t/ns").tolist() == [1, 2, 3, 4]


def test_derived_value_is_computed_once() -> None:
    given = snapshot({"a": report([X])})
    calls = iter(range(10))
    assert given.derive("calls", lambda: next(calls)) == 0
    assert given.derive("calls", lambda: next(calls)) == 0


def test_names_not_sorted_by_namespace_are_refused() -> None:
    with pytest.raises(AssertionError, match="sorted"):
        intern_namespaces(["a/b/1", "c/d/1", "a/b/2"])


def test_broker_columns_with_other_bundles_and_sums() -> None:
    given = snapshot({"a": report({bundle(1): (10, 0, 0, 0)}), "b": report()})
    assert given.brokers.time_average[:, 1, 0].tolist() == [10, 0]
    bundles = replace(given.bundles, broker=np.array([1], dtype=np.int32), assigned=np.array([1], dtype=np.int32))
    moved = given.brokers.with_bundles(bundles, np.array([True, False]))
    assert moved.time_average[:, 1, 0].tolist() == [0, 10]
    assert moved.settled.tolist() == [True, False]
    told = moved.with_time_average(np.full((2, 2, 4), 7.0))
    assert told.time_average.tolist() == np.full((2, 2, 4), 7.0).tolist()
    assert told.preallocated.tolist() == moved.preallocated.tolist()


def test_long_term_sums_of_selected_metrics() -> None:
    brokers = snapshot({"a": report({bundle(1): (1, 2, 3, 4), bundle(2): (5, 6, 7, 8)}), "b": report()}).brokers
    assert brokers.long_term((3, 0)).tolist() == [[12, 6], [0, 0]]
    assert brokers.with_time_average(np.full((2, 2, 4), 7.0)).long_term((1,)).tolist() == [[7], [7]]


def test_broker_sums_can_be_replaced() -> None:
    given = snapshot({"a": report([X])}, {Y: averages((1, 2, 3, 4), topics=5)}).brokers
    replaced = given.with_time_average(np.full((1, 2, 4), 7.0))
    assert replaced.time_average.tolist() == [[[7.0] * 4] * 2]
    assert replaced.preallocated.tolist() == given.preallocated.tolist()
