"""The demo's processes: one ZooKeeper, load-manager nodes, brokers with an agent each, and clients.

All are children of a guardian process, which ends them when this process ends, even after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmanager
from loadmanager.dev.demo.demo_client import CLIENT_CONFIG, SETTLE_TIMEOUT_S, ClientConfig
from loadmanager.dev.demo.demo_settings import DemoSettings, agent_configuration, node_configuration
from loadmanager.dev.demo.evidence import find_json
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.errors import EmbeddedServerError, LoadManagerError
from loadmanager.util import clock

_TEMPORARY_PREFIX = "loadmanager-demo-"
_READY_TIMEOUT_S = 120.0
_POLL_S = 0.05
_LINES_OF_LOG = 15
_HISTORY = "history"
_LOADMANAGER = ("-c", "from loadmanager.cli import main; main()")
_WORKING_FOLDER = Path(loadmanager.__file__).parent.parent
"""Working folder of the processes: there `python -m loadmanager...` finds the package even if it is not installed."""


class DemoError(LoadManagerError):
    """A process of the demo did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    name: str
    url: str


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """A broker and its agent. They stand for one machine."""

    name: str
    broker_id: str
    instance: str
    url: str
    agent_pid: int


class DemoCluster:
    """Starts, kills and watches the processes. All their files are in `folder`."""

    def __init__(self, settings: DemoSettings, processes: ServerProcesses, folder: Path, history: Path) -> None:
        self.folder = folder
        self.history = history
        self.nodes: dict[str, NodeProcess] = {}
        self.brokers: dict[str, BrokerProcess] = {}
        self.clients: list[str] = []
        self.ended_at_s: dict[str, float] = {}
        self.died_unexpectedly: list[str] = []
        self._settings = settings
        self._processes = processes
        self.hot_spot_file = folder / "hot-spot.json"
        """Positions of the hot topics, for the clients."""
        self._zookeeper = EmbeddedZooKeeper()
        self._brokers_started = 0

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        settings: DemoSettings,
        folder: Path | None,
        history: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[DemoCluster]:
        """Start ZooKeeper, nodes and brokers, wait until all answer, and end them on exit. A given `folder` is kept.

        Leaders record to `history`, by default in that folder. `tell` is called with each step of the start.
        """
        # With a temporary folder the guardian kills its processes. So end the nodes first: they have data to save.
        processes = ServerProcesses(_TEMPORARY_PREFIX)
        home = _home(folder or processes.folder)
        cluster = cls(settings, processes, home, (history or home / _HISTORY).absolute())
        try:
            tell("ZooKeeper starts")
            await asyncio.to_thread(cluster._zookeeper.start)
            tell(f"ZooKeeper answers; {settings.nodes} load-manager nodes start")
            await cluster._all(tell, *(cluster.start_node(f"node-{i + 1}") for i in range(settings.nodes)))
            tell(f"look at {cluster.node_urls[-1]}/")  # not the first node: it leads, and the demo kills the leader
            tell(f"{settings.brokers} brokers with their agents start")
            await cluster._all(tell, *(cluster.start_broker() for _ in range(settings.brokers)))
            yield cluster
        finally:
            await asyncio.to_thread(cluster._close)

    @property
    def node_urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    async def _all(self, tell: Callable[[str], None], *starts: Awaitable[NodeProcess | BrokerProcess]) -> None:
        for start in asyncio.as_completed(starts):
            started = await start
            tell(f"{started.name} answers")

    async def start_node(self, name: str) -> NodeProcess:
        content = node_configuration(self._settings, self._zookeeper.connect_string, self.history)
        configuration = self._write(f"{name}.yaml", content)
        ready = await self._start_loadmanager(name, "serve", configuration)
        self.nodes[name] = NodeProcess(name, ready["url"])
        return self.nodes[name]

    async def start_broker(self) -> BrokerProcess:
        """Start a new broker, then its agent, which needs the broker's addresses."""
        self._brokers_started += 1
        name = f"broker-{self._brokers_started}"
        agent_file = self._path(f"{name}-agent.ready")
        files = {
            "--agent-file": agent_file,
            "--serving-log": self._path(f"{name}.serving.jsonl"),
            "--ready-file": self._path(f"{name}.ready"),
        }
        arguments = [word for option, path in files.items() for word in (option, str(path))]
        ready = await self._start(name, ["-m", "loadmanager.dev.demo.demo_broker", *arguments], files["--ready-file"])
        content = agent_configuration(self._zookeeper.connect_string, ready, self.node_urls)
        agent = await self._start_loadmanager(f"{name}-agent", "agent", self._write(f"{name}-agent.yaml", content))
        broker = BrokerProcess(name, ready["broker_id"], ready["instance"], ready["url"], int(agent["pid"]))
        self.brokers[name] = broker
        return broker

    async def start_clients(self) -> None:
        await asyncio.gather(*(self._start_client(i) for i in range(self._settings.client_processes)))

    async def stop_clients(self) -> None:
        """Stop the clients; they finish their batches and write their accounts."""
        names = self.clients.copy()
        self.clients.clear()
        for name in names:
            await asyncio.to_thread(self._processes.signal, name, signal.SIGTERM)
        deadline_s = clock.now_s() + 2 * SETTLE_TIMEOUT_S
        codes = await asyncio.to_thread(self._exit_codes, names)
        while None in codes.values() and clock.now_s() < deadline_s:
            await asyncio.sleep(_POLL_S)
            codes = await asyncio.to_thread(self._exit_codes, names)
        self.died_unexpectedly.extend(name for name, code in codes.items() if code)

    async def kill_node(self, name: str) -> float:
        """SIGKILL a node; return the time on the clock of leases."""
        del self.nodes[name]
        return await asyncio.to_thread(self._processes.kill, name)

    async def kill_broker(self, name: str) -> BrokerProcess:
        """SIGKILL a broker and its agent, as when a machine is lost. The agent first, because it watches its broker."""
        broker = self.brokers.pop(name)
        self.ended_at_s[broker.instance] = await asyncio.to_thread(self._processes.kill, f"{name}-agent", name)
        return broker

    async def watch(self) -> list[str]:
        """Return the names of processes that have exited unexpectedly since the last call."""
        codes = await asyncio.to_thread(self._exit_codes, self._running())
        ended = {name for name, code in codes.items() if code is not None} - set(self.died_unexpectedly)
        gone = [name for name in self._running() if name in ended]
        for name in gone:
            if name in self.brokers:
                self.ended_at_s[self.brokers.pop(name).instance] = clock.now_s()
        self.died_unexpectedly.extend(gone)
        return gone

    def serving_logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.serving.jsonl"))

    def client_journals(self) -> list[Path]:
        return [self._path(f"client-{i + 1}.jsonl") for i in range(self._settings.client_processes)]

    def _running(self) -> list[str]:
        return [*self.nodes, *self.clients, *self.brokers, *(f"{name}-agent" for name in self.brokers)]

    def _exit_codes(self, names: Sequence[str]) -> dict[str, int | None]:
        return {name: self._processes.find_exit_code(name) for name in names}

    def _close(self) -> None:
        """Stop the nodes gracefully, so that they write their records; kill everything else."""
        with contextlib.suppress(EmbeddedServerError):
            for name in self.nodes:
                self._processes.signal(name, signal.SIGTERM)
            for name in self.nodes:
                self._processes.stop(name)
        self._processes.close()
        self._zookeeper.stop()

    async def _start_client(self, index: int) -> None:
        name = f"client-{index + 1}"
        config = ClientConfig(
            index=index,
            processes=self._settings.client_processes,
            node_urls=self.node_urls,
            workload=self._settings.workload,
            hot_spot_file=self.hot_spot_file,
            journal_file=self._path(f"{name}.jsonl"),
            ready_file=self._path(f"{name}.ready"),
        )
        path = self._path(f"{name}.json")
        path.write_bytes(CLIENT_CONFIG.dump_json(config))
        await self._start(name, ["-m", "loadmanager.dev.demo.demo_client", str(path)], config.ready_file)
        self.clients.append(name)

    async def _start_loadmanager(self, name: str, command: str, configuration: Path) -> dict[str, Any]:
        ready_file = self._path(f"{name}.ready")
        options = ["--config", str(configuration), "--ready-file", str(ready_file)]
        return await self._start(name, [*_LOADMANAGER, command, *options], ready_file)

    async def _start(self, name: str, arguments: Sequence[str], ready_file: Path) -> dict[str, Any]:
        """Start a Python process and wait for its ready file."""
        log_file = self._path(f"{name}.log")
        command = [sys.executable, *arguments]
        await asyncio.to_thread(self._processes.start, name, command, cwd=_WORKING_FOLDER, log=log_file)
        deadline_s = clock.now_s() + _READY_TIMEOUT_S
        while (ready := find_json(ready_file)) is None:
            code = await asyncio.to_thread(self._processes.find_exit_code, name)
            if code is not None or clock.now_s() > deadline_s:
                what = f"is not ready after {_READY_TIMEOUT_S:g} s" if code is None else f"ended with exit code {code}"
                raise DemoError(f"{name} {what}; its log ends with:\n{_last_lines(log_file)}")
            await asyncio.sleep(_POLL_S)
        found: dict[str, Any] = ready
        return found

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _write(self, name: str, content: Mapping[str, object]) -> Path:
        """Write a configuration file. JSON is also YAML."""
        path = self._path(name)
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
        return path


def _home(folder: Path | None) -> Path:
    home = (folder or Path()).absolute()
    home.mkdir(parents=True, exist_ok=True)
    return home


def _last_lines(log_file: Path) -> str:
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:])
