"""Class path of a ZooKeeper server: its jars from the package PySpark if that is installed, else from Maven Central.

`python -m loadmanager.dev.embedded.zookeeper_jars` fetches them in advance.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

from loadmanager.errors import EmbeddedServerError
from loadmanager.util.jvm import cache_folder

_MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_S = 30.0
# SHA-256 by path in a Maven repository: the jars of a server without TLS, 7 MB, in the versions of the pinned PySpark.
JARS = {
    "org/apache/zookeeper/zookeeper/3.9.5/zookeeper-3.9.5.jar": (
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0"
    ),
    "org/apache/zookeeper/zookeeper-jute/3.9.5/zookeeper-jute-3.9.5.jar": (
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a"
    ),
    "org/slf4j/slf4j-api/2.0.17/slf4j-api-2.0.17.jar": (
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832"
    ),
    "org/apache/logging/log4j/log4j-slf4j2-impl/2.25.4/log4j-slf4j2-impl-2.25.4.jar": (
        "dd897abc5eb3a6d965426c7937b92dd43e67c82d9819bea5d19f311516c68be3"
    ),
    "org/apache/logging/log4j/log4j-api/2.25.4/log4j-api-2.25.4.jar": (
        "c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d"
    ),
    "org/apache/logging/log4j/log4j-core/2.25.4/log4j-core-2.25.4.jar": (
        "10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6"
    ),
    "io/dropwizard/metrics/metrics-core/4.2.37/metrics-core-4.2.37.jar": (
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678"
    ),
    "org/xerial/snappy/snappy-java/1.1.10.8/snappy-java-1.1.10.8.jar": (
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc"
    ),
}
# PySpark has over two hundred jars. Opening only these makes the start three times as fast.
_NEEDED_OF_PYSPARK = (
    *(f"{path.split('/')[-3]}-[0-9]*.jar" for path in JARS),
    "netty-*.jar",  # for TLS
)


def class_path() -> str:
    """Return the jars as a value of Java's option `-cp`. Raises `EmbeddedServerError`."""
    return os.pathsep.join(map(str, _find_in_pyspark() or fetch()))


def _find_in_pyspark() -> list[Path]:
    """Return the jars inside `pyspark`, without importing it; empty if it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return []
    jars = Path(next(iter(spec.submodule_search_locations))) / "jars"
    found = [sorted(jars.glob(pattern)) for pattern in _NEEDED_OF_PYSPARK]
    if found[0] and not all(found):  # this PySpark has other names for them
        return [jars / "*"]
    return [jar for each in found for jar in each]


def fetch(repository: str = _MAVEN_CENTRAL, folder: Path | None = None) -> list[Path]:
    """Return the jars in `folder`, by default in the user's cache; fetch missing ones."""
    folder = folder or cache_folder() / "zookeeper"
    files = {path: folder / path.rpartition("/")[2] for path in JARS}
    for path in (path for path in JARS if not files[path].exists()):
        url = f"{repository}/{path}"
        try:
            _download(url, files[path], JARS[path])
        except (OSError, ValueError) as error:
            raise EmbeddedServerError(
                f"no ZooKeeper: {url} cannot be fetched: {error}; or take the jars of PySpark: pip install 'pyspark<5'"
            ) from error
    return list(files.values())


def _download(url: str, file: Path, sha256: str) -> None:
    """Download a file, check its hash, and write it atomically: another process may be fetching it too."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the callers' own http(s) address
        content = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"its SHA-256 is {found}, not {sha256}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        part = Path(folder) / file.name
        part.write_bytes(content)
        part.replace(file)


if __name__ == "__main__":
    try:
        class_path()
    except EmbeddedServerError as error:
        sys.exit(str(error))
