"""A history and tables in an object store: against a server that speaks S3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.frames import HOUR_MS, START_MS, write_three_hours
from support.s3 import BUCKET, KEY, REGION, an_s3_server, url_of

from loadmanager.cli.pipeline_command import find_history
from loadmanager.errors import ConfigurationError
from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline.delta import DAY, Tables
from loadmanager.pipeline.source import FORMAT, PERMISSIVE

NAME = "rejected_rows"
FEW_ROWS = (
    "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.adaptive.enabled=false",
    "spark.sql.shuffle.partitions=1",
)
"""Settings of Spark for a run that is over soon."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with an_s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def root(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the tables of a test, with the settings that docs/pipeline.md names."""
    settings = {"ENDPOINT_URL": server, "ALLOW_HTTP": "true", "REGION": REGION}
    settings |= dict.fromkeys(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"), KEY)
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return f"s3a://{BUCKET}/{request.node.name}"


@pytest.fixture
def history(server: str, tmp_path: Path) -> str:
    url = url_of(server, tmp_path.name)
    folder, there = write_three_hours(tmp_path / "history"), Directory.of(url)
    for file in folder.rglob("*.parquet"):
        there.write(str(file.relative_to(folder)), pa.py_buffer(file.read_bytes()))
    return url


def test_history_in_s3_is_read_by_workers(spark: SparkSession, history: str) -> None:
    reader = spark.read.format(FORMAT).option("table", BUNDLE_REPORTS).option("mode", PERMISSIVE)
    assert reader.load(history).count() == 6
    late = reader.option("from_ms", START_MS + 2 * HOUR_MS).load(history)
    assert {row.hour_ms for row in late.select("hour_ms").collect()} == {START_MS + 2 * HOUR_MS}
    find_history(history)


def test_missing_bucket_is_named_without_the_password(spark: SparkSession, server: str) -> None:
    url = url_of(server, "nothing")
    with pytest.raises(PySparkException, match="there is no history: no such directory") as raised:
        spark.read.format(FORMAT).option("table", BUNDLE_REPORTS).load(url)
    assert f"{KEY}:{KEY}" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="there is no such directory"):
        find_history(url)


@pytest.fixture
def tables(spark: SparkSession, root: str) -> Tables:
    return Tables(spark, root)


def commit(tables: Tables, write: str, day: str, rows: int, days: list[str] | None) -> None:
    path, statistics = f"{write}/{DAY}={day}/rows.parquet", orjson.dumps({"numRecords": rows}).decode()
    tables._commit(NAME, [AddAction(path, 100, {DAY: day}, 0, True, statistics)], days)  # noqa: FBT003 - its API


def test_uncommitted_data_is_invisible_and_old_versions_readable(tables: Tables, root: str) -> None:
    assert not tables.has(NAME)
    commit(tables, "first", "all", 10, None)
    # by a write that was killed between its rows and the log
    Directory.of(root).write(f"{NAME}/killed/{DAY}=all/rows.parquet", pa.py_buffer(b"rows"))
    assert tables.rows(NAME) == 10
    commit(tables, "second", "all", 7, None)
    assert tables.rows(NAME) == 7
    before = DeltaTable(f"{root}/{NAME}", version=0)
    assert [path for path in before.file_uris() if path.endswith(f"first/{DAY}=all/rows.parquet")]


@pytest.mark.deep
def test_run_reads_and_writes_s3(spark: SparkSession, history: str, root: str) -> None:
    url = history.partition("?")[0].replace(f"{KEY}:{KEY}@", "")
    command = ["pipeline", "run", url, "--out", root, "--step", "ingest", "--master", "local[1]"]
    given = [word for each in FEW_ROWS for word in ("--conf", each)]
    done = subprocess.run(
        [sys.executable, "-m", "loadmanager", *command, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{root}/summary.json"
    tables, there = Tables(spark, root), Directory.of(history)
    with_rows = tables.read_rows("bundle_windows", pc.field("window_s") == 3600)
    assert sorted(with_rows.column("start_ms").unique().to_pylist()) == [START_MS + hour * HOUR_MS for hour in range(3)]
    assert tables.read_rows("clean_broker_reports").num_rows == len(there.list_files(BROKER_REPORTS)[0]) == 3
