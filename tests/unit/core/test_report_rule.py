from __future__ import annotations

from dataclasses import replace

from loadmanager.core.domain.reasons import ReportReason
from loadmanager.core.model.report_rule import ReportDue, ReportFigures, report_due

LAST = ReportFigures(0.0, 100.0, 1000.0, 10, 0.5)


def test_the_first_report_is_due() -> None:
    assert report_due(None, LAST, 10, 900) == ReportDue(ReportReason.FIRST_REPORT, "", 0.0)


def test_a_report_is_due_when_the_last_one_is_too_old() -> None:
    assert report_due(LAST, replace(LAST, at_s=900.0), 10, 900) is None
    assert report_due(LAST, replace(LAST, at_s=900.5), 10, 900) == ReportDue(
        ReportReason.REPORT_TOO_OLD, "age_s", 900.5
    )


def test_most_changed_figure_is_named() -> None:
    now = replace(LAST, msg_rate_per_s=120.0, throughput_bytes_per_s=1500.0, max_usage=0.75)
    assert report_due(LAST, now, 10, 900) == ReportDue(ReportReason.LOAD_CHANGED, "throughput_bytes_per_s", 50.0)
    assert report_due(LAST, replace(LAST, max_usage=0.75), 10, 900) == ReportDue(
        ReportReason.LOAD_CHANGED, "max_usage", 25.0
    )


def test_change_of_exactly_the_threshold_is_not_due() -> None:
    assert report_due(LAST, replace(LAST, bundles=11), 10, 900) is None
