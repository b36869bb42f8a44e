"""Times of reports that are composed from a broker's answers."""

from __future__ import annotations

import pytest

from loadmanager.core.domain.names import BrokerId
from loadmanager.pulsar.report_dates import ReportDates
from loadmanager.pulsar.rest_answers import Record

A = BrokerId("a:8080")
WAIT_MS = 120_000


def answer(cpu: float = 1.0, stats: object = None) -> Record:
    return {"cpu": {"usage": cpu}, "lastStats": stats, "reported": 5}


@pytest.fixture
def dates() -> ReportDates:
    """The dates after a report at 1 s, with bundles x and y."""
    dates = ReportDates()
    dates.date(A, answer(), "xy", 1_000 - WAIT_MS)
    assert dates.date(A, answer(), "xy", 1_000) == 1_000
    return dates


def test_report_is_new_once_a_figure_changed_or_a_minute_passed(dates: ReportDates) -> None:
    assert dates.date(A, answer(), "xy", 60_999) is None
    assert dates.date(A, answer(), "xy", 61_000) == 61_000
    assert dates.date(A, answer(2.0), "xy", 62_000) == 62_000
    assert dates.date(A, answer(2.0, {"x": 1}), "xy", 63_000) == 63_000
    assert dates.last_s(A) == 63.0


def test_report_after_a_move_waits_until_the_host_was_measured_twice(dates: ReportDates) -> None:
    assert dates.date(A, answer(stats={"x": 1}), "x", 5_000) is None, "CPU is still that of two bundles"
    assert dates.date(A, answer(0.7), "x", 30_000) is None, "measured over a minute with and without the other bundle"
    assert dates.date(A, answer(0.7), "x", 80_000) is None
    assert dates.last_s(A) == 1.0
    assert dates.date(A, answer(0.5), "x", 90_000) == 90_000
    assert dates.date(A, answer(0.6), "x", 95_000) == 95_000


def test_cpu_that_changes_with_the_bundles_is_not_counted(dates: ReportDates) -> None:
    assert dates.date(A, answer(2.0), "x", 5_000) is None
    assert dates.date(A, answer(3.0), "x", 6_000) is None
    assert dates.date(A, answer(4.0), "x", 7_000) == 7_000


def test_report_after_a_move_waits_two_minutes_at_most(dates: ReportDates) -> None:
    assert dates.date(A, answer(), "x", 100_000) is None
    assert dates.date(A, answer(), "xz", 219_999) is None, "another move prolongs nothing"
    assert dates.date(A, answer(), "xz", 220_000) == 220_000


def test_first_report_of_a_restarted_broker_is_new(dates: ReportDates) -> None:
    dates.drop(A)
    assert dates.last_s(A) is None
    assert dates.date(A, answer(), "x", 5_000) == 5_000 - WAIT_MS


def test_first_report_may_be_from_before_a_move_of_somebody_else() -> None:
    dates = ReportDates()
    assert dates.date(A, answer(), "xy", WAIT_MS) == 0, "CPU may be that of other bundles"
    assert dates.last_s(A) == 0.0
    assert dates.date(A, answer(2.0), "xy", WAIT_MS + 5_000) is None
    assert dates.date(A, answer(3.0), "xy", WAIT_MS + 65_000) == WAIT_MS + 65_000
