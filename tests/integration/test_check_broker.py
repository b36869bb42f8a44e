"""`loadmanager check-broker` with real processes: the demo's broker and the examples keep the contract."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadmanager.broker.conformance.rules import RULES
from loadmanager.dev.embedded.server_files import free_ports

CHECKOUT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "loadmanager", "check-broker"]
NAMES = [rule.name for rule in RULES]
KEPT, NOT_THERE = "kept", "does not apply"

pytestmark = pytest.mark.deep


async def verdicts(*arguments: str) -> Mapping[str, str]:
    """By the name of the rule; of a broken one with what showed it."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        "--json",
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return {
        each["rule"]: each["verdict"] if each["verdict"] in (KEPT, NOT_THERE) else f"{each['verdict']}: {each['why']}"
        for each in json.loads(output)["rules"]
    }


async def of_the_demo(folder: Path) -> Mapping[str, str]:
    agent, port, data_port = free_ports(3)
    (folder / "agent").write_text(json.dumps({"url": f"http://127.0.0.1:{agent}"}))
    return await verdicts(
        f"http://127.0.0.1:{port}",
        f"--agent-port={agent}",
        f"--start={sys.executable} -m loadmanager.dev.demo.demo_broker --port {port} --data-port {data_port}"
        f" --agent-file {folder}/agent --serving-log {folder}/serving --ready-file {folder}/ready",
        f"--probe=http://127.0.0.1:{data_port}/publish?topic={{topic}}&messages=1",
        "--skip=unload-hangs",
    )


async def of_counter(program: str, folder: Path) -> Mapping[str, str]:
    port, clients = free_ports(2)
    return await verdicts(
        f"http://127.0.0.1:{port}",
        f"--start={program} --agent {{agent}} --port {port} --clients {clients} --folder {folder}",
        f"--probe=http://127.0.0.1:{clients}/count?topic={{topic}}",
        "--skip=unload-hangs",
    )


async def of_the_chat() -> Mapping[str, str]:
    port, clients = free_ports(2)
    return await verdicts(
        f"http://127.0.0.1:{port}",
        f"--start={sys.executable} examples/chat/server.py --agent {{agent}} --broker-port {port} --port {clients}",
        f"--probe=ws://127.0.0.1:{clients}/chat?topic={{topic}}",
        "--skip=unload-hangs",
    )


def all_kept(*left_out: str) -> Mapping[str, str]:
    return {name: NOT_THERE if name in left_out else KEPT for name in NAMES if name != "unload-hangs"}


async def test_demo_broker_and_python_examples_keep_the_contract(tmp_path: Path) -> None:
    """All at once: most of a check is waiting."""
    counter = f"{sys.executable} examples/counter/broker.py"
    demo, counted, chat = await asyncio.gather(of_the_demo(tmp_path), of_counter(counter, tmp_path), of_the_chat())
    assert demo == all_kept()
    assert counted == all_kept()
    assert chat == all_kept()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node: this example is in JavaScript")
async def test_javascript_example_keeps_the_contract(tmp_path: Path) -> None:
    assert await of_counter("node examples/counter/broker.js", tmp_path) == all_kept("prepare")
