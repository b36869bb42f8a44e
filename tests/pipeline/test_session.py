from __future__ import annotations

import importlib.util
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.builders import bundle
from support.frames import HOUR_MS, files_of, history_of, reported

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline import session as session_module
from loadmanager.pipeline.session import are_few, require_spark, spark_session

ANSWERS_S = 60.0
"""Nothing takes that long by itself."""


def test_session_uses_utc_and_arrow(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.master == "local[2]"


def test_given_settings_override_the_defaults(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.memory") == "2g"


def test_spark_uses_the_temporary_directory_of_python(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.java.lang.System.getProperty("java.io.tmpdir") == tempfile.gettempdir()


def test_session_for_few_rows_disables_adaptive_execution(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    many = session_module._settings("local[2]", {})
    elsewhere = session_module._settings("spark://here:7077", {}, for_few=True)
    assert not {"spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"} & {*many, *elsewhere}


def test_size_of_the_files_decides_whether_reports_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hour in range(2):
        history_of(tmp_path, [(hour * HOUR_MS, reported("a", {bundle(1): (1.0, 1.0, 1.0, 1.0)}))], first=hour)
    assert are_few(str(tmp_path))
    sizes = [file.stat().st_size for file in files_of(tmp_path, BUNDLE_REPORTS)]
    monkeypatch.setattr(session_module, "FEW_BYTES", max(sizes))
    assert not are_few(str(tmp_path))
    assert not are_few("hdfs://somewhere/history")
    assert not are_few(f"file:{tmp_path}")


def test_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without_pandas(name: str, package: str | None = None) -> Any:  # noqa: ANN401 - a module's specification
        return None if name == "pandas" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_pandas)
    with pytest.raises(
        PipelineError, match=r"not installed: pandas; install with: pip install 'loadmanager\[pipeline\]'$"
    ):
        require_spark()


def test_missing_java_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_JAVA", "/nowhere/java")
    with pytest.raises(PipelineError, match=r"no Java 17 or newer .*/nowhere/java cannot be run.*pip install"):
        spark_session("local[1]")


@pytest.mark.spark
def test_unreachable_master_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(PipelineError, match=f"master spark://127.0.0.1:{port} does not answer .*refused"):
        spark_session(f"spark://127.0.0.1:{port}", answer_timeout_s=5)


def test_one_reachable_master_of_several_is_enough() -> None:
    with socket.socket() as listening, socket.socket() as closed:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closed.bind(("127.0.0.1", 0))
        addresses = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (closed, listening))
        session_module._require_master(f"spark://{addresses}", ANSWERS_S)


@pytest.mark.spark
@pytest.mark.parametrize("master", ["spark://nowhere", "spark://"])
def test_master_without_an_address_is_refused(master: str) -> None:
    with pytest.raises(PipelineError, match="expected spark://host:port"):
        spark_session(master)


def test_idle_cluster_is_named_after_its_timeout(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(True))

    cancelled = threading.Event()

    class Idle:
        """A frame whose tasks are never taken up, until all are cancelled."""

        def collect(self) -> None:
            assert cancelled.wait(ANSWERS_S)
            raise RuntimeError("Job 0 cancelled as part of cancellation of all jobs")

    monkeypatch.setattr(spark.sparkContext, "cancelAllJobs", cancelled.set)
    monkeypatch.setattr(spark, "range", lambda _: Idle())
    with pytest.raises(PipelineError, match=r"master yarn has not carried out a task within 0.05 s.*Job 0 cancelled"):
        session_module._require_answer(spark, "yarn", 0.05)
    assert stopped == [True]


def test_local_master_gets_two_partitions_per_core() -> None:
    settings = session_module._settings("local[3]", {"spark.log.level": "WARN"})
    assert settings["spark.sql.shuffle.partitions"] == "6"
    assert settings["spark.log.level"] == "WARN"
    assert "spark.driver.memory" not in session_module._settings("yarn", {})


@pytest.mark.parametrize(
    ("python", "why"), [("/nowhere/python", "Cannot run program"), ("/bin/false", "they end at once")]
)
def test_unusable_python_is_named_with_the_variable(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, python: str, why: str
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(True))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    monkeypatch.setattr(session_module, "_create", lambda *_: spark)
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    with pytest.raises(PipelineError, match=f"^PYSPARK_PYTHON {python}: .*{why}.*unset the variable"):
        spark_session("local[1]")
    assert stopped == [True]


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_SUBMIT_ARGS"])
def test_failed_start_names_the_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Broken:
        def getOrCreate(self) -> SparkSession:  # noqa: N802 - Spark's name
            raise FileNotFoundError("/nowhere/bin/spark-submit")

    monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(PipelineError, match=f"no Spark session: .*It sets {name}"):
        session_module._create(Broken(), "local[1]")  # type: ignore[arg-type]
