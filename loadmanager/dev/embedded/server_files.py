"""Files and command line of a ZooKeeper server: `zoo.cfg`, logging.

The server runs in its own folder, and all its paths are relative. Java reads `zoo.cfg` as ISO-8859-1 with backslash
escapes, so it could not contain every folder name.

Ports come from below the kernel's range of ephemeral ports. From that range, the kernel could give the port of a
stopped server to a client as its source port. A client that keeps reconnecting could even connect to itself.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadmanager.dev.embedded.zookeeper_jars import class_path
from loadmanager.util.jvm import Java

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
    ensemble: Mapping[str, object] | None = None,
    my_id: int | None = None,
    security: Security = OPEN,
) -> None:
    """Write the configuration into the server's folder. `ensemble` has the keys of `zoo.cfg` that its members share.

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
        **(ensemble or {}),
        **security.keys,
    }
    (folder / DATA_FOLDER).mkdir(parents=True, exist_ok=True)
    config = "".join(f"{key}={value}\n" for key, value in keys.items())
    (folder / _CONFIG_FILE).write_text(config, encoding="ascii")
    (folder / _LOGGING_FILE).write_text(_LOGGING, encoding="ascii")
    for name, content in security.files.items():
        (folder / name).write_bytes(content)
    if my_id is not None:
        (folder / DATA_FOLDER / "myid").write_text(f"{my_id}\n", encoding="ascii")


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
