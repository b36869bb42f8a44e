"""Files and command line of a ZooKeeper server: jars, `zoo.cfg`, logging.

The jars come from the package PySpark if that is installed, else from Maven Central; `python -m
loadmanager.dev.embedded.server_files` fetches them in advance.

The server runs in its own folder, and all its paths are relative. Java reads `zoo.cfg` as ISO-8859-1 with backslash
escapes, so it could not contain every folder name.

Ports come from below the kernel's range of ephemeral ports. From that range, the kernel could give the port of a
stopped server to a client as its source port. A client that keeps reconnecting could even connect to itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadmanager.errors import EmbeddedServerError
from loadmanager.util.jvm import Java, cache_folder

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


STANDALONE_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
LOG_FILE = "zookeeper.log"

DATA_FOLDER = "data"

_CONFIG_FILE = "zoo.cfg"
_LOGGING_FILE = "log4j2.properties"
_LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p [%t:%c{1}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
# Tuned for a fast start and little memory. UsePerfData would leave files in /tmp after a SIGKILL.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    f"-Dlog4j2.configurationFile={_LOGGING_FILE}",
)


@dataclass(frozen=True, slots=True)
class Security:
    """Client authentication and TLS of a server: keys of `zoo.cfg`, options of the JVM, and the files that they name,
    by path relative to the server's folder.
    """

    keys: Mapping[str, object] = field(default_factory=dict)
    jvm_options: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


OPEN = Security()


def server_command(java: Java, main_class: str, heap_mib: int, options: Sequence[str] = ()) -> list[str]:
    return [
        str(java.executable),
        f"-Xmx{heap_mib}m",
        *_JVM_OPTIONS,
        *options,
        "-cp",
        class_path(),
        main_class,
        f"./{_CONFIG_FILE}",
    ]


def write_server_files(
    folder: Path,
    port: int,
    *,
    tick_time_ms: int,
    durable: bool,
    security: Security = OPEN,
) -> None:
    """Write the configuration into the server's folder.

    Without `durable` there is no fsync: writes survive a crash of the server, but not of the machine.
    """
    keys: dict[str, object] = {
        "tickTime": tick_time_ms,
        "minSessionTimeout": 2 * tick_time_ms,
        "maxSessionTimeout": 600_000,
        "dataDir": f"./{DATA_FOLDER}",
        "clientPort": port,
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": 0,  # all clients share one address; the default limit is 60
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,mntr,ruok",
        "autopurge.purgeInterval": 1,
        "forceSync": "yes" if durable else "no",
        **security.keys,
    }
    (folder / DATA_FOLDER).mkdir(parents=True, exist_ok=True)
    config = "".join(f"{key}={value}\n" for key, value in keys.items())
    (folder / _CONFIG_FILE).write_text(config, encoding="ascii")
    (folder / _LOGGING_FILE).write_text(_LOGGING, encoding="ascii")
    for name, content in security.files.items():
        (folder / name).write_bytes(content)


LOOPBACK = "127.0.0.1"

_LOWEST_PORT = 10_240
_USUAL_FIRST_EPHEMERAL_PORT = 32_768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def is_free(port: int) -> bool:
    """Tell if a server could listen on `port` of the loopback interface. Connections in TIME_WAIT are ignored."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports. Another process may still take one before it is used."""
    found: list[int] = []
    span = _first_ephemeral_port() - _LOWEST_PORT
    for _ in range(_TRIES if span > 0 else 0):
        if len(found) == count:
            break
        port = _LOWEST_PORT + secrets.randbelow(span)
        if port not in found and is_free(port):
            found.append(port)
    return found + _ports_from_kernel(count - len(found))


def _first_ephemeral_port() -> int:
    try:
        first = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return _USUAL_FIRST_EPHEMERAL_PORT
    return min(first, _USUAL_FIRST_EPHEMERAL_PORT)


def _ports_from_kernel(count: int) -> list[int]:
    """Return free ports from the kernel: the fall-back if its range covers all ports. All are held open, so they
    differ.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


if __name__ == "__main__":
    try:
        class_path()
    except EmbeddedServerError as error:
        sys.exit(str(error))
