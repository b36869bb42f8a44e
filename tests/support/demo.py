"""The demo: a whole run of it, and its broker as a real process with a fake agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.waiting import eventually, patience

from loadmanager.dev.demo.evidence import read_journal
from loadmanager.testing import ControlledAgent, ControlPlane


@asynccontextmanager
async def a_controlled_agent() -> AsyncIterator[ControlledAgent]:
    async with ControlPlane() as plane:
        yield await plane.add_broker("127.0.0.1:1")


class BrokerProcess:
    """A running broker and the state it reported."""

    def __init__(
        self, process: asyncio.subprocess.Process, agent: ControlledAgent, ready: dict[str, Any], serving_log: Path
    ) -> None:
        self.process = process
        self.agent = agent
        self.url: str = ready["url"]
        self.data_url: str = ready["data_url"]
        self.instance: str = ready["instance"]
        self._serving_log = serving_log

    def serving_log(self, event: str) -> list[dict[str, Any]]:
        return [record for record in read_journal(self._serving_log) if record["event"] == event]

    async def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics by topic."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/loadmanager/v1/stats") as response:
            return {topic["topic"]: topic for topic in (await response.json())["topics"]}

    async def publish(self, topic: str, messages: int = 1) -> tuple[int, str]:
        """Status and text of the answer."""
        url = f"{self.data_url}/publish"
        params = {"topic": topic, "messages": str(messages)}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, params=params, data=b"x" * 10 * messages) as response,
        ):
            return response.status, await response.text()


@asynccontextmanager
async def a_broker(agent: ControlledAgent, folder: Path, name: str = "broker") -> AsyncIterator[BrokerProcess]:
    files = {option: folder / f"{name}-{option}.json" for option in ("agent-file", "serving-log", "ready-file")}
    files["agent-file"].write_text(json.dumps({"url": agent.url}))
    arguments = [word for option, path in files.items() for word in (f"--{option}", str(path))]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "loadmanager.dev.demo.demo_broker", *arguments)
    try:
        await eventually(files["ready-file"].exists)
        broker = BrokerProcess(process, agent, json.loads(files["ready-file"].read_text()), files["serving-log"])
        agent.broker_url, agent.client_url = broker.url, broker.data_url
        leases = agent.leases
        await eventually(lambda: agent.leases > leases, what="the broker asks for its lease")
        yield broker
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


_COMMAND = [sys.executable, "-c", "from loadmanager.cli import main; main()", "demo", "--json", "--duration", "30"]


@contextmanager
def running_demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Half a minute of it, with what it leaves in the folder."""
    with subprocess.Popen(
        [*_COMMAND, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class FinishedDemo:
    folder: Path
    code: int
    out: str
    err: str

    @property
    def history(self) -> Path:
        """History of a demo in which a leader and a broker were killed. Read-only."""
        (history,) = (self.folder / "demo-history").iterdir()
        return history


@pytest.fixture(scope="session")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> FinishedDemo:
    folder = tmp_path_factory.mktemp("demo")
    with running_demo(folder) as process:
        out, err = process.communicate(timeout=patience(120.0))
    return FinishedDemo(folder, process.returncode, out, err)
