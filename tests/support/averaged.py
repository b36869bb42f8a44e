"""The windows of a history, by all the steps that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.averages import WINDOWS_S, broker_windows, bundle_windows, carried, namespace_windows
from loadmanager.pipeline.ingest import clean_broker_reports, clean_bundle_reports
from loadmanager.pipeline.reading import HistoryTables
from loadmanager.pipeline.standing import standing


@dataclass(frozen=True)
class Averaged:
    """The clean tables, for how long reports stand, and who carried what."""

    bundle_reports: DataFrame
    broker_reports: DataFrame
    reports: DataFrame
    pieces: DataFrame

    def bundle_windows(self, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
        return bundle_windows(self.pieces, windows)

    def broker_windows(self, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
        return broker_windows(self.broker_reports, self.reports, self.pieces, windows)

    def namespace_windows(self, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
        return namespace_windows(self.pieces, windows)


def clean_bundles(history: HistoryTables) -> DataFrame:
    """The table `clean_bundle_reports`."""
    return clean_bundle_reports(history.frame(BUNDLE_REPORTS, may_be_empty=True, with_file=True)).clean


def averaged(spark: SparkSession, url: str, end_ms: int | None = None) -> Averaged:
    """Of a history, until `end_ms` or its last report; worked out once."""
    history = HistoryTables(spark, url, to_ms=end_ms)
    bundles = clean_bundles(history).localCheckpoint()
    brokers = clean_broker_reports(history.frame(BROKER_REPORTS, with_file=True)).clean.localCheckpoint()
    reports = standing(brokers, history.frame(EVENTS), end_ms or history.range[1]).localCheckpoint()
    return Averaged(bundles, brokers, reports, carried(bundles, reports).localCheckpoint())
