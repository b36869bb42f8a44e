from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.window_frames import HOUR_MS, frame_of

from loadmanager.core.model.load import FloatArray
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.pipeline.capacity import (
    FEWEST_DAYS_FOR_TREND,
    RATED,
    BrokerRoom,
    by_hour_of,
    daily_peaks,
    need,
    plan,
    project,
    registered,
)
from loadmanager.pipeline.costs import last_limits
from loadmanager.pipeline.datasets import METRICS
from loadmanager.pipeline.minimum_history import FEWEST_DAYS, WHOLE_DAY_HOURS, missing_history, whole_days
from loadmanager.pipeline.step import NoResult

NAN = float("nan")
NO_BASE = np.zeros(4)
START_MS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1000)
"""A Monday."""


def equal(brokers: int, headroom: float = 0.3, domains: tuple[str, ...] = ()) -> BrokerRoom:
    """Brokers with 10 of everything."""
    return BrokerRoom.of(np.full((brokers, 4), 10.0), NO_BASE, headroom, domains)


def demand(cpu: float, direct_memory: float = 0.0, bandwidth_in: float = 0.0, bandwidth_out: float = 0.0) -> FloatArray:
    return np.array([cpu, direct_memory, bandwidth_in, bandwidth_out])


def test_needed_brokers_leave_the_headroom_free() -> None:
    found = need(demand(20.0, bandwidth_out=30.0), equal(5))  # 7 of 10 may be used

    assert (found.needed, found.needed_n1, found.needed_domain) == (5, 6, None)
    assert found.resource_first == "bandwidth_out"
    assert found.used == pytest.approx(30 / 35)
    assert (found.fits, found.fits_n1, found.fits_domain) == (True, False, None)


def test_demand_equal_to_usable_capacity_fits() -> None:
    found = need(demand(21.0), equal(3))

    assert (found.needed, found.fits) == (3, True)
    assert found.used == pytest.approx(1.0)


def test_idle_usage_reduces_the_room_of_a_broker() -> None:
    fleet = BrokerRoom.of(np.full((2, 4), 10.0), np.array([2.0, 0, 0, 0]), headroom=0.3)

    assert need(demand(20.0), fleet).needed == 4  # 5 of each


def test_idle_usage_above_the_usable_limit_fits_no_demand() -> None:
    fleet = BrokerRoom.of(np.full((2, 4), 10.0), np.array([8.0, 0, 0, 0]), headroom=0.3)

    found = need(demand(1.0), fleet)

    assert (found.needed, found.needed_n1, found.used) == (None, None, None)
    assert (found.resource_first, found.fits) == ("cpu", False)


def test_n1_fit_considers_loss_of_the_largest_broker() -> None:
    limits = np.repeat([[10.0], [10.0], [40.0]], 4, axis=1)
    fleet = BrokerRoom.of(limits, NO_BASE, headroom=0.0)

    assert need(demand(20.0), fleet).fits_n1
    found = need(demand(21.0), fleet)
    assert (found.fits, found.fits_n1) == (True, False)
    assert found.needed_n1 == 7  # 21 and the 40 that may be lost, by brokers with 10


def test_domain_fit_considers_loss_of_a_failure_domain() -> None:
    uneven = equal(5, 0.0, ("a", "a", "a", "b", "b"))

    assert need(demand(20.0), uneven).fits_domain
    found = need(demand(21.0), uneven)
    assert (found.fits, found.fits_n1, found.fits_domain) == (True, True, False)
    assert found.needed_domain == 6  # 3 in each of two
    assert need(demand(21.0), equal(3, 0.0, ("a", "b", "c"))).needed_domain == 5  # at most 2 in each of three


def test_single_failure_domain_has_no_domain_fit() -> None:
    found = need(demand(5.0), equal(3, domains=("a", "a", "a")))

    assert (found.needed_domain, found.fits_domain) == (None, None)


def test_unknown_limit_counts_as_the_average_or_unlimited() -> None:
    limits = np.array([[10.0, NAN, 10, 10], [20.0, NAN, 10, 10], [NAN, NAN, 10, 10]])

    fleet = BrokerRoom.of(limits, NO_BASE, headroom=0.0)

    assert fleet.room[:, 0].tolist() == [10, 20, 15]
    found = need(demand(45.0, direct_memory=1e12), fleet)
    assert (found.fits, found.resource_first) == (True, "cpu")  # direct memory, of which no limit is known, never ends


def test_single_broker_never_fits_n1() -> None:
    assert not need(demand(0.0), equal(1)).fits_n1


@given(
    st.lists(st.floats(0, 1e6), min_size=4, max_size=4),
    st.lists(st.floats(0, 1e6), min_size=4, max_size=4),
    st.floats(0, 0.9),
    st.floats(0, 0.09),
    st.integers(1, 30),
)
def test_more_load_or_headroom_never_needs_fewer_brokers(
    load: list[float], more: list[float], headroom: float, more_headroom: float, brokers: int
) -> None:
    domains = tuple("abc"[row % 3] for row in range(brokers))
    less = need(np.array(load), equal(brokers, headroom, domains))
    for harder in (
        need(np.array(load) + more, equal(brokers, headroom, domains)),
        need(np.array(load), equal(brokers, headroom + more_headroom, domains)),
    ):
        assert less.needed is not None
        assert less.needed_n1 is not None
        assert harder.needed is not None
        assert harder.needed_n1 is not None
        assert (harder.needed, harder.needed_n1) >= (less.needed, less.needed_n1)
        assert harder.needed_n1 > harder.needed - 1
        assert (harder.needed_domain or 0) >= (less.needed_domain or 0)
        assert harder.fits <= less.fits
        assert harder.fits_n1 <= less.fits_n1
        assert harder.fits_n1 <= harder.fits


def test_daily_peak_is_the_busiest_hour_of_a_whole_day() -> None:
    hours = np.arange(24 * 10 + 12, 24 * 12 + 6)  # half a day, a day, a quarter
    used = np.stack([np.arange(len(hours), dtype=float)] * 4, axis=1)

    days, peaks = daily_peaks(hours, used)

    assert (days.tolist(), peaks[:, 0].tolist()) == ([11], [35.0])


@given(st.lists(st.integers(0, 24 * 6), max_size=140))
def test_missing_history_is_reported_below_three_whole_days(hours: list[int]) -> None:
    known = [set(hours) & set(range(24 * day, 24 * day + 24)) for day in range(7)]
    days = [day for day in range(7) if len(known[day]) >= WHOLE_DAY_HOURS]
    why = missing_history(np.array(hours, dtype=np.int64))

    assert whole_days(np.array(hours, dtype=np.int64)).tolist() == days
    assert (why is None) == (len(days) >= FEWEST_DAYS)
    assert why is None or f"has {len(set(hours)) / 24:.1f} ({len(days)} of them whole" in why


@pytest.mark.parametrize(("hours", "said"), [(34, "1.4 (1 of them whole"), (0, "0.0 (0 of them whole")])
def test_missing_history_names_the_known_days(hours: int, said: str) -> None:
    assert f"not enough history: needs 3 days of hourly windows, has {said}" in str(missing_history(np.arange(hours)))


def test_trend_is_projected_forward() -> None:
    days = np.arange(100, 128)

    found = project(days, np.linspace(50, 104, 28), np.array([128, 157]))

    assert found[1].tolist() == pytest.approx([106, 164])
    assert found[0].tolist() == pytest.approx([106, 164])


def test_trend_needs_a_minimum_of_days() -> None:
    days = np.arange(FEWEST_DAYS_FOR_TREND - 1)

    found = project(days, days.astype(float), np.array([100]))

    assert found[1, 0] <= len(days)


def test_noise_without_trend_widens_with_distance() -> None:
    days = np.arange(60)
    peaks = np.random.default_rng(4).normal(100.0, 10.0, 60)

    found = project(days, peaks, np.array([60, 67, 300 - 300 % 7 + 4]))  # the same day of the week

    assert found[1, 0] == found[1, 1] == found[1, 2]
    width = found[2] - found[0]
    assert width[0] < width[1] < width[2]


def test_days_of_the_week_are_projected_separately() -> None:
    days = np.arange(4, 4 + 8 * 7)  # from a Monday on
    peaks = np.where((days + 3) % 7 < 5, 100.0, 40.0)

    found = project(days, peaks, np.arange(60, 67))

    assert np.argmin(found[1]) in (5, 6)
    assert found[1, 0] > 90
    assert found[1, 5] < 70


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_projected_quantiles_are_ordered_and_non_negative(peaks: list[float]) -> None:
    found = project(np.arange(len(peaks)), np.array(peaks), np.arange(len(peaks), len(peaks) + 30))

    assert (found >= 0).all()
    assert (np.diff(found, axis=0) >= -1e-6 * max(peaks)).all()


def growing(spark: SparkSession, days: int = 28) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two brokers that both carry 100 messages/s more every day, at noon twice as many as else."""
    rows = [
        {
            "broker": broker,
            "start_ms": START_MS + hour * HOUR_MS,
            "covered_s": 3600.0,
            "mean_msg_rate_in": (1_000.0 + 100.0 * (hour // 24)) * (2 if hour % 24 == 12 else 1),
        }
        for broker in ("a:80", "b:80")
        for hour in range(24 * days)
    ]
    reports = [
        {"broker": broker, "at_ms": START_MS + at, "cpu_limit": limit, "bandwidth_in_limit": 1e6}
        for broker in ("a:80", "b:80")
        for at, limit in ((0, 800.0), (1, 400.0))
    ]
    there = spark.createDataFrame([("a:80",), ("b:80",)], "broker string")
    limits = last_limits(frame_of(spark, "clean_broker_reports", reports))
    by_hour: pd.DataFrame = by_hour_of(frame_of(spark, "broker_windows", rows)).orderBy("start_ms").toPandas()
    brokers: pd.DataFrame = there.join(limits, "broker").orderBy("broker").toPandas()
    return by_hour, brokers


def cpu_cost(message: float, base: float = 0.0) -> CostModel:
    """Messages and idle brokers cost CPU, and nothing else does."""
    return CostModel(base=(base, 0.0, 0.0, 0.0, 0.0), coefficients=((message, 0.0, 0.0, 0.0, 0.0), *((0.0,) * 5,) * 4))


def by_quantile(planned: pd.DataFrame) -> dict[float, list[Any]]:
    ordered = planned.sort_values("start_ms").to_dict("records")
    return {quantile: [row for row in ordered if row["quantile"] == quantile] for quantile in (0.1, 0.5, 0.9)}


def test_broker_windows_become_needed_brokers_per_day(spark: SparkSession) -> None:
    found = by_quantile(plan(*growing(spark), 20, 0.2, cpu_cost(0.04), {}))

    middle = found[0.5]
    assert [row["day"] for row in middle][::19] == ["2026-03-30", "2026-04-18"]
    # On the first day both use 2 * 3,800 * 0.04 of 400, 0.8 of which may be used, on the last 0.38 more in all.
    assert (middle[0]["have"], middle[0]["needed"], middle[0]["needed_n1"]) == (2, 2, 3)
    assert middle[0]["used"] == pytest.approx(0.76 / 0.8)
    assert middle[-1]["used"] == pytest.approx((0.76 + 19 * 0.02) / 0.8)
    assert {row["resource_first"] for row in middle} == {"cpu"}
    assert {row["exhausted_on"] for row in middle} == {"2026-04-02"}  # 0.82
    assert {row["exhausted_on_n1"] for row in middle} == {"2026-03-30"}
    assert {row["exhausted_on_domain"] for row in middle} == {None}
    assert middle[0]["basis"] == (
        "28 whole days, with their trend, by the cost model, without direct_memory, bandwidth_out (no limit known)"
    )
    for low, high in ((0.1, 0.5), (0.5, 0.9)):
        assert all(a["needed"] <= b["needed"] for a, b in zip(found[low], found[high], strict=True))


def test_cost_model_counts_load_and_each_idle_broker(spark: SparkSession) -> None:
    planned = plan(*growing(spark), 1, 0.5, cpu_cost(0.025, base=80.0), {"a:80": "x", "b:80": "y"})

    (row,) = by_quantile(planned)[0.5]
    # 4 * 3,800 messages/s cost 380; of 400 a broker may use 200, and 80 are used by being there.
    assert row["used"] == pytest.approx(380 / 240)
    assert (row["needed"], row["needed_n1"], row["needed_domain"]) == (4, 5, 8)
    assert (row["fits"], row["fits_n1"], row["fits_domain"]) == (False, False, False)
    assert "by the cost model" in row["basis"]


def hours_of(hours: int = 72, **columns: object) -> pd.DataFrame:
    """Hours of a cluster."""
    times = [START_MS + hour * HOUR_MS for hour in range(hours)]
    return pd.DataFrame({"start_ms": times, **dict.fromkeys((*METRICS, "topics"), 0.0), **columns})


def fleet_of(brokers: int, **limits: float) -> pd.DataFrame:
    known = {f"{name}_limit": limits.get(name, NAN) for name in RATED}
    return pd.DataFrame({"broker": [f"b{row}:80" for row in range(brokers)], **known})


def test_load_of_departed_brokers_is_planned_without_them() -> None:
    found = plan(hours_of(msg_rate_in=100.0), fleet_of(1, cpu=100.0), 2, 0.3, cpu_cost(1.0), {})

    assert set(found["have"]) == {1}
    assert set(found["needed"]) == {2}
    assert found["basis"].iloc[0] == (
        "3 whole days, no trend (it takes 14 days), by the cost model,"
        " without direct_memory, bandwidth_in, bandwidth_out (no limit known)"
    )


@pytest.mark.parametrize(
    ("hours", "fleet", "why"),
    [
        (72, fleet_of(2), "no limit of any registered broker is known"),
        (72, fleet_of(0), "no broker was registered at the end of the range"),
    ],
)
def test_impossible_plan_says_why(hours: int, fleet: pd.DataFrame, why: str) -> None:
    with pytest.raises(NoResult, match=why):
        plan(hours_of(hours), fleet, 30, 0.3, cpu_cost(1.0), {})


def test_hour_counts_broker_load_by_covered_time(spark: SparkSession) -> None:
    """One was there for a quarter of it; of the next hour too little is known."""
    rows = [
        {"broker": broker, "start_ms": START_MS + hour * HOUR_MS, "covered_s": covered_s, "mean_msg_rate_in": 100.0,
         "topics": 4.0}
        for broker, hour, covered_s in (("a:80", 0, 3600.0), ("b:80", 0, 900.0), ("a:80", 1, 60.0))
    ]  # fmt: skip

    (hour,) = by_hour_of(frame_of(spark, "broker_windows", rows)).collect()

    assert (hour["start_ms"], hour["msg_rate_in"], hour["topics"]) == (START_MS, 125, 5)


def test_registered_brokers_reported_or_registered_lately(spark: SparkSession) -> None:
    end_ms = START_MS + 24 * HOUR_MS
    reports = {"a": [-1], "gone": [-500], "silent": [-2 * 900_000 - 1], "back": [-500, -100], "late": [0]}
    rows = [(end_ms + at, 1, at + 10**7, broker) for broker, times in reports.items() for at in times]
    happened = [("gone", "broker_gone", -499), ("back", "broker_gone", -400), ("new", "broker_registered", -1)]
    events = [(end_ms + at, 1, at + 10**7, kind, broker) for broker, kind, at in happened]
    keys = "at_ms long, epoch long, sequence long"

    found = registered(
        spark.createDataFrame(rows, f"{keys}, broker string"),
        spark.createDataFrame(events, f"{keys}, kind string, subject string"),
        end_ms,
    )

    assert {row["broker"] for row in found.collect()} == {"a", "back", "new"}
