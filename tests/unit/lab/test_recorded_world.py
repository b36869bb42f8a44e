from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from loadmanager.core.domain.names import HASH_SPACE_END, BrokerId
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.lab.simulate.calibration import FleetCalibration
from loadmanager.lab.simulate.fleet_events import (
    BrokerJoins,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    LeaderElected,
    NewNamespace,
)
from loadmanager.lab.simulate.recorded_world import (
    HOLD_S,
    BrokerPresence,
    BrokerRows,
    BundleRows,
    RecordedRange,
    recorded_range,
)
from loadmanager.lab.simulate.trial import FleetChange, Trial

HALF = 0x80000000
WHOLE, LOWER, UPPER = (0, HASH_SPACE_END), (0, HALF), (HALF, HASH_SPACE_END)
HOUR_S = 3600.0
LIMITS = (400.0, 4096.0, 1024.0, 1e6, 1e6)

Bundle = tuple[str, tuple[int, int], float]
"""Namespace, range, and messages/s that come in."""


def recorded(*reports: tuple[float, str, Sequence[Bundle]], duration_s: float = HOUR_S) -> RecordedRange:
    """Recording of these reports in order: time, broker, and its bundles."""
    rows = [(number, *bundle) for number, (_, _, bundles) in enumerate(reports) for bundle in bundles]
    load = np.zeros((len(rows), 4))
    load[:, 0] = [rate for *_, rate in rows]
    count = len(reports)
    return recorded_range(
        BrokerRows(
            np.array([at_s for at_s, _, _ in reports], dtype=np.float64),
            np.array([f"{broker}:8080" for _, broker, _ in reports], dtype=object),
            np.tile(np.array(LIMITS), (count, 1)),
            np.array(["1.0.0"] * count, dtype=object),
            np.array([""] * count, dtype=object),
        ),
        BundleRows(
            np.array([number for number, *_ in rows], dtype=np.int64),
            np.array([f"tenant/{namespace}" for _, namespace, _, _ in rows], dtype=object),
            np.array([lower for _, _, (lower, _), _ in rows], dtype=np.int64),
            np.array([upper for _, _, (_, upper), _ in rows], dtype=np.int64),
            load,
            np.full(len(rows), 7, dtype=np.int64),
            np.full(len(rows), 9, dtype=np.int64),
        ),
        duration_s,
    )


def rates(given: RecordedRange, t_s: float) -> list[float]:
    """Messages/s that come in, by bundle of the world."""
    found: list[float] = given.loads.load_at(t_s)[:, 0].tolist()
    return found


def test_load_holds_until_the_next_report() -> None:
    given = recorded((5.0, "a", [("ns", WHOLE, 10.0)]), (100.0, "a", [("ns", WHOLE, 30.0)]))

    assert [rates(given, t_s) for t_s in (0.0, 60.0, 99.9, 100.0, 3000.0)] == [[10.0], [10.0], [10.0], [30.0], [0.0]]


def test_v1_namespace_is_split_and_balanced_as_any_other() -> None:
    results = []
    for name in ("c1/old", "old"):
        of_a, of_b = [(name, LOWER, 200_000.0), (name, UPPER, 10.0)], [("other", WHOLE, 10.0)]
        reports = [(at_s, *each) for at_s in np.arange(0.0, HOUR_S, 60.0) for each in (("a", of_a), ("b", of_b))]
        results.append(Trial(PlannerSettings()).world(recorded(*reports)).run(HOUR_S))

    first, usual = results
    assert len(first.splits) == len(usual.splits) > 0
    assert first.series.worst_usage.tolist() == usual.series.worst_usage.tolist()


def test_load_of_an_earlier_time_is_repeatable() -> None:
    given = recorded((0.0, "a", [("ns", WHOLE, 10.0)]), (100.0, "a", [("ns", WHOLE, 30.0)]))

    assert [rates(given, t_s) for t_s in (200.0, 0.0, 200.0)] == [[30.0], [10.0], [30.0]]
    assert given.loads.topics_at(200.0).tolist() == [7]
    assert given.loads.sessions_at(0.0).tolist() == [9]


def test_moved_bundle_keeps_its_load_until_the_new_broker_reports_it() -> None:
    given = recorded(
        (0.0, "a", [("ns", LOWER, 10.0), ("ns", UPPER, 1.0)]),
        (0.0, "b", []),
        (60.0, "a", [("ns", UPPER, 2.0)]),
        (300.0, "b", [("ns", LOWER, 12.0)]),
    )

    assert [rates(given, t_s) for t_s in (59.0, 60.0, 299.0, 300.0)] == [[10, 1], [10, 2], [10, 2], [12, 2]]


def test_bundle_missing_from_reports_carries_nothing() -> None:
    given = recorded(
        (0.0, "a", [("ns", LOWER, 10.0), ("ns", UPPER, 1.0)]),
        (60.0, "a", [("ns", UPPER, 2.0)]),
        (120.0, "a", [("ns", UPPER, 2.0)]),
        (60.0 + HOLD_S + 1, "a", [("ns", LOWER, 5.0), ("ns", UPPER, 2.0)]),
    )

    assert [rates(given, t_s) for t_s in (59.0, 60.0, 962.0)] == [[10, 1], [0, 2], [5, 2]]


def test_loads_of_split_parts_are_added_up() -> None:
    given = recorded(
        (0.0, "a", [("ns", WHOLE, 10.0)]),
        (60.0, "a", [("ns", LOWER, 4.0), ("ns", UPPER, 7.0)]),
        (120.0, "a", [("ns", LOWER, 5.0), ("ns", UPPER, 7.0)]),
    )

    assert [spec.boundaries for spec in given.namespaces] == [(0, HASH_SPACE_END)]
    assert [rates(given, t_s) for t_s in (0.0, 60.0, 120.0)] == [[10.0], [11.0], [12.0]]


def test_load_of_a_merged_bundle_is_spread_by_width() -> None:
    given = recorded(
        (0.0, "a", [("ns", LOWER, 4.0), ("ns", UPPER, 7.0)]),
        (60.0, "a", [("ns", WHOLE, 20.0)]),
    )

    assert rates(given, 0.0) == [4.0, 7.0]
    assert rates(given, 60.0) == pytest.approx([10.0, 10.0])


def test_unreported_hash_ranges_are_bundles_without_load() -> None:
    given = recorded((0.0, "a", [("ns", (0x20000000, HALF), 4.0)]))

    assert given.namespaces[0].boundaries == (0, 0x20000000, HALF, HASH_SPACE_END)
    assert given.namespaces[0].owners == (None, "a:8080", None)
    assert rates(given, 0.0) == [0.0, 4.0, 0.0]


def test_brokers_and_namespaces_come_and_go_as_recorded() -> None:
    given = recorded(
        (0.0, "a", [("old", WHOLE, 1.0)]),
        (0.0, "gone", []),
        *((60.0 * minute, "a", [("old", WHOLE, 1.0)]) for minute in range(1, 60)),
        (1200.0, "new", [("young", WHOLE, 3.0)]),
        (1260.0, "again", []),
        (3590.0, "again", []),
        (3599.0, "new", [("young", WHOLE, 3.0)]),
    )

    assert [spec.id for spec in given.brokers] == ["a:8080", "gone:8080"]
    assert given.namespaces[0].owners == ("a:8080",)
    joins = [(event.at_s, event.broker.id) for event in given.events if isinstance(event, BrokerJoins)]
    assert joins == [(1200.0, "new:8080"), (1260.0, "again:8080")]
    restarts = [event for event in given.events if isinstance(event, BrokersRestart)]
    assert BrokersRestart(at_s=1260.0, brokers=(BrokerId("again:8080"),), down_s=2330.0) in restarts
    assert BrokersStop(at_s=0.0, brokers=(BrokerId("gone:8080"),), drain=False) in given.events
    appearing = [event for event in given.events if isinstance(event, NewNamespace)]
    assert [(event.at_s, event.namespace.name) for event in appearing] == [(1200.0, "tenant/young")]
    assert rates(given, 1199.0) == [1.0, 0.0]
    assert rates(given, 1200.0) == [1.0, 3.0]


def test_broker_reported_early_exists_from_the_start() -> None:
    given = recorded((0.0, "a", []), (HOLD_S, "b", [("ns", WHOLE, 5.0)]))

    assert {spec.id for spec in given.brokers} == {"a:8080", "b:8080"}
    assert given.namespaces[0].owners == ("b:8080",)
    assert rates(given, 0.0) == [5.0]


def test_unknown_limit_is_the_default() -> None:
    given = recorded((0.0, "a", [("ns", WHOLE, 5.0)]))
    limits = np.array([[400.0, 0.0, 1024.0, np.inf, -1.0]])
    rows = BrokerRows(np.zeros(1), np.array(["a:8080"], object), limits, *[np.array([""], object)] * 2)
    none = np.zeros(1, dtype=np.int64)
    one = BundleRows(none, np.array(["tenant/ns"], object), none, none + HASH_SPACE_END, np.ones((1, 4)), none, none)

    found = recorded_range(rows, one, HOUR_S).brokers[0].capacity

    usual = BrokerSpec(BrokerId("a:8080")).capacity
    assert found == (400.0, usual[1], 1024.0, usual[3], usual[4])
    assert given.brokers[0].capacity == LIMITS


def test_limit_missing_in_the_first_report_is_that_of_a_later_one() -> None:
    limits = np.array([[0.0] * 5, [400.0, 0.0, 1024.0, 15e3, 15e3], [800.0, 0.0, 1024.0, 15e3, 15e3]])
    rows = BrokerRows(np.arange(3.0), np.array(["a:8080"] * 3, object), limits, *[np.array([""] * 3, object)] * 2)
    none = np.zeros(1, dtype=np.int64)
    one = BundleRows(none, np.array(["tenant/ns"], object), none, none + HASH_SPACE_END, np.ones((1, 4)), none, none)

    found = recorded_range(rows, one, HOUR_S).brokers[0].capacity

    assert found == (400.0, BrokerSpec(BrokerId("a:8080")).capacity[1], 1024.0, 15e3, 15e3)


def test_range_without_loaded_bundles_is_an_error() -> None:
    with pytest.raises(ValueError, match="the range has no reports of loaded bundles"):
        recorded((0.0, "a", []))


def some_range() -> RecordedRange:
    return recorded(
        *(
            (60.0 * minute, name, [(name, LOWER, rate), (name, UPPER, rate)])
            for minute in range(60)
            for name, rate in (("a", 9000.0), ("b", 10.0), ("c", 10.0))
        )
    )


def test_pickled_range_runs_to_the_same_result() -> None:
    given = some_range()
    given.loads.load_at(1800.0)

    digests = {
        Trial(PlannerSettings(), seed=3).world(each).run(HOUR_S).digest()
        for each in (given, given, pickle.loads(pickle.dumps(given)), some_range())
    }

    assert len(digests) == 1
    assert Trial(PlannerSettings(), seed=4).world(given).run(HOUR_S).digest() not in digests


def test_bundles_of_a_removed_broker_are_placed_on_the_others() -> None:
    change = FleetChange(removed=frozenset({BrokerId("a:8080")}))

    result = Trial(PlannerSettings(), change=change).world(some_range()).run(HOUR_S)

    assert set(result.series.brokers.tolist()) == {2}
    assert result.placements == 2
    assert result.series.unowned[-1] == 0


def test_added_broker_joins_the_fleet() -> None:
    change = FleetChange(added=(BrokerSpec(BrokerId("d:8080"), LIMITS),))

    result = Trial(PlannerSettings(), change=change).world(some_range()).run(HOUR_S)

    assert set(result.series.brokers.tolist()) == {4}


def test_slower_broker_is_used_more_and_doubled_namespace_carries_twice() -> None:
    plain, slow, double = (
        Trial(PlannerSettings(), change=change).world(some_range()).run(120.0).series
        for change in (
            FleetChange(),
            FleetChange(speeds={BrokerId("a:8080"): 0.5}),
            FleetChange(loads={"tenant/a": 2.0}),
        )
    )

    assert slow.worst_usage[0] > 1.5 * plain.worst_usage[0]
    assert slow.load.tolist() == plain.load.tolist()
    assert double.worst_usage[0] > 1.5 * plain.worst_usage[0]


def test_removal_of_all_brokers_is_rejected() -> None:
    change = FleetChange(removed=frozenset(map(BrokerId, ("a:8080", "b:8080", "c:8080"))))
    with pytest.raises(ValueError, match="no broker is left"):
        Trial(PlannerSettings(), change=change).world(some_range())


def test_brokers_come_and_go_at_recorded_times() -> None:
    rows = recorded_rows((0.0, "a"), (5.0, "b"), (100.0, "a"), (110.0, "c"))
    presence = [
        BrokerPresence(4.0, "b:8080", is_there=True),
        BrokerPresence(50.0, "a:8080", is_there=False),
        BrokerPresence(90.0, "a:8080", is_there=True),
        BrokerPresence(105.0, "c:8080", is_there=True),
        BrokerPresence(120.0, "c:8080", is_there=False),
        BrokerPresence(300.0, "d:8080", is_there=True),
    ]
    found = recorded_range(*rows, 200.0, presence)
    assert [spec.id for spec in found.brokers] == ["a:8080"]
    assert {(type(event), event.at_s) for event in found.events} == {
        (BrokerJoins, 4.0),
        (BrokersRestart, 50.0),
        (BrokerJoins, 105.0),
        (BrokersStop, 120.0),
    }


def test_calibrated_load_starts_before_its_report() -> None:
    rows = recorded_rows((0.0, "a"), (100.0, "a"))
    calibration = FleetCalibration(stats_interval_s=20.0, elections_s=(30.0,))
    found = recorded_range(*rows, 200.0, calibration=calibration)
    assert (found.calibration, found.events) == (calibration, (LeaderElected(30.0),))
    assert [float(found.loads.load_at(t_s)[0, 0]) for t_s in (0.0, 86.9, 87.0, 100.0)] == [1, 1, 2, 2]


def test_fleet_that_starts_empty_carries_nothing_until_reported() -> None:
    rows = recorded_rows((50.0, "a"), (100.0, "a"))
    assert recorded_range(*rows, 200.0).loads.load_at(0.0)[0, 0] == 1
    found = recorded_range(*rows, 200.0, starts_empty=True)
    assert [float(found.loads.load_at(t_s)[0, 0]) for t_s in (0.0, 49.0, 50.0, 100.0)] == [0, 0, 1, 2]


@pytest.mark.parametrize(("again_s", "seen"), [(12.0, [1, 1, 3]), (500.0, [1, 2, 2])])
def test_first_figures_after_a_move_cover_part_of_an_interval(again_s: float, seen: list[float]) -> None:
    rows = recorded_rows((0.0, "a"), (10.0, "b"), (again_s, "b"))
    found = recorded_range(*rows, 600.0, calibration=FleetCalibration(stats_interval_s=1.0)).loads
    assert [float(found.load_at(t_s)[0, 0]) for t_s in (5.0, 9.0, 12.0)] == seen


def recorded_rows(*reports: tuple[float, str]) -> tuple[BrokerRows, BundleRows]:
    """Reports in their order, when and by which broker; each is of one and the same bundle, with a message/s more than
    the one before.
    """
    count = len(reports)
    load = np.zeros((count, 4))
    load[:, 0] = 1 + np.arange(count)
    return (
        BrokerRows(
            np.array([at_s for at_s, _ in reports]),
            np.array([f"{broker}:8080" for _, broker in reports], dtype=object),
            np.tile(np.array(LIMITS), (count, 1)),
            np.array(["1.0.0"] * count, dtype=object),
            np.array([""] * count, dtype=object),
        ),
        BundleRows(
            np.arange(count),
            np.array(["tenant/ns"] * count, dtype=object),
            np.zeros(count, dtype=np.int64),
            np.full(count, HASH_SPACE_END),
            load,
            np.full(count, 7),
            np.full(count, 9),
        ),
    )
