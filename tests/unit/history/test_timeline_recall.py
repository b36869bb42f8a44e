from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.builders import broker, bundle, report
from support.waiting import patience

from loadmanager.core.diagnosis.timeline import LeaderMoment, MoveMoment, throughput_of
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.history.entry_rows import HistoryEvent, MoveRow, Report
from loadmanager.history.files import Directory
from loadmanager.history.timeline_recall import Recalling
from loadmanager.history.writer import HistoryWriter, WriterLimits

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
NOW_MS = 472_222 * HOUR_MS
A, B = broker("a"), broker("b")


def recorded(folder: Path) -> str:
    """Two hours of reports, one a minute: `a` has a bundle that carries 1 MB/s more each hour."""
    writer = HistoryWriter(Directory.of(str(folder)), "n1", WriterLimits())
    writer.start()
    writer.begin_term(7, NOW_MS - 2 * HOUR_MS)
    writer.put(NOW_MS - 2 * HOUR_MS, HistoryEvent("leader_elected", "n1", {"epoch": 7}))
    for at_ms in range(NOW_MS - 2 * HOUR_MS, NOW_MS, MINUTE_MS):
        load = 1e6 if at_ms < NOW_MS - HOUR_MS else 2e6
        writer.put(at_ms, Report(A, report({bundle(1): (1, 1, load, 0), bundle(2): (0, 0, 0, 0)}, cpu=(40.0, 100.0))))
        writer.put(at_ms, Report(B, report(cpu=(10.0, 100.0))))
    for kind, ended_ms in (("began", None), ("done", NOW_MS - 5_000)):
        writer.put(
            NOW_MS - 5_000,
            MoveRow(kind, bundle(1), A.broker, B.broker, "admin_unload", started_ms=NOW_MS - 6_000, ended_ms=ended_ms),
        )
    writer.close(timeout_s=patience())
    return str(folder)


def test_completed_moves_and_terms_are_moments(tmp_path: Path) -> None:
    recalling = Recalling(recorded(tmp_path), NOW_MS - 24 * HOUR_MS, NOW_MS, ResourceWeights(), 10_000)
    moves, splits, leaders = recalling.moments()
    assert moves == [MoveMoment(NOW_MS - 5_000, bundle(1), A.broker, B.broker, "admin_unload")]
    assert splits == []
    assert leaders == [LeaderMoment(NOW_MS - 2 * HOUR_MS, "n1", 7)]


def test_newest_hours_come_first_and_older_bundles_every_five_minutes(tmp_path: Path) -> None:
    recalling = Recalling(recorded(tmp_path), NOW_MS - 24 * HOUR_MS, NOW_MS, ResourceWeights(), MINUTE_MS)
    parts = list(recalling.figures())
    hours = [part.at_ms // HOUR_MS for part in parts]
    assert hours == sorted(hours, reverse=True)
    brokers = [part for part in parts if part.of == "brokers"]
    assert {name for part in brokers for name in part.names} == {A.broker, B.broker}
    assert all(dict(zip(p.names, p.figures.tolist(), strict=True)).get(A.broker, 40) == 40 for p in brokers)
    bundles = [part for part in parts if part.of == "bundles"]
    newest = {part.at_ms: part for part in bundles if part.at_ms // HOUR_MS == hours[0]}
    older = {part.at_ms for part in bundles if part.at_ms // HOUR_MS != hours[0]}
    assert len(newest) > 1
    assert {at_ms % (5 * MINUTE_MS) for at_ms in older} == {0}
    assert len(older) <= 24
    last = newest[max(newest)]
    assert last.names == (bundle(1), bundle(2))
    np.testing.assert_allclose(throughput_of(last.figures), [2e6, 0], rtol=0.06)


def test_oldest_rows_are_left_out_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.history.timeline_recall._MOST_ROWS", 100)
    recalling = Recalling(recorded(tmp_path), NOW_MS - 24 * HOUR_MS, NOW_MS, ResourceWeights(), MINUTE_MS)
    assert {part.at_ms // HOUR_MS for part in recalling.figures()} == {NOW_MS // HOUR_MS - 1}
    assert recalling.rows == 60 * 4
