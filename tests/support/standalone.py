"""A standalone Spark cluster of real processes: a master, and workers that can be killed as a machine is lost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from support.waiting import eventually_sync

from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.util.jvm import get_java, spark_java_home

TIMEOUT_S = 900.0
"""Generous timeout. A lost worker is detected by its closed connection, not by silence."""

SOON_WARM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""For JVMs that live for a minute."""

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_DEPLOY = "org.apache.spark.deploy"
_HOME = Path(pyspark.__file__).parent
_SCALA = next(_HOME.glob("jars/spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
"""Scala version, which Spark's own scripts would pass to its processes."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the cluster; its executors write their logs below `folder`."""

    pid: int
    folder: Path

    def tasks_begun(self) -> int:
        """Return the number of tasks that its executors have begun."""
        return sum(log.read_text(errors="replace").count("Running task ") for log in self.folder.glob("*/*/stderr"))

    def lose(self) -> None:
        """Kill it at once, and all that it has started: executors, and their Pythons."""
        worker = psutil.Process(self.pid)
        for process in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Standalone:
    """The cluster: the URL of its master, and its workers."""

    master: str
    workers: tuple[Worker, ...]


@contextmanager
def a_standalone_cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[Standalone]:
    """Workers of a core each. All of it ends with the block, or with this process."""
    servers = ServerProcesses()
    try:
        log = folder / "master.log"
        _start(servers, "master", folder, log, "--port", "0", "--webui-port", "0")
        eventually_sync(lambda: _MASTER.search(_said(log)), "a master says its address")
        found = _MASTER.search(_said(log))
        assert found is not None
        started = tuple(_start_worker(servers, number, folder, memory, found[1]) for number in range(workers))
        registered = "Registering worker"
        eventually_sync(lambda: _said(log).count(registered) == workers, "workers register")
        yield Standalone(found[1], started)
    finally:
        servers.close()


def _start_worker(servers: ServerProcesses, number: int, folder: Path, memory: str, master: str) -> Worker:
    work, name = folder / f"worker-{number}", f"worker-{number}"
    room = ("--cores", "1", "--memory", memory, "--work-dir", str(work), "--port", "0", "--webui-port", "0")
    return Worker(_start(servers, name, folder, folder / f"{name}.log", *room, master), work)


def _start(servers: ServerProcesses, name: str, folder: Path, log: Path, *arguments: str) -> int:
    java = spark_java_home(get_java())
    kind = name.partition("-")[0]
    main = f"{_DEPLOY}.{kind}.{kind.title()}"
    environment = [
        f"JAVA_HOME={java}",
        f"SPARK_HOME={_HOME}",
        "SPARK_LOCAL_IP=127.0.0.1",
        f"SPARK_SCALA_VERSION={_SCALA}",
    ]
    command = ["env", *environment, f"{java}/bin/java", *SOON_WARM.split(), "-Xmx256m"]
    command += [f"-Dspark.{kind}.timeout={TIMEOUT_S:.0f}" for kind in ("worker", "network")]
    command += ["-cp", f"{_HOME}/jars/*", main, "--host", "127.0.0.1", *arguments]
    return servers.start(name, command, cwd=folder, log=log)


def _said(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
