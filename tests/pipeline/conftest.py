"""One Spark session for all tests of the pipeline that run in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from support.recorded_fleet import record_fleet
from support.waiting import patience
from support.whole_run import Done, whatif

from loadmanager.pipeline import session as session_module
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.job import Job
from loadmanager.pipeline.runner import run
from loadmanager.pipeline.session import spark_session
from loadmanager.pipeline.steps import STEPS
from loadmanager.pipeline.steps import whatif as whatif_step
from loadmanager.pipeline.steps.whatif import RECOMMENDED

_FOLDER = Path(__file__).parent
_QUICK = (
    "test_advice.py",
    "test_jobs.py",
    "test_report.py",
    "test_s3.py::test_history_in_s3_is_read_by_workers",
    "test_source.py::test_rows_equal_those_of_the_history_reader",
    "test_source.py::test_time_options_select_rows",
    "test_whatif.py",
)
"""Tests on Spark that `make test` runs: mostly of one whole run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            if not item.nodeid.partition("pipeline/")[2].startswith(_QUICK):
                item.add_marker(pytest.mark.deep)


@pytest.fixture(scope="session", autouse=True)
def _jvm_ends_with_its_tests() -> Iterator[None]:
    """PySpark would keep it for as long as this process lives."""
    yield
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(patience())
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = spark_session("local[2]", "tests", settings, for_few=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of a small fleet, from noon on. Not to be changed."""
    root = tmp_path_factory.mktemp("history")
    record_fleet(root)
    return root


@pytest.fixture(scope="session")
def done(spark: SparkSession, history: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A whole run over it, with what-ifs of half an hour or more. Its tables are not to be changed."""
    out, lines = str(tmp_path_factory.mktemp("out")), list[str]()
    (Path(out) / RECOMMENDED).write_text("# of an earlier run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(whatif_step, "WHOLE_DAY_HOURS", 0.5)
        summary = run(spark, Job(str(history), out, whatif=whatif()), list(STEPS), lines.append)
    return summary, lines, Tables(spark, out)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "tables"))


@pytest.fixture
def spark_of_commands(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Commands that a test carries out in this process take the session of all tests, and leave it as it is."""
    monkeypatch.setattr(session_module, "spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark
