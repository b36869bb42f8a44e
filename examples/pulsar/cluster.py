"""ZooKeeper, one bookie and some brokers: processes on this machine that end with this process.

Each broker has its own loopback address, because Pulsar's policies identify brokers by their hosts, and its own cgroup
if possible. All ports are free ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Self

from examples.pulsar.admin import ask
from examples.pulsar.artifacts import CONFIGURATION, fetch_jars, find_tools
from examples.pulsar.cgroups import Cgroup, make_cgroup
from examples.pulsar.progress import Report, wait_until
from examples.pulsar.znodes import four_letters, read_znode, sessions_of
from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.dev.embedded.server_files import LOOPBACK, free_ports
from loadmanager.errors import EmbeddedServerError

CLUSTER = "example"
VERSION = "4.2.4"

_START_TIMEOUT_S = 240.0
_LINES_OF_LOG = 25
_ZOOKEEPER, _METADATA, _BOOKIE = "zookeeper", "metadata", "bookie"
_MAIN = {
    _ZOOKEEPER: "org.apache.zookeeper.server.quorum.QuorumPeerMain",
    _METADATA: "org.apache.pulsar.PulsarClusterMetadataSetup",
    _BOOKIE: "org.apache.bookkeeper.server.Main",
}
_BROKER_MAIN = "org.apache.pulsar.PulsarBrokerStarter"
_OPENED = (
    *("java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip", "java.base/jdk.internal.loader"),
    *("java.base/jdk.internal.misc", "java.base/sun.net", "java.base/sun.nio.ch"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
    "java.base/jdk.internal.platform",  # for a broker's reading of its cgroup
)
_JVM = (
    # These processes live shortly and share cores, so fast compilation matters more than fast code.
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2", "-Xshare:auto"),
    *("-Dio.netty.tryReflectionSetAccessible=true", "-Dzookeeper.forceSync=no"),
    "-Djava.net.preferIPv4Stack=true",  # else a bookie of Pulsar 5 uses the name of the IPv6 loopback
    "-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
)


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of a broker; `name` is its id in Pulsar."""

    address: str
    web_port: int
    service_port: int

    @property
    def name(self) -> str:
        return f"{self.address}:{self.web_port}"

    @property
    def web_url(self) -> str:
        return f"http://{self.name}"

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.address}:{self.service_port}"


class PulsarCluster:
    """A Pulsar in a temporary folder.

    `strategy` is the shedding strategy of its brokers. Shedding is off until it is switched on. The load manager is the
    modular or the `extensible` one. Each broker gets `cores` cores if cgroups can be created: see `separate_cpu`.
    Raises `NotPossibleHereError` without Java or Maven, and `EmbeddedServerError` if one of its processes exits.
    """

    def __init__(
        self,
        *,
        brokers: int = 3,
        strategy: str = "",
        cores: float = 0.6,
        version: str = VERSION,
        extensible: bool = False,
        report: Report = print,
    ) -> None:
        self._tools = find_tools()
        self._report = report
        self._version = version
        self._extensible = extensible
        self._strategy = strategy or ("TransferShedder" if extensible else "UniformLoadShedder")
        self._cores = cores
        self._zookeeper_port, self._bookie_port, self._statistics_port, web_port, service_port = free_ports(5)
        self.brokers = tuple(Broker(f"127.0.0.{21 + i}", web_port, service_port) for i in range(brokers))
        self._jars: Path | None = None
        self._processes: ServerProcesses | None = None
        self._pids: dict[str, int] = {}
        self._cgroups: dict[str, Cgroup] = {}

    @property
    def zookeeper(self) -> str:
        """Address of Pulsar's ZooKeeper, host:port; all znodes are below its root."""
        return f"{LOOPBACK}:{self._zookeeper_port}"

    @property
    def service_url(self) -> str:
        """Service URL for clients, with all brokers."""
        return "pulsar://" + ",".join(f"{each.address}:{each.service_port}" for each in self.brokers)

    @property
    def folder(self) -> Path:
        """Folder of all processes, removed at the end."""
        folder = self._running().folder
        assert folder is not None
        return folder

    @property
    def zookeeper_data(self) -> Path:
        return self.folder / _ZOOKEEPER

    @property
    def separate_cpu(self) -> bool:
        """True if each broker reports its own CPU, False if it reports the machine's."""
        return len(self._cgroups) == len(self.brokers)

    def broker(self, name: str) -> Broker:
        """Return the broker with this id."""
        return next(each for each in self.brokers if each.name == name)

    def log_of(self, broker: Broker) -> Path:
        return self._log(broker.name)

    def start(self) -> None:
        """Start all processes, and return when every broker serves and there is a leader."""
        self._jars = fetch_jars(self._tools, self._version, self._report)
        self._processes = ServerProcesses("loadmanager-pulsar-")
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes and delete their data. Idempotent."""
        if self._processes is not None:
            self._processes.close()
        for each in self._cgroups.values():
            each.remove()
        self._cgroups.clear()

    def start_broker(self, broker: Broker) -> None:
        """Start a broker, also after `kill`, without waiting for it."""
        file = self.folder / f"{broker.name}.conf"
        command = self._java(_BROKER_MAIN, "--broker-conf", str(file), heap_mib=320, direct_mib=192)
        group = self._cgroups.get(broker.name)
        self._start(broker.name, group.entering(command) if group else command)

    def wait_for_broker(self, broker: Broker) -> None:
        """Wait until the broker serves and has registered."""
        self._wait(broker.name, lambda: self._serves(broker))

    def kill(self, broker: Broker) -> None:
        """SIGKILL a broker. Its bundles have no owner after the end of its session, 10 s later."""
        self._running().stop(broker.name, grace_s=0)

    def serving(self) -> list[Broker]:
        """Return the brokers whose process is running."""
        return [each for each in self.brokers if self._running().find_exit_code(each.name) is None]

    def own_sessions(self) -> set[int]:
        """Return the current ZooKeeper sessions of Pulsar's own processes."""
        names = (_BOOKIE, *(each.name for each in self.serving()))
        return set().union(*(sessions_of(self.zookeeper, self._pids[name]) for name in names))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        self._report("starting ZooKeeper")
        self._write("zoo.cfg", "zoo.cfg", folder=self.zookeeper_data, port=self._zookeeper_port)
        self._start(_ZOOKEEPER, self._java(_MAIN[_ZOOKEEPER], str(self.folder / "zoo.cfg"), heap_mib=160))
        self._wait(_ZOOKEEPER, lambda: "Zxid:" in four_letters(self.zookeeper, "srvr"))
        self._report("laying out the cluster's metadata")
        self._initialise()
        self._report("starting the bookie and the brokers, which takes a minute at most")
        self._start_bookie()
        self._make_cgroups()
        for broker in self.brokers:
            self._write_broker(broker)
            self.start_broker(broker)
        for broker in self.brokers:
            self.wait_for_broker(broker)
            self._report(f"broker {broker.name} serves")
        self._wait(self.brokers[0].name, self._find_leader)

    def _initialise(self) -> None:
        zookeeper = f"zk:{self.zookeeper}"
        web = "http://" + ",".join(each.name for each in self.brokers)
        addresses = ["--web-service-url", web, "--broker-service-url", self.service_url]
        stores = ["--metadata-store", zookeeper, "--configuration-metadata-store", zookeeper]
        command = self._java(_MAIN[_METADATA], "--cluster", CLUSTER, *stores, *addresses, heap_mib=160)
        self._start(_METADATA, command)
        processes = self._running()
        wait_until(lambda: processes.find_exit_code(_METADATA) is not None, "the set-up of the metadata", timeout_s=120)
        if processes.find_exit_code(_METADATA):
            raise EmbeddedServerError(f"the metadata could not be set up:\n{self._last_lines(_METADATA)}")

    def _start_bookie(self) -> None:
        self._write(
            "bookie.conf",
            "bookie.conf",
            zookeeper=self.zookeeper,
            port=self._bookie_port,
            statistics_port=self._statistics_port,
            folder=self.folder / _BOOKIE,
        )
        arguments = ["--conf", str(self.folder / "bookie.conf")]
        self._start(_BOOKIE, self._java(_MAIN[_BOOKIE], *arguments, heap_mib=200, direct_mib=200))
        registered = f"/ledgers/available/{LOOPBACK}:{self._bookie_port}"
        self._wait(_BOOKIE, lambda: read_znode(self.zookeeper, registered))

    def _make_cgroups(self) -> None:
        made = {each.name: make_cgroup(f"{self.folder.name}-{each.address}", self._cores) for each in self.brokers}
        self._cgroups = {name: group for name, group in made.items() if group is not None}
        own = "reports its own CPU, from a cgroup" if self.separate_cpu else "reports the CPU of the whole machine"
        self._report(f"every broker {own}")

    def _write_broker(self, broker: Broker) -> None:
        self._write(
            "broker.conf",
            f"{broker.name}.conf",
            cluster=CLUSTER,
            zookeeper=self.zookeeper,
            address=broker.address,
            web_port=broker.web_port,
            service_port=broker.service_port,
            strategy=f"{'extensions.scheduler' if self._extensible else 'impl'}.{self._strategy}",
            load_manager="extensions.ExtensibleLoadManagerImpl" if self._extensible else "impl.ModularLoadManagerImpl",
            extensible=str(self._extensible).lower(),
        )

    def _write(self, template: str, name: str, **values: object) -> None:
        text = Template((CONFIGURATION / template).read_text(encoding="utf-8")).substitute(values)
        (self.folder / name).write_text(text, encoding="utf-8")

    def _java(self, main: str, *arguments: str, heap_mib: int, direct_mib: int = 64) -> list[str]:
        sizes = [f"-Xmx{heap_mib}m", f"-XX:MaxDirectMemorySize={direct_mib}m"]
        logging = f"-Dlog4j.configurationFile={CONFIGURATION / 'log4j2.properties'}"
        return [str(self._tools.java), *sizes, *_JVM, logging, "-cp", f"{self._jars}/*", main, *arguments]

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._pids[name] = self._running().start(name, command, cwd=self.folder, log=self._log(name))

    def _wait(self, name: str, condition: Callable[[], object]) -> None:
        wait_until(condition, f"{name} does not serve", timeout_s=_START_TIMEOUT_S, check=lambda: self._check(name))

    def _check(self, name: str) -> None:
        code = self._running().find_exit_code(name)
        if code is not None:
            raise EmbeddedServerError(
                f"{name} ended with exit code {code}; its log ends with:\n{self._last_lines(name)}"
            )

    def _serves(self, broker: Broker) -> bool:
        if ask(broker.web_url, "GET", "/admin/v2/brokers/ready").status != 200:  # noqa: PLR2004
            return False
        return read_znode(self.zookeeper, f"/loadbalance/brokers/{broker.name}") is not None

    def _find_leader(self) -> bool:
        return ask(self.brokers[0].web_url, "GET", "/admin/v2/brokers/leaderBroker").status == 200  # noqa: PLR2004

    def _running(self) -> ServerProcesses:
        if self._processes is None:
            raise EmbeddedServerError("this Pulsar has not been started")
        return self._processes

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _last_lines(self, name: str) -> str:
        lines: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            lines = self._log(name).read_text(errors="replace").splitlines()
        told = [line for line in lines if not re.match(r"\s+at ", line)]
        return "\n".join(told[-_LINES_OF_LOG:])
