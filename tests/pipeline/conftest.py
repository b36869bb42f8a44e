"""One Spark session for all tests of the pipeline, which run in one process therefore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from loadmanager.pipeline import session as session_module
from loadmanager.pipeline.session import spark_session
from loadmanager.pipeline.writing import Tables

_TIMEOUT_S = 600
"""Nothing takes that long by itself: the first test also starts the JVM, and the machine may be busy."""

_JVM_ENDS_WITHIN_S = 60

_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _jvm_ends_with_its_tests() -> Iterator[None]:
    """PySpark would keep it for as long as this process lives."""
    yield
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_JVM_ENDS_WITHIN_S)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = spark_session("local[2]", "tests", settings, for_few=True)
    yield session
    session.stop()


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "tables"))


@pytest.fixture
def spark_of_commands(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Commands that a test carries out in this process take the session of all tests, and leave it as it is."""
    monkeypatch.setattr(session_module, "spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark
