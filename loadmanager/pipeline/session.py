"""Spark session, on this machine (with an installed JVM or the one from PyPI) or on a cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from loadmanager.errors import EmbeddedServerError, PipelineError
from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.util.jvm import get_java, spark_java_home
from loadmanager.util.optional_dependencies import how_to_install

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HERE = "local[*]"
_NEEDED = ("pyspark", "pandas", "scipy", "deltalake", "jinja2")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable set by spark-submit, which has already started the JVM."""

_PYTHON = "PYSPARK_PYTHON"
"""Variable with the Python interpreter of Spark's workers."""

_STARTED_BY = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")
"""Variables that change how Spark starts."""

_OF_PYTHON = re.compile(r"^((?!org\.|java\.)[\w.]+(?:Error|Exception): .+)", re.MULTILINE)
_CAUSE = re.compile(r"java\.io\.IOException: (.+)")

_STANDALONE = "spark://"
_ADDRESS = re.compile(r"([^:,/]+|\[[^]]+\]):(\d+)")

_LOGGING = files("loadmanager.pipeline") / "log4j2.properties"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Broadcast a day's broker reports: they are few compared with the bundle reports that are joined with them.
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # The command prints each error once.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_SETTINGS_HERE = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # List local files on the driver: a task per file would take longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}

FEW_BYTES = 1 << 20
"""Size of small input files: at most some 50,000 rows of bundle reports."""

_SETTINGS_FOR_FEW = {
    # With few rows, most of the time goes into compiling and re-planning queries.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def require_spark() -> None:
    """Raise `PipelineError`, with the command that installs it, if a package of the pipeline is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineError(f"not installed: {', '.join(missing)}; install with: {how_to_install('pipeline')}")


def are_few(history: str) -> bool:
    """Return True for a local history with at most `FEW_BYTES` of bundle reports; False for a URL."""
    if ":" in history.partition("/")[0]:
        return False
    files, _ = Directory.of(history).list_files(BUNDLE_REPORTS)
    return sum(each.size_bytes for each in files) <= FEW_BYTES


def spark_session(
    master: str | None = None,
    app: str = "loadmanager pipeline",
    settings: Mapping[str, str] | None = None,
    answer_timeout_s: float = 60.0,
    *,
    for_few: bool = False,
) -> SparkSession:
    """Return a session on `master`, by default that of spark-submit or all cores of this machine.

    `settings` override our Spark settings. `for_few` selects local settings for few rows (`are_few`). Raises
    `PipelineError` if a package or Java is missing, or if the master does not answer in time.
    """
    require_spark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it may not be installed, see above

    from loadmanager.pipeline.source import HistoryDataSource  # noqa: PLC0415 - as above

    is_submitted = _SUBMITTED in os.environ
    python = os.environ.get(_PYTHON, sys.executable)
    if not is_submitted:
        master = HERE if master is None else master
        _use_java()
    if master is not None:
        _require_master(master, answer_timeout_s)
    builder = SparkSession.builder.appName(app)
    for key, value in _settings(master, settings or {}, for_few=for_few).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    session = _create(builder, master)
    if master is not None and not _is_here(master):
        _require_answer(session, master, answer_timeout_s)
    if python != sys.executable:
        _require_python(session, python)
    session.dataSource.register(HistoryDataSource)
    return session


def _create(builder: SparkSession.Builder, master: str | None) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:  # whatever Spark and py4j raise when there is no session
        raise PipelineError(f"master {master}: no Spark session: {_first_line(error)}{_of_environment()}") from error


def _of_environment() -> str:
    """Name the variables of the environment that change how Spark starts."""
    found = [name for name in _STARTED_BY if name in os.environ]
    return f"; is what the environment says meant for this? It sets {', '.join(found)}" if found else ""


def _settings(master: str | None, given: Mapping[str, str], *, for_few: bool = False) -> dict[str, str]:
    if master is None or not _is_here(master):
        return {**_SETTINGS, **given}
    cores = re.fullmatch(r"local\[(\d+).*]", master)
    tasks = 2 * (int(cores[1]) if cores else os.cpu_count() or 1)
    here = {**_SETTINGS, **_SETTINGS_HERE, "spark.sql.shuffle.partitions": str(tasks)}
    here |= _SETTINGS_FOR_FEW if for_few else {}
    properties = {"java.io.tmpdir": tempfile.gettempdir(), "log4j2.configurationFile": str(_LOGGING)}
    here["spark.driver.extraJavaOptions"] += "".join(
        f" -D{key}={shlex.quote(each)}" for key, each in properties.items()
    )
    return {**here, **given}


def _is_here(master: str) -> bool:
    return master.startswith("local")


def _use_java() -> None:
    """Use our Java, and this interpreter, which has the packages, for the workers."""
    os.environ.setdefault(_PYTHON, sys.executable)
    try:
        os.environ["JAVA_HOME"] = str(spark_java_home(get_java()))
    except EmbeddedServerError as error:
        raise PipelineError(str(error)) from None


def _require_master(master: str, timeout_s: float) -> None:
    """Require that one master of `spark://host:port,...` accepts connections. Spark itself would try for a minute."""
    if not master.startswith(_STANDALONE):
        return
    addresses = _ADDRESS.findall(master.removeprefix(_STANDALONE))
    if not addresses:
        raise PipelineError(f"master {master}: expected spark://host:port")
    faults = []
    for host, port in addresses:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except OSError as error:
            faults.append(f"{host}:{port}: {error}")
        else:
            return
    raise PipelineError(
        f"master {master} does not answer ({'; '.join(faults)}): is it running, and is this its address?"
    )


def _require_answer(session: SparkSession, master: str, timeout_s: float) -> None:
    """Run one small task on the cluster. Raises `PipelineError` if it does not end in time."""
    timer = threading.Timer(timeout_s, session.sparkContext.cancelAllJobs)
    timer.start()
    try:
        session.range(1).collect()
    except Exception as error:
        session.stop()
        raise PipelineError(
            f"master {master} has not carried out a task within {timeout_s:g} s: are there workers with room for it,"
            " and does a busy cluster need longer (--master-timeout)?"
            f" ({_first_line(error)})"
        ) from error
    finally:
        timer.cancel()


def _require_python(session: SparkSession, python: str) -> None:
    """Check that the Python that the environment names can run a task of this package."""
    try:
        session.range(1).mapInArrow(_return_all, "id long").collect()
    except Exception as error:
        session.stop()
        causes = _OF_PYTHON.findall(str(error)) or _CAUSE.findall(str(error)) or ["they end at once"]
        raise PipelineError(
            f"{_PYTHON} {python}: Spark's workers cannot use it: {causes[0][:300]}: unset the variable, or name a"
            " Python of the same version that has what this one has"
        ) from error


def _return_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches. A worker that runs it has imported this package."""
    return batches


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
