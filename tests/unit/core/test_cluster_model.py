from __future__ import annotations

import numpy as np
import pytest
from support.builders import averages, broker, bundle, owned, releasing, report
from support.model_memory import hot_bytes

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import FREE, Stamp, owner_gone
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import DEFAULT_LOAD
from loadmanager.core.model.owner_columns import RegistrationRows
from loadmanager.core.model.snapshot import LONG_TERM, Snapshot

A, B, C = broker("a"), broker("b"), broker("c")
X, Y, Z = bundle(1), bundle(2), bundle(3)
NS = "tenant/ns"


def taken(model: ClusterModel, at_s: float = 0.0, grace_period_s: float = 0.0) -> Snapshot:
    return model.snapshot(at_s, grace_period_s)


def settled(model: ClusterModel) -> dict[str, bool]:
    brokers = taken(model).brokers
    return {str(name): bool(flag) for name, flag in zip(brokers.ids, brokers.settled, strict=True)}


def long_term_rate(model: ClusterModel) -> dict[str, tuple[float, float]]:
    """Message rate in per broker: of the bundles it reports and owns, and of preallocated ones."""
    brokers = taken(model).brokers
    average, given = brokers.time_average[:, LONG_TERM, 0], brokers.preallocated[:, 0]
    return dict(zip(brokers.ids, zip(average.tolist(), given.tolist(), strict=True), strict=True))


@pytest.fixture
def model() -> ClusterModel:
    """A owns and reports X and Y; B has nothing."""
    model = ClusterModel()
    model.set_namespace(NS, [X, Y], [owned(A), owned(A)])
    model.apply_report(A, report({X: (10, 0, 0, 0), Y: (20, 0, 0, 0)}))
    model.apply_report(B, report())
    return model


def test_report_adds_one_sample_to_its_own_bundles() -> None:
    model = ClusterModel()
    model.apply_report(A, report({X: (10, 0, 0, 0)}))
    model.apply_report(B, report({Y: (5, 0, 0, 0)}))
    model.apply_report(A, report({X: (20, 0, 0, 0)}, topics_per_bundle=7))
    history = model.bundle_averages(NS)
    assert (history[X].long[0], history[X].long_samples, history[X].short_samples, history[X].topics) == (15, 2, 2, 7)
    assert (history[Y].long[0], history[Y].long_samples) == (5, 1)


def test_a_snapshot_lists_brokers_and_bundles_by_name(model: ClusterModel) -> None:
    other = bundle(0, "tenant/a")
    model.set_namespace("tenant/a", [other], [FREE])
    bundles = taken(model).bundles
    assert bundles.names == (other, X, Y)
    assert bundles.namespaces == ("tenant/a", NS)
    assert bundles.namespace.tolist() == [0, 1, 1]
    assert bundles.broker.tolist() == [-1, 0, 0]
    assert bundles.free.tolist() == [True, False, False]
    assert bundles.movable.tolist() == [False, True, True]
    assert taken(model).brokers.ids == (A.broker, B.broker)


def test_ownership_counts_only_for_its_registration(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y], [owned(A), owned(broker("a", incarnation=2))])
    assert taken(model).bundles.broker.tolist() == [0, -1]
    assert taken(model).bundles.free.tolist() == [False, True]


def test_re_registered_broker_starts_without_load(model: ClusterModel) -> None:
    again = broker("a", incarnation=2)
    model.apply_report(again, report())
    assert list(model.latest_reports()) == [again, B]
    assert long_term_rate(model)[A.broker] == (0, 0)
    assert taken(model).bundles.free.tolist() == [True, True]
    assert model.bundle_averages(NS)[X].long[0] == 10


def test_removed_broker_is_dropped_and_its_bundles_history_kept(model: ClusterModel) -> None:
    revision = model.revision
    model.remove_broker(A.broker)
    assert list(model.latest_reports()) == [B]
    assert model.revision > revision
    assert model.bundle_averages(NS).keys() == {X, Y}
    revision = model.revision
    model.remove_broker(A.broker)
    assert model.revision == revision


def test_unreported_bundle_counts_as_preallocated_at_its_new_owner(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y, Z], [owned(A), owned(A), owned(B)])
    assert long_term_rate(model) == {A.broker: (30, 0), B.broker: (0, DEFAULT_LOAD[0])}
    model.apply_report(B, report({Z: (3, 0, 0, 0)}))
    assert long_term_rate(model) == {A.broker: (30, 0), B.broker: (3, 0)}


def test_transferred_bundle_counts_once_at_its_destination(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y], [releasing(A, B), owned(A)])
    assert long_term_rate(model) == {A.broker: (20, 0), B.broker: (0, 10)}
    assert taken(model).bundles.movable.tolist() == [False, True]
    assert taken(model).bundles.assigned.tolist() == [1, 0]
    model.set_namespace(NS, [X, Y], [owned(B, 3), owned(A)])
    assert long_term_rate(model) == {A.broker: (20, 0), B.broker: (0, 10)}
    model.apply_report(B, report({X: (12, 0, 0, 0)}))
    assert long_term_rate(model) == {A.broker: (20, 0), B.broker: (11, 0)}


def test_release_without_a_destination_counts_nowhere_and_is_not_free(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y], [releasing(A), owned(A)])
    assert long_term_rate(model) == {A.broker: (20, 0), B.broker: (0, 0)}
    assert taken(model).bundles.free.tolist() == [False, False]


def test_broker_settles_when_it_reports_without_the_released_bundle(model: ClusterModel) -> None:
    assert settled(model) == {A.broker: True, B.broker: True}
    model.set_namespace(NS, [X, Y], [releasing(A, B), owned(A)])
    assert settled(model) == {A.broker: False, B.broker: True}
    model.set_namespace(NS, [X, Y], [owned(B, 3), owned(A)])
    model.apply_report(B, report({X: (10, 0, 0, 0)}))
    assert settled(model) == {A.broker: False, B.broker: True}
    model.apply_report(A, report({Y: (20, 0, 0, 0)}))
    assert settled(model) == {A.broker: True, B.broker: True}


def test_late_report_of_the_former_owner_is_ignored(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y], [owned(B, 3), owned(A)])
    model.apply_report(B, report({X: (10, 0, 0, 0)}))
    model.apply_report(A, report({X: (500, 0, 0, 0), Y: (20, 0, 0, 0)}))
    assert long_term_rate(model) == {A.broker: (20, 0), B.broker: (10, 0)}
    assert settled(model) == {A.broker: False, B.broker: True}


def test_later_report_of_an_unowned_bundle_wins() -> None:
    model = ClusterModel()
    model.apply_report(A, report([X]))
    model.apply_report(B, report([X]))
    assert settled(model) == {A.broker: False, B.broker: True}
    model.apply_report(A, report())
    assert settled(model) == {A.broker: True, B.broker: True}


def test_history_is_kept_while_a_record_or_a_report_has_the_bundle(model: ClusterModel) -> None:
    other = bundle(1, "tenant/unrecorded")
    model.apply_report(A, report({X: (10, 0, 0, 0), other: (1, 0, 0, 0)}))
    assert model.bundle_averages(NS).keys() == {X, Y}
    assert model.bundle_averages("tenant/unrecorded").keys() == {other}
    model.apply_report(A, report())
    assert model.bundle_averages("tenant/unrecorded") == {}
    model.set_namespace(NS, [X], [owned(A)])
    assert model.bundle_averages(NS).keys() == {X}
    model.remove_namespace(NS)
    assert model.bundle_averages(NS) == {}
    assert taken(model).bundles.names == ()


def test_forgotten_bundle_that_returns_starts_with_the_default_load(model: ClusterModel) -> None:
    model.apply_report(A, report())
    model.remove_namespace(NS)
    other = bundle(9, "tenant/other")
    model.set_namespace("tenant/other", [other], [FREE])
    model.set_namespace(NS, [X], [FREE])
    bundles = taken(model).bundles
    assert bundles.names == (X, other)
    assert bundles.long.tolist() == [DEFAULT_LOAD.tolist()] * 2
    assert model.bundle_averages(NS) == {}


def test_rows_of_forgotten_bundles_are_reused() -> None:
    model = ClusterModel()
    for generation in range(50):
        namespace = f"tenant/ns-{generation}"
        model.set_namespace(namespace, [bundle(i, namespace) for i in range(100)], [FREE] * 100)
        model.remove_namespace(namespace)
    assert hot_bytes(model) < 150 * 136


def test_forgotten_disputed_bundle_starts_with_one_sample() -> None:
    model = ClusterModel()
    model.apply_report(A, report([X]))
    model.apply_report(B, report([X]))
    model.apply_report(B, report())
    assert taken(model).bundles.names == ()
    model.apply_report(C, report([Y]))
    model.apply_report(A, report([X]))
    assert taken(model).bundles.names == (X, Y)
    assert model.bundle_averages(NS)[X].long_samples == 1


def test_namespace_changes_with_samples_and_forgotten_bundles(model: ClusterModel) -> None:
    revision = model.revision
    assert model.namespaces_changed_since(revision) == set()
    model.apply_report(B, report([bundle(0, "tenant/other")]))
    assert model.namespaces_changed_since(revision) == {"tenant/other"}
    revision = model.revision
    model.set_namespace(NS, [X, Y], [owned(B), owned(A)])
    assert model.namespaces_changed_since(revision) == set()
    model.apply_report(A, report([X]))
    model.set_namespace(NS, [X], [owned(A)])
    assert model.namespaces_changed_since(model.revision - 1) == {NS}


def test_persisted_history_replaces_a_shorter_own_one(model: ClusterModel) -> None:
    model.seed_bundle(X, averages((70, 0, 0, 0), samples=500, topics=3))
    assert (model.bundle_averages(NS)[X].long[0], model.bundle_averages(NS)[X].long_samples) == (70, 500)
    assert model.bundle_averages(NS)[X].short_samples == 10
    model.seed_bundle(X, averages((90, 0, 0, 0), samples=400))
    assert model.bundle_averages(NS)[X].long[0] == 70
    model.seed_bundle(Z, averages((90, 0, 0, 0), samples=400))
    assert taken(model).bundles.names == (X, Y)


def test_an_unloaded_bundle_is_recent_for_the_grace_period(model: ClusterModel) -> None:
    model.mark_unloaded(X, at_s=100.0)
    model.mark_unloaded(Z, at_s=100.0)
    assert taken(model, 160.0, 60.0).bundles.recently_unloaded.tolist() == [True, False]
    assert taken(model, 160.5, 60.0).bundles.recently_unloaded.tolist() == [False, False]
    assert model.unloads.of_bundles == {}


def test_restored_unload_does_not_replace_a_later_one(model: ClusterModel) -> None:
    model.mark_unloaded(X, at_s=100.0)
    model.restore_unloaded({X: 50.0, Y: 60.0})
    assert model.unloads.of_bundles == {X: 100.0, Y: 60.0}


def test_view_of_a_column_keeps_its_values_when_columns_grow() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X], [owned(A)])
    looking = model._rows.columns.owner[:1]
    seen = looking.tolist()
    model.set_namespace("tenant/z", [bundle(number, "tenant/z") for number in range(500)], [owned(B)] * 500)
    model.set_namespace(NS, [X], [owned(B)])
    assert looking.tolist() == seen
    assert len(model.bundles_of(B)) == 501


def test_persisted_broker_sums_equal_those_of_the_snapshot(model: ClusterModel) -> None:
    model.mark_unloaded(X, at_s=100.0)
    sums = model.broker_time_averages()
    assert {str(name): value.tolist() for name, value in sums.items()} == {
        A.broker: [[30, 0, 0, 0], [30, 0, 0, 0]],
        B.broker: [[0, 0, 0, 0], [0, 0, 0, 0]],
    }
    assert model.unloads.of_bundles == {X: 100.0}


def test_unreferenced_registrations_are_dropped(model: ClusterModel) -> None:
    model.set_namespace(NS, [X, Y], [owned(A), releasing(A, B)])
    for incarnation in range(3000):
        model.apply_report(broker("c", incarnation), report([bundle(3, "tenant/z")]))
    model.apply_report(A, report({X: (10, 0, 0, 0), Y: (20, 0, 0, 0)}))
    assert model._owners.registrations.size < 1100
    assert taken(model).bundles.assigned.tolist() == [0, 1, -1]


def test_registrations_of_lost_brokers_are_not_scanned_with_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full restart few brokers are registered, and records name all former ones."""
    model, keep, sought = ClusterModel(), RegistrationRows.keep, list[int]()

    def keep_seen(rows: RegistrationRows, used: set[int]) -> None:
        sought.append(len(used))
        keep(rows, used)

    monkeypatch.setattr(RegistrationRows, "keep", keep_seen)
    names = [bundle(number) for number in range(2000)]
    model.set_namespace(NS, names, [owned(broker("a", life)) for life in range(2000)])
    for version in range(50):
        model.set_owners({names[0]: owned(broker("a", 0), version)})
    assert len(sought) == 1


def test_owners_are_those_of_the_current_records(model: ClusterModel) -> None:
    assert model.owners() == {A}
    model.set_namespace(NS, [X, Y, Z], [releasing(C, B), owned(broker("a", 2)), FREE])
    assert model.owners() == {C, broker("a", 2)}
    model.remove_namespace(NS)
    assert model.owners() == set()


def test_names_are_interned(model: ClusterModel) -> None:
    own = model.own_names([bundle(1), bundle(2)])
    assert (own[0] is X, own[1] is Y) == (True, True)


def test_record_with_a_bundle_of_another_namespace_is_refused() -> None:
    with pytest.raises(AssertionError, match="bundles of tenant/ns only"):
        ClusterModel().set_namespace(NS, [bundle(1, "tenant/other")], [FREE])


def test_snapshot_is_immutable(model: ClusterModel) -> None:
    before = taken(model)
    model.apply_report(A, report({X: (1000, 0, 0, 0)}))
    model.set_namespace(NS, [X], [FREE])
    assert before.bundles.names == (X, Y)
    assert before.bundles.long[:, 0].tolist() == [10, 20]
    assert before.revision < taken(model).revision
    with pytest.raises(ValueError, match="read-only"):
        before.bundles.long[0, 0] = 1


@pytest.mark.parametrize("bundles", [10_000, 10_001, 33_333])
def test_hot_state_stays_within_136_bytes_a_bundle(bundles: int) -> None:
    model = ClusterModel()
    names = [bundle(i) for i in range(bundles)]
    for step in (bundles // 2, bundles - 1, bundles):
        model.set_namespace(NS, names[:step], [FREE] * step)
        model.apply_report(A, report(names[:step]))
        taken(model)
    assert hot_bytes(model) <= 136 * bundles


@pytest.mark.deep
def test_hot_state_stays_within_136_bytes_when_bundles_come_one_by_one() -> None:
    model = ClusterModel()
    ratios = []
    for number in range(10_400):
        model.apply_report(broker("a"), report([bundle(number, f"t/{number}")]))
        model.set_namespace(f"t/{number}", [bundle(number, f"t/{number}")], [FREE])
        if number >= 10_000:
            ratios.append(hot_bytes(model) / (number + 1))
    taken(model)
    ratios.append(hot_bytes(model) / 10_400)
    assert max(ratios) <= 136


def test_an_empty_model_gives_an_empty_snapshot() -> None:
    empty = taken(ClusterModel())
    assert (len(empty.brokers), len(empty.bundles)) == (0, 0)
    assert empty.brokers.time_average.shape == (0, 2, 4)
    assert np.array_equal(empty.brokers.preallocated, np.empty((0, 4)))


def test_bundles_are_known_from_records_and_from_reports(model: ClusterModel) -> None:
    other = bundle(3, "tenant/unrecorded")
    model.apply_report(B, report([other]))
    assert all(name in model.known_bundles for name in (X, Y, other))
    assert bundle(4) not in model.known_bundles


def test_release_of_a_lost_broker_counts_at_its_destination(model: ClusterModel) -> None:
    gone = broker("gone")
    model.set_namespace(NS, [X, Y], [releasing(gone, B), releasing(gone)])
    assert taken(model).bundles.assigned.tolist() == [1, -1]
    assert taken(model).bundles.free.tolist() == [False, True]


def test_samples_are_counted_per_bundle() -> None:
    model = ClusterModel()
    for _ in range(12):
        model.apply_report(broker("a"), report([bundle(1)]))
    assert model.count_samples(bundle(1)) == (10, 12)
    assert model.count_samples(bundle(2)) == (0, 0)


def test_namespaces_are_in_the_order_of_their_bundles() -> None:
    model = ClusterModel()
    for namespace in ("tenant/b", "tenant/b-c", "tenant/b0", "tenant/a.b", "tenant-2/b", "tenant/a"):
        model.set_namespace(namespace, [bundle(1, namespace), bundle(2, namespace)], [FREE, FREE])
    bundles = taken(model).bundles
    assert [bundles.namespaces[position] for position in bundles.namespace.tolist()] == [
        namespace_of(name) for name in bundles.names
    ]
    assert bundles.namespace.tolist() == sorted(bundles.namespace.tolist())


def test_updated_order_equals_a_new_sort() -> None:
    rng = np.random.default_rng(1)
    kept = ClusterModel()
    for _ in range(30):
        for namespace in ("tenant/a", "tenant/b", "tenant/a-b"):
            names = [
                bundle(int(number), namespace) for number in np.sort(rng.choice(40, rng.integers(1, 12), replace=False))
            ]
            kept.set_namespace(namespace, names, [FREE] * len(names))
            if rng.random() < 0.5:
                taken(kept)
        fresh = ClusterModel()
        for namespace in sorted({namespace_of(name) for name in taken(kept).bundles.names}):
            names = [name for name in taken(kept).bundles.names if namespace_of(name) == namespace]
            fresh.set_namespace(namespace, names, [FREE] * len(names))
        one, other = taken(kept).bundles, taken(fresh).bundles
        assert (one.names, one.namespaces, one.namespace.tolist()) == (
            other.names,
            other.namespaces,
            other.namespace.tolist(),
        )
        assert one.names == tuple(sorted(set(one.names)))
        for name in one.names:
            assert kept._rows.names[kept._rows.order().rows[one.names.index(name)]] == name


def test_owners_owned_and_releasing_bundles_follow_the_records() -> None:
    model, former = ClusterModel(), broker("a", incarnation=9)
    assert (model.owners(), model.releasing(), model.bundles_owned_by([A])) == (set(), [], [])
    model.set_namespace(NS, [X, Y, Z, bundle(4)], [owned(A), releasing(B, C), owned(former), FREE])
    assert model.owners() == {A, B, former}
    assert model.releasing() == [Y]
    assert model.bundles_owned_by([A, B, C]) == [X]
    assert model.bundles_owned_by([former, A]) == [X, Z]
    model.set_owners({X: owned(former)})
    assert (model.owners(), model.bundles_owned_by([A])) == ({B, former}, [])
    freed = owner_gone(owned(former), Stamp(1, 1000, OwnershipReason.OWNER_GONE.value))
    model.set_owners({Z: freed})
    assert model.bundles_owned_by([former]) == [X]
    model.remove_namespace(NS)
    assert (model.owners(), model.releasing(), model.bundles_owned_by([former])) == (set(), [], [])
