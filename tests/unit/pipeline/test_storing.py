"""Where packed rows go, without Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.packing import Packed, Packer, from_stream, opened, times_between, to_stream
from loadmanager.pipeline.storing import Stored, _stored

ROWS = pa.table({"at_ms": [5, 3, None, 9], "name": pa.array(["a", "b", "a", "a"]).dictionary_encode()})


def packed(*rows: pa.Table) -> Packed:
    packer = Packer()
    for each in rows:
        packer.add("table", "part", each)
    (found,) = packer.packed()
    return found


def test_rows_of_a_part_are_one_file_with_what_they_are_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.pipeline.packing.GROUP_ROWS", 5)
    found = packed(ROWS, ROWS.slice(0, 0), ROWS, ROWS.slice(0, 1))
    assert (found.table, found.part, found.rows, found.times) == ("table", "part", 9, (3, 9))
    with opened({"file": found.data}, "file") as parquet:
        assert [parquet.metadata.row_group(at).num_rows for at in range(parquet.num_row_groups)] == [5, 3, 1]
        assert parquet.read().to_pylist() == [*ROWS.to_pylist(), *ROWS.to_pylist(), *ROWS.to_pylist()[:1]]
        assert pa.types.is_dictionary(parquet.schema_arrow.field("name").type)


@pytest.mark.parametrize("damage", [0, 100])
def test_a_file_of_a_table_that_is_gone_or_damaged_is_named_with_the_fix(damage: int) -> None:
    path = "/out/table/write/part=a/file.parquet"
    contents = {"table/write/part=a/file.parquet": packed(ROWS).data[:damage]} if damage else {}
    said = "cannot be read: .*" if damage else "a file of a table is gone: "
    with pytest.raises(PipelineError, match=rf"^{path}: {said}make all anew \(--anew\)"), opened(contents, path):
        pass


def test_of_nothing_there_is_no_file() -> None:
    packer = Packer()
    packer.add("table", "part", ROWS.slice(0, 0))
    assert list(packer.packed()) == []


def test_rows_come_out_of_a_stream_as_they_went_in() -> None:
    assert from_stream(to_stream(ROWS)).equals(ROWS)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "kept"),
    [(None, None, [5, 3, None, 9]), (5, None, [5, 9]), (None, 9, [5, 3]), (4, 6, [5]), (10, None, [])],
)
def test_rows_of_a_range_have_a_time(from_ms: int | None, to_ms: int | None, kept: list[int | None]) -> None:
    assert times_between(ROWS, from_ms, to_ms).column("at_ms").to_pylist() == kept


store = partial(_stored, which="last", task=3)


def test_a_file_is_put_into_its_place_and_what_else_is_made_goes_on(tmp_path: Path) -> None:
    found = list(store(str(tmp_path), "write/part=", made=["told", packed(ROWS), (7, packed(ROWS)), (7, "told")]))
    assert [each for each in found if "told" in str(each)] == ["told", (7, "told")]
    one, other = found[1], found[2][1]
    assert isinstance(one, Stored)
    assert (one.table, one.part, one.file.rows, one.file.times) == ("table", "part", 4, (3, 9))
    paths = [one.file.path, other.file.path]
    assert paths == ["write/part=part/last-00003-00001.parquet", "write/part=part/last-00003-00002.parquet"]
    for path in paths:
        assert pq.read_table(tmp_path / "table" / path, partitioning=None).to_pylist() == ROWS.to_pylist()


def test_two_attempts_at_a_task_at_once_leave_one_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = partial(store, str(tmp_path), "write/part=", made=[packed(ROWS)])
    sync = Directory._sync
    others: list[Any] = []

    def meanwhile(self: Directory, path: str) -> None:
        monkeypatch.setattr(Directory, "_sync", sync)
        others.extend(attempt())
        sync(self, path)

    monkeypatch.setattr(Directory, "_sync", meanwhile)
    assert list(attempt()) == others
    (file,) = (each for each in tmp_path.rglob("*") if each.is_file())
    assert pq.read_table(file, partitioning=None).to_pylist() == ROWS.to_pylist()
