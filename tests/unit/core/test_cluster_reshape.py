from __future__ import annotations

import numpy as np
import pytest
from support.builders import averages, broker, owned, report

from loadmanager.core.domain.ownership import FREE, Ownership
from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import DEFAULT_LOAD, LONG_WINDOW, BundleAverages
from loadmanager.core.model.snapshot import Snapshot

A, B = broker("a"), broker("b")
NS = "tenant/ns"
LOW, HIGH = f"{NS}/0x00000000_0x80000000", f"{NS}/0x80000000_0xffffffff"
FIRST, SECOND = f"{NS}/0x00000000_0x20000000", f"{NS}/0x20000000_0x80000000"
LOADED = (100.0, 200.0, 1000.0, 2000.0)


def known(model: ClusterModel, *names: str, owners: list[Ownership] | None = None) -> None:
    """Apply a record with these bundles, owned by A by default."""
    model.set_namespace(NS, names, owners or [owned(A)] * len(names))


@pytest.fixture
def model() -> ClusterModel:
    """A reports the lower half only."""
    model = ClusterModel()
    known(model, LOW, HIGH)
    model.apply_report(A, report({LOW: LOADED}, topics_per_bundle=8))
    return model


def history(model: ClusterModel) -> dict[str, BundleAverages]:
    return model.bundle_averages(NS)


def taken(model: ClusterModel, at_s: float = 0.0, grace_period_s: float = 60.0) -> Snapshot:
    return model.snapshot(at_s, grace_period_s)


def test_split_divides_history_by_share_of_the_range(model: ClusterModel) -> None:
    model.apply_report(A, report({LOW: LOADED}, topics_per_bundle=8))
    known(model, FIRST, SECOND, HIGH)
    found = history(model)
    assert found.keys() == {FIRST, SECOND}
    assert found[FIRST].long.tolist() == [25, 50, 250, 500]
    assert found[SECOND].short.tolist() == [75, 150, 750, 1500]
    assert {(each.long_samples, each.short_samples) for each in found.values()} == {(2, 2)}
    assert (found[FIRST].topics, found[SECOND].topics) == (2, 6)


def test_merge_adds_loads_and_keeps_the_longer_history(model: ClusterModel) -> None:
    model.apply_report(A, report({LOW: LOADED, HIGH: (1, 2, 3, 4)}, topics_per_bundle=8))
    whole = f"{NS}/0x00000000_0xffffffff"
    known(model, whole)
    found = history(model)
    assert found[whole].long.tolist() == [101, 202, 1003, 2004]
    assert (found[whole].long_samples, found[whole].topics) == (2, 16)


def test_merge_with_a_bundle_without_history_adds_nothing(model: ClusterModel) -> None:
    whole = f"{NS}/0x00000000_0xffffffff"
    known(model, whole)
    assert history(model)[whole].long.tolist() == list(LOADED)


def test_parts_of_a_bundle_without_history_have_none() -> None:
    model = ClusterModel()
    known(model, LOW, HIGH)
    known(model, FIRST, SECOND, HIGH)
    assert history(model) == {}
    assert taken(model).bundles.long.tolist() == [DEFAULT_LOAD.tolist()] * 3


def test_new_bundle_inherits_from_all_that_it_overlaps() -> None:
    model = ClusterModel()
    known(model, LOW, HIGH)
    model.apply_report(A, report({LOW: (80, 0, 0, 0), HIGH: (40, 0, 0, 0)}))
    middle = f"{NS}/0x40000000_0xc0000000"
    known(model, f"{NS}/0x00000000_0x40000000", middle, f"{NS}/0xc0000000_0xffffffff")
    assert history(model)[middle].long[0] == pytest.approx(60)
    assert sum(each.long[0] for each in history(model).values()) == pytest.approx(120)


def test_split_bundle_disappears_from_reports_and_snapshot(model: ClusterModel) -> None:
    known(model, FIRST, SECOND, HIGH)
    bundles = taken(model).bundles
    assert bundles.names == (FIRST, SECOND, HIGH)
    assert bundles.broker.tolist() == [-1, -1, -1]
    assert bundles.assigned.tolist() == [0, 0, 0]
    assert taken(model).top_bundles is not None


def test_reused_row_is_not_confused_with_its_former_bundle(model: ClusterModel) -> None:
    known(model, FIRST, SECOND, HIGH)
    model.set_namespace("tenant/other", ["tenant/other/0x00000000_0xffffffff"], [owned(B)])
    model.apply_report(B, report({"tenant/other/0x00000000_0xffffffff": LOADED}))
    model.apply_report(A, report({FIRST: LOADED}))
    model.remove_broker(A.broker)
    assert taken(model).bundles.broker.tolist() == [-1, -1, -1, 0]


def test_former_bundles_in_a_report_are_ignored_and_counted(model: ClusterModel) -> None:
    known(model, FIRST, SECOND, HIGH)
    before = history(model)
    model.apply_report(A, report({LOW: LOADED, HIGH: (1, 0, 0, 0)}))
    assert model.bundles_ignored == 1
    assert model.unknown_bundles() == {A.broker: {NS}}
    assert history(model)[FIRST].long_samples == before[FIRST].long_samples
    assert history(model).keys() == {FIRST, SECOND, HIGH}
    model.apply_report(A, report({FIRST: LOADED}))
    assert model.unknown_bundles() == {}


def test_report_ahead_of_its_record_counts_when_the_record_arrives(model: ClusterModel) -> None:
    gone = f"{NS}/0x00000000_0x11111111"
    model.apply_report(A, report({FIRST: LOADED, SECOND: (5, 0, 0, 0), gone: (7, 0, 0, 0), HIGH: (1, 0, 0, 0)}))
    assert history(model).keys() == {LOW, HIGH}
    known(model, FIRST, SECOND, HIGH)
    assert history(model)[FIRST].long_samples == 2
    assert taken(model).bundles.movable.tolist() == [True, True, True]
    assert model.unknown_bundles() == {A.broker: {NS}}
    known(model, gone, f"{NS}/0x11111111_0x80000000", HIGH)
    assert model.unknown_bundles() == {}
    model.remove_broker(A.broker)
    assert taken(model).bundles.broker.tolist() == [-1, -1, -1]


def test_bundle_without_a_record_is_known_from_reports(model: ClusterModel) -> None:
    model.remove_namespace(NS)
    model.apply_report(A, report({FIRST: LOADED}))
    assert history(model).keys() == {FIRST}
    model.remove_namespace(NS)
    model.apply_report(A, report())
    model.remove_namespace(NS)
    assert taken(model).bundles.names == ()


def test_bundle_reported_before_its_record_keeps_its_history() -> None:
    model = ClusterModel()
    model.apply_report(A, report({FIRST: LOADED, LOW: (1, 1, 1, 1)}))
    known(model, FIRST, SECOND, HIGH)
    assert history(model)[FIRST].long.tolist() == list(LOADED)
    assert history(model).keys() == {FIRST}


def test_parts_inherit_the_recent_unload(model: ClusterModel) -> None:
    model.mark_unloaded(LOW, at_s=100.0)
    model.mark_unloaded(FIRST, at_s=120.0)
    known(model, FIRST, SECOND, HIGH)
    assert model.unloads.of_bundles == {FIRST: 120.0, SECOND: 100.0}
    assert taken(model, at_s=150.0).bundles.recently_unloaded.tolist() == [True, True, False]
    known(model, LOW, HIGH)
    assert model.unloads.of_bundles == {LOW: 120.0}


def test_redistribute_divides_history_by_topic_load(model: ClusterModel) -> None:
    known(model, FIRST, SECOND, HIGH)
    revision = model.revision
    load = np.array([3.0, 1.0, 9.0, 0.0])
    model.redistribute({FIRST: PartLoad(load, 1), SECOND: PartLoad(np.array([1.0, 1.0, 0.0, 0.0]), 3)})
    found = history(model)
    assert found[FIRST].long.tolist() == [75, 100, 1000, 500]
    assert found[SECOND].short.tolist() == [25, 100, 0, 1500]
    assert (found[FIRST].topics, found[SECOND].topics) == (1, 3)
    assert model.namespaces_changed_since(revision) == {NS}


@pytest.mark.parametrize("parts", [{FIRST: 0, SECOND: 0}, {FIRST: 1, LOW: 1}, {FIRST: 1, HIGH: 1}])
def test_redistribute_without_topics_or_history_changes_nothing(model: ClusterModel, parts: dict[str, int]) -> None:
    known(model, FIRST, SECOND, HIGH)
    revision = model.revision
    model.redistribute({name: PartLoad(np.zeros(4), topics) for name, topics in parts.items()})
    assert model.revision == revision


def test_split_keeps_the_full_sample_window() -> None:
    model = ClusterModel()
    known(model, LOW, HIGH)
    model.seed_bundle(LOW, averages(LOADED, samples=LONG_WINDOW))
    known(model, FIRST, SECOND, HIGH)
    assert {each.long_samples for each in history(model).values()} == {LONG_WINDOW}


def test_change_of_owners_keeps_history(model: ClusterModel) -> None:
    known(model, LOW, HIGH, owners=[owned(B, 2), FREE])
    assert history(model)[LOW].long.tolist() == list(LOADED)
    assert model.unknown_bundles() == {}


def test_persisted_history_replaces_history_divided_by_range(model: ClusterModel) -> None:
    assert not model.awaits_division(NS)
    known(model, FIRST, SECOND, HIGH)
    assert model.awaits_division(NS)
    assert not model.awaits_division("tenant/other")
    model.seed_bundle(FIRST, averages((90, 0, 0, 0)))
    assert history(model)[FIRST].long[0] == 90
    model.seed_bundle(FIRST, averages((80, 0, 0, 0)))
    assert history(model)[FIRST].long[0] == 90
    known(model, LOW, HIGH)
    assert model.awaits_division(NS) is False


def test_history_divided_by_topics_is_not_replaced(model: ClusterModel) -> None:
    known(model, FIRST, SECOND, HIGH)
    model.redistribute({FIRST: PartLoad(np.ones(4), 1), SECOND: PartLoad(np.ones(4), 1)})
    assert not model.awaits_division(NS)
    model.seed_bundle(FIRST, averages((90, 0, 0, 0)))
    assert history(model)[FIRST].long[0] == 50
