"""Reasons why a broker publishes its load."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class ReportReason(Reason):
    FIRST_REPORT = entry("first_report")
    REPORT_TOO_OLD = entry("report_too_old")
    LOAD_CHANGED = entry("load_changed")
    BUNDLE_UNLOADED = entry("bundle_unloaded")
    RECORD_OVERWRITTEN = entry("record_overwritten")
