from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.recorded import NOON_MS, a_report, a_writer
from support.waiting import patience

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.history.entry_rows import Decision
from loadmanager.history.files import Directory
from loadmanager.history.load_import import counted, json_line, text_lines, write_parquet, write_text
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS, DECISIONS, TABLES


@pytest.fixture
def history(tmp_path: Path) -> History:
    directory = Directory.of(str(tmp_path / "history"))
    verdict = Verdict("b,1", ThresholdReason.BROKER_ABOVE_AVERAGE, acted=False, why={"usage_percent": 1.5})
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, a_report(bundles=2))
        writer.put(NOON_MS, Decision("shed", 1, "s", "h", 0.5, (), [verdict], detail={"x": 'a "quoted" text'}))
        assert writer.flush(patience())
    return History(directory)


def test_a_json_line_holds_json_columns_as_json_and_rates_as_numbers(history: History) -> None:
    (row,) = history.rows(DECISIONS)
    read = orjson.loads(json_line(row))
    assert read["detail"] == {"x": 'a "quoted" text'}
    assert read["verdicts"][0]["why"] == {"usage_percent": 1.5}
    assert read["rng_state"] is None
    (first, _) = history.rows(BUNDLE_REPORTS)
    assert orjson.loads(json_line(first))["msg_rate_in"] == float(first["msg_rate_in"])


def test_csv_has_the_columns_first_and_lists_as_json(history: History, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert write_text(text_lines(history.scan(DECISIONS), "csv", TABLES[DECISIONS].names), path) == 2
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert list(row) == TABLES[DECISIONS].names
    assert (row["cycle"], row["rng_state"], row["detail"]) == ("1", "", '{"x":"a \\"quoted\\" text"}')
    assert orjson.loads(row["verdicts"])[0]["subject"] == "b,1"


def test_parquet_is_one_file_with_the_same_rows(history: History, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    assert write_parquet(history.scan(BUNDLE_REPORTS), TABLES[BUNDLE_REPORTS].schema, path) == 2
    assert pq.read_table(path).to_pylist() == list(history.rows(BUNDLE_REPORTS))


@pytest.mark.parametrize("form", ["text", "parquet"])
def test_a_file_that_was_there_is_only_replaced_by_a_whole_one(history: History, tmp_path: Path, form: str) -> None:
    path = tmp_path / "out"
    path.write_text("before", encoding="utf-8")

    def broken() -> Iterator[pa.RecordBatch]:
        yield from history.scan(BUNDLE_REPORTS)
        raise OSError("the disk is gone")

    write = {
        "text": lambda: write_text(text_lines(broken(), "jsonl", []), path),
        "parquet": lambda: write_parquet(broken(), TABLES[BUNDLE_REPORTS].schema, path),
    }
    with pytest.raises(OSError, match="the disk is gone"):
        write[form]()
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["out"]
    assert path.read_text(encoding="utf-8") == "before"


def test_progress_is_told_how_many_rows_there_were_so_far(history: History) -> None:
    seen: list[tuple[int, int]] = []
    assert len(list(counted(history.scan(BUNDLE_REPORTS), lambda done, total: seen.append((done, total))))) == 1
    assert seen == [(2, 0)]
