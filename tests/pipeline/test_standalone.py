"""The command by spark-submit on a standalone cluster of real processes, which loses a worker in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
import yaml
from pyspark.sql import SparkSession
from support.frames import rows_of
from support.standalone import SOON_WARM, TIMEOUT_S, Standalone, a_standalone_cluster
from support.waiting import eventually_sync, patience
from support.whole_run import TRIED, Done, in_order

from loadmanager.pipeline.datasets import DATASETS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.steps import STEPS
from loadmanager.util.jvm import get_java, spark_java_home

pytestmark = [pytest.mark.deep, pytest.mark.timeout(4 * TIMEOUT_S)]

LOOKS_EVERY_S = 0.1
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
APPLICATION = Path(__file__).parents[2] / "docs" / "examples" / "submit.py"
SHORT_DAY = """from loadmanager.pipeline.steps import whatif
whatif.WHOLE_DAY_HOURS = 0.5
"""
"""Minimum of the run that it is compared with, whose history is shorter than a day."""

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SOON_WARM,
    "spark.executor.extraJavaOptions": SOON_WARM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.network.timeout": f"{TIMEOUT_S:.0f}s",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with a_standalone_cluster(folder) as running:
        yield running


def test_run_survives_a_lost_worker(
    spark: SparkSession, done: Done, history: Path, cluster: Standalone, tmp_path: Path
) -> None:
    out, scenarios = tmp_path / "out", tmp_path / "two.yaml"
    scenarios.write_text(yaml.safe_dump(TRIED))
    application = tmp_path / "submit.py"
    application.write_text(SHORT_DAY + APPLICATION.read_text())
    tables, lost = Tables(spark, str(out)), cluster.workers[0]
    command = [
        "pipeline",
        "run",
        history,
        "--out",
        out,
        "--scenarios",
        scenarios,
        "--master-timeout",
        f"{TIMEOUT_S:g}",
    ]
    given = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    with subprocess.Popen(
        [SUBMIT, "--master", cluster.master, *given, application, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"JAVA_HOME": str(spark_java_home(get_java())), "PYSPARK_PYTHON": sys.executable},
    ) as running:  # fmt: skip

        def eventually(condition: Callable[[], bool], what: str) -> None:
            eventually_sync(lambda: condition() or running.poll() is not None, what, poll_s=LOOKS_EVERY_S)

        try:
            eventually(lambda: tables.has("clean_broker_reports"), "it takes in what was reported")
            begun = lost.tasks_begun()
            eventually(lambda: lost.tasks_begun() > begun, "the worker works on what comes next")
            lost.lose()
            assert not tables.has("advice"), "a table of the steps to come"
            printed, said = running.communicate(timeout=patience(300.0))
        finally:
            running.kill()
    assert running.returncode == 0, said
    lines = printed.splitlines()  # spark-submit joins standard error to it
    assert Path(lines[-1]) == out / "report" / "index.html"
    steps = [line.partition(":")[0] for line in lines]
    assert [each for each in dict.fromkeys(steps) if each in STEPS] == list(STEPS)
    _, _, expected = done
    for name in (each for each in DATASETS if expected.has(each)):
        found, wanted = (in_order(rows_of(each.read(name))) for each in (tables, expected))
        assert len(found) == len(wanted), name
        for row, other in zip(found, wanted, strict=True):
            assert row == pytest.approx(other, nan_ok=True), name
