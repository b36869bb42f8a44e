"""The chat of examples/chat, started as its page says, on a ZooKeeper that is there and on ports that are free."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.ports import free_ports

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: the page asks with it"),
]

TOP = Path(__file__).parents[2]
PORTS = ("8080", "9001", "6001", "7001", "8001", "9002", "6002", "7002", "8002")
PATIENT = {"LOADMANAGER_METADATASTORESESSIONTIMEOUTMILLIS": "60000"}


@dataclass
class Command:
    """One that the page names; what it says goes to files."""

    process: Process
    output: Path
    errors: Path

    @property
    def said(self) -> list[str]:
        return self.output.read_text(encoding="utf-8").splitlines()

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def rooms(self) -> list[str]:
        """At which servers somebody has been in the room, one after the other."""
        return [line.split()[-1] for line in self.said if line.startswith("* in the room")]


@dataclass
class Page:
    """The commands of the page, in a folder with a copy of what they are about; all end with it."""

    folder: Path
    ports: Mapping[str, str]
    commands: list[str]
    running: list[Command] = field(default_factory=list)

    async def start(self, beginning: str, settings: Mapping[str, str] | None = None, number: int = 0) -> Command:
        """The `number`-th of the page that begins so."""
        line = [each for each in self.commands if each.startswith(beginning)][number]
        own = {key: value for key, value in os.environ.items() if not key.startswith("LOADMANAGER_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**own, "PYTHONPATH": str(TOP), "PATH": path, "PYTHONUNBUFFERED": "1", **(settings or {})}
        output, errors = (self.folder / f"{len(self.running)}.{name}" for name in ("out", "err"))
        with output.open("w") as out, errors.open("w") as err:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(line), cwd=self.folder, env=environment, stdin=PIPE, stdout=out, stderr=err
            )
        command = Command(process, output, errors)
        self.running.append(command)
        return command

    async def run(self, beginning: str, settings: Mapping[str, str] | None = None) -> Command:
        command = await self.start(beginning, settings)
        await command.process.wait()
        return command

    async def end(self) -> None:
        for command in self.running:
            with contextlib.suppress(ProcessLookupError):
                command.process.kill()
            await command.process.wait()


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    chosen = re.compile("|".join(PORTS))
    folder = tmp_path / "examples" / "chat"
    shutil.copytree(TOP / "examples" / "chat", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.iterdir():
        path.write_text(chosen.sub(lambda port: ports[port[0]], path.read_text(encoding="utf-8")), encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    page = Page(tmp_path, ports, commands)
    try:
        yield page
    finally:
        await page.end()


async def test_a_chat_goes_on_while_its_room_moves(page: Page, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    store = {"LOADMANAGER_METADATASTOREURL": f"zk:{zookeeper.connect_string}{chroot}", **PATIENT}
    node_url = f"http://127.0.0.1:{page.ports['8080']}"
    node = {
        "LOADMANAGER_WEBSERVICEPORT": page.ports["8080"],
        "LOADMANAGER_BINDADDRESS": "127.0.0.1",
        "LOADMANAGER_LEADERSILENCEMS": "0",
        "LOADMANAGER_HISTORYURL": "",
    }
    await page.start("loadmanager serve", {**store, **node})
    servers = {}
    for number, port in enumerate((page.ports["6001"], page.ports["6002"])):
        servers[port] = await page.start("python examples/chat/server.py", number=number)

    def without_an_agent(server: Command) -> bool:
        return "no lease from the agent" in (said := server.errors.read_text()) and "cannot be reached" in said

    await eventually(lambda: all(map(without_an_agent, servers.values())))
    for number in range(2):
        await page.start("loadmanager agent", {**store, "LOADMANAGER_BROKERLEASEMS": "30000"}, number)

    async def has_namespace() -> bool:
        curl = await page.run("curl")
        return curl.process.returncode == 0 and not any("reason" in line for line in curl.said)

    await eventually(has_namespace)
    ann, bob = [await page.start("python examples/chat/talk.py", number=number) for number in range(2)]
    await eventually(lambda: ann.rooms() and bob.rooms())
    ann.type("hello, Bob")
    await eventually(lambda: "hello, Bob" in ann.said and "hello, Bob" in bob.said)

    first, other = ("1", "2") if ann.rooms()[-1].endswith(f":{page.ports['9001']}/chat") else ("2", "1")
    page.commands = [
        each.replace(f" 127.0.0.1:{page.ports['6001']} ", f" 127.0.0.1:{page.ports[f'600{first}']} ")
        for each in page.commands
    ]
    drain = await page.run("loadmanager admin brokers drain", {"LOADMANAGER_ADMIN_URL": node_url})
    assert drain.process.returncode == 0, drain.errors.read_text()
    elsewhere = f"ws://127.0.0.1:{page.ports[f'900{other}']}/chat"
    await eventually(lambda: ann.rooms()[-1] == bob.rooms()[-1] == elsewhere)
    bob.type("still there?")
    await eventually(lambda: "still there?" in ann.said and "still there?" in bob.said)

    for server in servers.values():
        server.process.terminate()
    assert [await server.process.wait() for server in servers.values()] == [0, 0]
    assert not any("Traceback" in server.errors.read_text() for server in servers.values())
