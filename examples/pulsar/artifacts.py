"""Jars of a Pulsar broker, fetched once by Maven and cached. They include ZooKeeper and BookKeeper."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from examples.pulsar.progress import Report
from loadmanager.errors import EmbeddedServerError, LoadManagerError
from loadmanager.util.jvm import CHOICE_VARIABLE, MIN_JAVA_VERSION, get_java

CACHE_VARIABLE = "LOADMANAGER_PULSAR_CACHE"
CONFIGURATION = Path(__file__).with_name("configuration")

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FETCH_TIMEOUT_S = 1200.0


class NotPossibleHereError(LoadManagerError):
    """This machine lacks a requirement of Pulsar; the message begins with `needs:`."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Executables of Java and Maven."""

    java: Path
    maven: Path


def find_tools() -> Tools:
    """Find Java and Maven on this machine. `NotPossibleHereError` names all missing ones."""
    lacking = [] if sys.platform.startswith("linux") else ["Linux"]
    maven = shutil.which("mvn")
    if maven is None:
        lacking.append("Maven (mvn on the PATH)")
    try:
        java = get_java({CHOICE_VARIABLE: "system", **os.environ}).executable
    except EmbeddedServerError:
        lacking.append(f"a JDK of version {MIN_JAVA_VERSION} or newer (java on the PATH)")
    if importlib.util.find_spec("pulsar") is None:
        lacking.append("Pulsar's client (pip install pulsar-client)")
    if lacking:
        raise NotPossibleHereError(f"needs: {', '.join(lacking)}")
    assert maven is not None
    return Tools(java, Path(maven))


def fetch_jars(tools: Tools, version: str, report: Report) -> Path:
    """Return the folder with all jars of a version, 230 MB. The first call fetches them in a minute or two."""
    kept = _cache(version) / "lib"
    if kept.is_dir():
        return kept
    report(f"fetching Apache Pulsar {version} from Maven Central into {kept}, once")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lib-", dir=kept.parent) as partial:
        fetched = Path(partial) / "lib"
        _copy_dependencies(tools, version, fetched)
        if not kept.is_dir():  # another process may have fetched them meanwhile
            fetched.rename(kept)
    return kept


def _cache(version: str) -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    return (Path(given) if given else Path.home() / ".cache" / "loadmanager") / f"pulsar-{version}"


def _copy_dependencies(tools: Tools, version: str, folder: Path) -> None:
    command = [
        *(str(tools.maven), "--batch-mode", "--quiet"),
        *("--settings", str(CONFIGURATION / "settings.xml"), "--file", str(CONFIGURATION / "pom.xml")),
        *(_PLUGIN, f"-Dpulsar.version={version}", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise NotPossibleHereError(
            f"needs: Pulsar {version} from Maven Central, and Maven says:\n{done.stdout[-2000:]}"
        )
