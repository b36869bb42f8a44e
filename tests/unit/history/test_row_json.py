from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from support.recorded import NOON_MS, a_report, a_writer
from support.waiting import patience

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.history.entry_rows import Decision
from loadmanager.history.files import Directory
from loadmanager.history.load_import import json_line
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS, DECISIONS


@pytest.fixture
def history(tmp_path: Path) -> History:
    directory = Directory.of(str(tmp_path / "history"))
    verdict = Verdict("b,1", ThresholdReason.BROKER_ABOVE_AVERAGE, acted=False, why={"usage_percent": 1.5})
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, a_report(bundles=2))
        writer.put(NOON_MS, Decision("shed", 1, "s", 0.5, (), [verdict], detail={"x": 'a "quoted" text'}))
        assert writer.flush(patience())
    return History(directory)


def test_json_line_has_nested_json_and_numeric_rates(history: History) -> None:
    (row,) = history.rows(DECISIONS)
    read = orjson.loads(json_line(row))
    assert read["detail"] == {"x": 'a "quoted" text'}
    assert read["verdicts"][0]["why"] == {"usage_percent": 1.5}
    assert read["rng_state"] is None
    (first, _) = history.rows(BUNDLE_REPORTS)
    assert orjson.loads(json_line(first))["msg_rate_in"] == float(first["msg_rate_in"])
