from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.frames import DAY_MS, HOUR_MS, START_MS, files_of, history_of

from loadmanager.errors import HistoryFileError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.table_schemas import EVENTS
from loadmanager.pipeline.history_tables import HistoryTables
from loadmanager.pipeline.recorded import newest_recorded

KEY = "loadBalancerBrokerOverloadedThresholdPercentage"


def configuration(percentage: int) -> HistoryEvent:
    return HistoryEvent("configuration", body=json.dumps({KEY: str(percentage)}))


def checkpoint(percentage: int, domain: str = "") -> HistoryEvent:
    policies = {"failureDomains": {domain: {"brokers": ["a:8080"]}}} if domain else {}
    return HistoryEvent("checkpoint", body=json.dumps({"settings": {KEY: str(percentage)}, "policies": policies}))


def policies(domain: str) -> HistoryEvent:
    return HistoryEvent("policies", body=json.dumps({"failureDomains": {domain: {"brokers": ["b:8080"]}}}))


def test_newest_event_by_epoch_holds_across_times_and_hours(spark: SparkSession, tmp_path: Path) -> None:
    history_of(tmp_path, [(0, configuration(90)), (1, checkpoint(60, "one")), (2, configuration(70))], epoch=2)
    history_of(tmp_path, [(HOUR_MS, configuration(95)), (HOUR_MS, policies("old"))], epoch=1)
    history_of(tmp_path, [(HOUR_MS + 1, checkpoint(99, "imported"))], epoch=0)
    found = newest_recorded(HistoryTables(spark, str(tmp_path)))
    assert (found.overloaded, found.domains) == (0.7, {"a:8080": "one"})
    history_of(tmp_path, [(3, policies("two"))], epoch=2, first=3)
    found = newest_recorded(HistoryTables(spark, str(tmp_path)))
    assert (found.overloaded, found.domains) == (0.7, {"b:8080": "two"})
    within = HistoryTables(spark, str(tmp_path), to_ms=START_MS + 2)
    assert newest_recorded(within).overloaded == 0.6


def test_old_checkpoint_is_found_across_many_later_hours(spark: SparkSession, tmp_path: Path) -> None:
    history_of(tmp_path, [(0, configuration(50))])
    history_of(tmp_path, [(10 * DAY_MS, checkpoint(60))], first=1)
    for hour in range(1, 40):
        history_of(tmp_path, [(10 * DAY_MS + hour * HOUR_MS, HistoryEvent("broker_gone", "a"))], first=1 + hour)
    assert newest_recorded(HistoryTables(spark, str(tmp_path))).overloaded == 0.6


def test_defaults_hold_without_any_event(spark: SparkSession, tmp_path: Path) -> None:
    assert newest_recorded(HistoryTables(spark, str(tmp_path))).overloaded == 0.85


def test_damaged_file_is_named_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    history_of(tmp_path, [(0, checkpoint(60)), (HOUR_MS, configuration(70))])
    for leaves_out in (False, True):
        history = HistoryTables(spark, str(tmp_path), leaves_out=leaves_out)
        newest = files_of(tmp_path, EVENTS)[-1]
        newest.write_bytes(b"cut short")
        if not leaves_out:
            with pytest.raises(HistoryFileError, match=str(newest)):
                newest_recorded(history)
        else:
            assert newest_recorded(history).overloaded == 0.6
