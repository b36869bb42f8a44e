"""Tables that are there as a whole, or as they were before."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import fs
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.frames import rows_of

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline import writing
from loadmanager.pipeline.contents import RowFile
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.delta import DeltaAccount
from loadmanager.pipeline.filesystems import _Hadoop
from loadmanager.pipeline.packing import Packed, Packer
from loadmanager.pipeline.schemas import frame_of
from loadmanager.pipeline.storing import Put
from loadmanager.pipeline.writing import Format, Tables

NAME = "time_above"


@pytest.fixture(params=["delta", "parquet"])
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "all tables"), request.param)


@pytest.fixture
def manifests(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "tables"), "parquet")


def rows(spark: SparkSession, **shares: float) -> DataFrame:
    """One for each subject."""
    given = [("usage", subject, 0.8, 1.0, 1.0, float(share)) for subject, share in shares.items()]
    return frame_of(spark, schema_of(NAME), given)


def packed(spark: SparkSession, **shares: float) -> list[Packed]:
    """The same as tasks pack them, in a part for each subject."""
    packer = Packer()
    for subject, share in shares.items():
        packer.add(NAME, subject, rows(spark, **{subject: share}).toArrow())
    return list(packer.packed())


def write_made(
    spark: SparkSession, tables: Tables, made: Sequence[object], *keys: str, told: Callable[[Any], None] | None = None
) -> None:
    """By two tasks that others go on with, and these."""
    context = spark.sparkContext

    def by_tasks(put: Put) -> RDD[Any]:
        return put("first", context.parallelize(made, 2)).union(context.parallelize(made[:0], 1))

    tables.write_made(by_tasks, {NAME: keys}, told or nobody)


def nobody(_: object) -> None: ...


@pytest.fixture(params=["delta", "parquet", "through Hadoop"])
def tables_of_tasks(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tables:
    """Also on a filesystem that workers do not reach."""
    if request.param != "through Hadoop":
        return Tables(spark, str(tmp_path / "all tables"), request.param)
    (tmp_path / "tables").mkdir()
    url = f"file://{tmp_path}/tables"
    monkeypatch.setattr(writing, "directory_at", lambda *_: Directory(fs.PyFileSystem(_Hadoop(spark, url)), url))
    return Tables(spark, url)


def shares(tables: Tables, *keys: str) -> dict[str, float]:
    return {row["subject"]: row["share"] for row in rows_of(tables.read(NAME, keys or None))}


def shares_in_files(tables: Tables) -> dict[str, float]:
    """As a program sees them that knows Delta, or else reads every Parquet file of the table."""
    folder = Path(str(tables).removeprefix("file://"), NAME)
    if (folder / "_delta_log").exists():
        read = DeltaTable(folder).to_pyarrow_table().to_pylist()
    else:
        read = [row for file in folder.rglob("*.parquet") for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert len({row["subject"] for row in read}) == len(read)
    return {row["subject"]: row["share"] for row in read}


def test_a_table_is_replaced_as_a_whole(spark: SparkSession, tables: Tables) -> None:
    assert not tables.has(NAME)
    assert tables.write(NAME, rows(spark, a=1, b=2)) == 2
    assert tables.write(NAME, rows(spark, a=3)) == 1
    assert shares(tables) == shares_in_files(tables) == {"a": 3}
    assert (tables.has(NAME), tables.rows(NAME)) == (True, 1)


def test_a_table_that_is_made_of_itself_is_whole(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    tables.write(NAME, tables.read(NAME).withColumn("share", f.col("share") + 1))
    assert shares(tables) == {"a": 2}


def test_of_what_tasks_make_the_parts_in_question_are_replaced(spark: SparkSession, tables_of_tasks: Tables) -> None:
    tables = tables_of_tasks
    write_made(spark, tables, packed(spark, a=1, b=2, c=3), "a", "b", "c")
    write_made(spark, tables, packed(spark, b=4), "b", "c")
    assert shares(tables) == shares_in_files(tables) == {"a": 1, "b": 4}
    assert shares(tables, "b", "z") == {"b": 4}
    assert tables.rows(NAME) == 2
    assert [file.rows for _, file in tables.files(NAME)] == [1, 1]


def test_of_each_file_the_first_and_the_last_time_are_known(spark: SparkSession, tables_of_tasks: Tables) -> None:
    name, tables = "fleet_events", tables_of_tasks
    packer = Packer()
    for part, times in (("a", [3, 1, None]), ("b", [None])):
        given = [(at_ms, 1, number, "broker_gone", "a:1") for number, at_ms in enumerate(times)]
        packer.add(name, part, frame_of(spark, schema_of(name), given).toArrow())
    made = list(packer.packed())
    tables.write_made(lambda put: put("first", spark.sparkContext.parallelize(made, 1)), {name: ["a", "b"]}, nobody)
    assert sorted((file.rows, file.times) for _, file in tables.files(name)) == [(1, None), (3, (1, 3))]


def test_where_nothing_is_made_and_nothing_was_the_table_stays_as_it_is(
    spark: SparkSession, tables_of_tasks: Tables
) -> None:
    tables = tables_of_tasks
    write_made(spark, tables, [], "a")
    assert (tables.has(NAME), tables.rows(NAME)) == (True, 0)
    before = tables.contents(NAME).number
    write_made(spark, tables, [], "a")
    assert tables.contents(NAME).number == before


def test_rows_of_a_part_that_is_not_to_be_replaced_are_refused(spark: SparkSession, tables_of_tasks: Tables) -> None:
    tables = tables_of_tasks
    write_made(spark, tables, packed(spark, a=1), "a")
    with pytest.raises(PipelineError, match="rows of parts b, which are not to be replaced"):
        write_made(spark, tables, packed(spark, a=2, b=2), "a")
    assert shares(tables) == {"a": 1}


def test_what_else_tasks_have_made_is_told_before_anything_counts_and_may_refuse_it(
    spark: SparkSession, tables_of_tasks: Tables
) -> None:
    tables, heard = tables_of_tasks, list[object]()
    write_made(spark, tables, [*packed(spark, a=1), "one", "other"], "a", told=heard.extend)
    assert sorted(map(str, heard)) == ["one", "other"]

    def refuse(_: object) -> None:
        raise PipelineError("no")

    with pytest.raises(PipelineError, match="no"):
        write_made(spark, tables, packed(spark, a=2, b=2), "a", "b", told=refuse)
    assert shares(tables) == shares_in_files(tables) == {"a": 1}


def test_a_task_that_fails_leaves_what_was_there(spark: SparkSession, tables_of_tasks: Tables) -> None:
    tables = tables_of_tasks
    write_made(spark, tables, packed(spark, a=1), "a")

    def failing(put: Put) -> RDD[Any]:
        return put("first", spark.sparkContext.parallelize(packed(spark, a=2), 1)).map(schema_of)

    with pytest.raises(PipelineError, match=r"rows cannot be written: table (Packed|Stored)"):
        tables.write_made(failing, {NAME: ["a"]}, nobody)
    assert shares(tables) == shares_in_files(tables) == {"a": 1}


def test_a_write_that_fails_leaves_what_was_there(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    failing = rows(spark, a=2, b=3).withColumn(
        "share", f.when(f.col("subject") == "b", f.raise_error(f.lit("out of space"))).otherwise(f.col("share"))
    )
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: cannot be written: .*out of space"):
        tables.write(NAME, failing)
    assert shares(tables) == shares_in_files(tables) == {"a": 1}


def test_a_write_that_was_cut_short_is_cleared_away_by_the_next(spark: SparkSession, manifests: Tables) -> None:
    manifests.write(NAME, rows(spark, a=1))
    left = _leave_behind(manifests)
    assert shares(manifests) == {"a": 1}
    manifests.write(NAME, rows(spark, a=2))
    assert shares_in_files(manifests) == {"a": 2}
    assert not left.parent.exists()


def _leave_behind(tables: Tables) -> Path:
    """The rows of the table once more, in a file that nobody has said to count."""
    folder = Path(str(tables), NAME)
    left = folder / "0000000000001-dead" / "part=all" / "x.parquet"
    left.parent.mkdir(parents=True)
    pq.write_table(pq.read_table(next(folder.rglob("*.parquet")), partitioning=None), left)
    return left


def test_a_reader_of_delta_does_not_see_a_write_that_was_cut_short_and_later_it_is_cleared_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path), "delta")
    tables.write(NAME, rows(spark, a=1))
    left = _leave_behind(tables)
    assert shares(tables) == shares_in_files(tables) == {"a": 1}
    tables.write(NAME, rows(spark, a=2))
    assert left.exists()  # another writer may be about to say that it counts
    os.utime(left, (0, 0))
    tables.write(NAME, rows(spark, a=3))
    assert not left.exists()
    assert shares(tables) == shares_in_files(tables) == {"a": 3}
    assert DeltaTable(tmp_path / NAME, version=0).to_pyarrow_table().column("share").to_pylist() == [1]


def test_of_many_writers_none_loses_what_another_one_wrote(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    account = DeltaAccount(str(tmp_path))

    def write(key: str) -> None:
        for number in range(5):
            account.commit(NAME, {key: [RowFile(f"{key}/{number}.parquet", number, 1)]}, [key])

    keys = [f"writer-{number}" for number in range(4)]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(write, keys))
    contents = account.contents(NAME)
    assert {key: [file.path for file in files] for key, files in contents.parts.items()} == {
        key: [f"{key}/4.parquet"] for key in keys
    }
    assert contents.number == len(keys) * 5


def test_a_table_stays_in_the_format_that_it_began_in(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    begun: dict[str, Format] = {"time_above": "parquet", "rejected_rows": "delta"}
    for name, table_format in begun.items():
        Tables(spark, root, table_format).write(name, frame_of(spark, schema_of(name)))
    either = Tables(spark, root)
    either.write(NAME, rows(spark, a=1))
    assert (shares(either), either.has("rejected_rows")) == ({"a": 1}, True)
    assert not (tmp_path / NAME / "_delta_log").exists()
    with pytest.raises(PipelineError, match=f"{NAME}: is in the format parquet; have delta in another directory"):
        Tables(spark, root, "delta").read(NAME)


def test_a_log_of_deltas_that_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / NAME / "_delta_log" / "00000000000000000000.json"
    log.parent.mkdir(parents=True)
    log.write_text("{", encoding="utf-8")
    with pytest.raises(
        PipelineError, match=f"{tmp_path}/{NAME}: its log cannot be read: [^\n]*; write the table anew$"
    ):
        Tables(spark, str(tmp_path)).read(NAME)


def test_rows_that_are_known_here_are_written_and_read_without_a_job(spark: SparkSession, tables: Tables) -> None:
    name = "paired_differences"
    given = pd.DataFrame([["all", "moves", "a", "b", 0.5, float("nan"), None, 3, "day", "equal"]])
    given.columns = pd.Index(schema_of(name).names)
    before = jobs_of(spark)
    assert tables.write_rows(name, given[given.columns[::-1]]) == 1
    (row,) = tables.read_rows(name).to_pylist()
    assert tables.read_rows(name, pc.field("metric") == "returns").num_rows == 0
    assert jobs_of(spark) == before
    assert row == {**given.iloc[0].to_dict(), "low": None, "high": None}
    read = tables.read(name)
    assert rows_of(read) == [row]
    tables.write(name, read)
    assert rows_of(tables.read(name)) == tables.read_rows(name).to_pylist() == [row]


def jobs_of(spark: SparkSession) -> int:
    """How many there have been."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_rows_that_are_known_here_replace_the_part_in_question(spark: SparkSession, tables: Tables) -> None:
    write_made(spark, tables, packed(spark, a=1, b=2, c=3), "a", "b", "c")
    made: pd.DataFrame = rows(spark, b=4).toPandas()
    assert tables.write_rows(NAME, made, "b") == 1
    assert shares(tables) == shares_in_files(tables) == {"a": 1, "b": 4, "c": 3}
    tables.write_rows(NAME, made.head(0), "a")
    tables.clear(NAME, ["c"])
    assert shares(tables) == shares_in_files(tables) == {"b": 4}
    tables.clear(NAME)
    assert (tables.has(NAME), shares(tables), tables.read_rows(NAME).num_rows) == (True, {}, 0)


def test_rows_that_are_known_here_go_through_hadoops_filesystems(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}"
    there = Directory(fs.PyFileSystem(_Hadoop(spark, url)), url)
    monkeypatch.setattr(writing, "directory_at", lambda *_: there)
    tables = Tables(spark, url)
    given: pd.DataFrame = rows(spark, a=1, b=2).toPandas()
    tables.write_rows(NAME, given)
    assert tables.read_rows(NAME).to_pandas().equals(given)
    assert shares(tables) == {"a": 1, "b": 2}
    tables.write(NAME, rows(spark, c=3))
    assert tables.read_rows(NAME).column("subject").to_pylist() == ["c"]


def test_rows_that_are_not_those_of_the_table_are_refused(spark: SparkSession, tables: Tables) -> None:
    made: pd.DataFrame = rows(spark, a=1).toPandas()
    with pytest.raises(PipelineError, match=f"table {NAME}: has columns what, subject, .*; given what, .*, more"):
        tables.write_rows(NAME, made.assign(more=1))
    with pytest.raises(PipelineError, match=f"{NAME}: cannot be written: .*some"):
        tables.write_rows(NAME, made.assign(share="some"))
    assert not tables.has(NAME)


def test_an_empty_table_is_a_table(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1).limit(0))
    assert (tables.has(NAME), shares(tables)) == (True, {})


def test_a_table_that_was_never_written_is_named(tables: Tables) -> None:
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: there is no such table yet"):
        tables.read(NAME)


def test_a_frame_that_is_not_the_table_is_refused(spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(PipelineError, match=f"table {NAME}: has no column share"):
        tables.write(NAME, rows(spark, a=1).drop("share"))
    assert not tables.has(NAME)


def test_a_manifest_that_cannot_be_read_is_named(spark: SparkSession, manifests: Tables) -> None:
    manifests.write(NAME, rows(spark, a=1))
    (manifest,) = Path(str(manifests), NAME, "_manifests").glob("*.json")
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(PipelineError, match=f"{manifest}: not a manifest that can be read"):
        manifests.read(NAME)
