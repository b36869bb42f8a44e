"""A load-manager node for tests: as a real process, or inside the test's own event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from support.processes import Processes
from support.servers import end_app, listen, serve_app
from support.waiting import eventually, patience

from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.http.app import make_app
from loadmanager.leader.node import Node
from loadmanager.store.metadata_store import MetadataStore


class NodeProcess:
    """One `loadmanager serve` process: what it logs, and signals to it."""

    def __init__(self, name: str, folder: Path, processes: Processes, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.url = ""
        self.pid = 0
        self._ready_file = folder / f"{name}.ready.json"
        self._config = folder / f"{name}.yaml"
        self._log = folder / f"{name}.log"
        self._processes = processes
        local = {"bindAddress": "127.0.0.1", "advertisedAddress": "127.0.0.1", "webServicePort": 0}
        self._config.write_text(yaml.safe_dump({**local, **settings}))

    @property
    def node_id(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def is_running(self) -> bool:
        return self._processes.is_running(self.name)

    async def start(self) -> None:
        """Start the process and return once it answers."""
        arguments = ["serve", "--config", str(self._config), "--ready-file", str(self._ready_file), "--log-json"]
        self._ready_file.unlink(missing_ok=True)
        command = ["-m", "loadmanager", *arguments]
        self.pid = await asyncio.to_thread(self._processes.start, self.name, command, self._log)
        await eventually(lambda: self._ready_file.exists() or not self.is_running, f"{self.name} is ready")
        assert self.is_running, f"{self.name} ended at its start:\n{self.log_text()[-2000:]}"
        self.url = orjson.loads(self._ready_file.read_bytes())["url"]

    def kill(self) -> None:
        self._processes.signal(self.name, signal.SIGKILL)

    def terminate(self) -> None:
        self._processes.signal(self.name, signal.SIGTERM)

    def pause(self) -> None:
        self._processes.signal(self.name, signal.SIGSTOP)

    def resume(self) -> None:
        self._processes.signal(self.name, signal.SIGCONT)

    def log_text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name that the process has logged so far."""
        lines = [line for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(orjson.loads, lines) if event.get("event") == name]


@dataclass(slots=True)
class LocalNode:
    """A node that runs inside the test, with the HTTP interface it would have as a process."""

    node: Node
    url: str


@asynccontextmanager
async def a_local_node(store: MetadataStore, settings: Mapping[str, Any] | None = None) -> AsyncIterator[LocalNode]:
    """A started node on `store`, which the caller has started and closes."""
    listener = listen()
    port = listener.getsockname()[1]
    resolved = load_settings(Settings, None, settings)
    node = Node(resolved, store, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", seed=7)
    runner = await serve_app(make_app(node), listener)
    await node.start()
    try:
        yield LocalNode(node, node.service_url)
    finally:
        await node.stop()
        await end_app(runner)
    assert not node.failure.done(), f"a task of the node ended: {node.failure}"


async def get_json(http: aiohttp.ClientSession, url: str, timeout_s: float | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body; status 0 when there was no answer."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=timeout_s or patience())) as answer:
            return answer.status, await answer.json()
    except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError):
        return 0, {}
