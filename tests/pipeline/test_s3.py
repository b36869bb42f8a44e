"""A history and tables in an object store: against a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.frames import HOUR_MS, START_MS, write_three_hours
from support.s3 import BUCKET, KEY, REGION, an_s3_server, url_of

from loadmanager.cli.pipeline_paths import require_history
from loadmanager.errors import ConfigurationError
from loadmanager.history.files import Directory
from loadmanager.history.schemas import BUNDLE_REPORTS
from loadmanager.pipeline.contents import RowFile
from loadmanager.pipeline.delta import DeltaAccount
from loadmanager.pipeline.source import FORMAT, PERMISSIVE

NAME = "rejected_rows"
WRITERS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with an_s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def root(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tables of a test are, with the settings that docs/pipeline.md names."""
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


def test_a_history_in_s3_is_read_by_workers(spark: SparkSession, history: str) -> None:
    reader = spark.read.format(FORMAT).option("table", BUNDLE_REPORTS).option("mode", PERMISSIVE)
    assert reader.load(history).count() == 6
    late = reader.option("from_ms", START_MS + 2 * HOUR_MS).load(history)
    assert {row.hour_ms for row in late.select("hour_ms").collect()} == {START_MS + 2 * HOUR_MS}
    require_history(history, None)


def test_a_bucket_without_the_history_is_named_without_the_password(spark: SparkSession, server: str) -> None:
    url = url_of(server, "nothing")
    with pytest.raises(PySparkException, match="there is no history: no such directory") as raised:
        spark.read.format(FORMAT).option("table", BUNDLE_REPORTS).load(url)
    assert f"{KEY}:{KEY}" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="there is no such directory"):
        require_history(url, None)


def rows(write: str, part: str, count: int) -> dict[str, list[RowFile]]:
    return {part: [RowFile(f"{write}/part={part}/rows.parquet", count, 100)]}


def test_of_several_that_write_at_once_none_loses_what_another_wrote(root: str) -> None:
    def write(number: int) -> None:
        part = f"part-{number}"
        DeltaAccount(root).commit(NAME, rows(f"w-{number}", part, number), [part])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    found = DeltaAccount(root).contents(NAME)
    assert (found.number, found.rows) == (WRITERS, sum(range(WRITERS)))
    assert sorted(found.parts) == [f"part-{number}" for number in range(WRITERS)]


def test_what_was_never_entered_is_not_seen_and_what_was_replaced_can_be_looked_back_at(root: str) -> None:
    account = DeltaAccount(root)
    assert account.contents(NAME).number == 0
    account.commit(NAME, rows("first", "whole", 10), None)
    # by a write that was killed between its rows and the log
    Directory.of(root).write(f"{NAME}/killed/part=whole/rows.parquet", pa.py_buffer(b"rows"))
    assert account.contents(NAME).rows == 10
    account.commit(NAME, rows("second", "whole", 7), None)
    account.clean(NAME)
    assert account.contents(NAME).parts == rows("second", "whole", 7)
    before = DeltaTable(f"{root}/{NAME}", version=0)
    assert [path for path in before.file_uris() if path.endswith("first/part=whole/rows.parquet")]
