"""`loadmanager check-broker` with real processes: the demo's broker and the example in JavaScript keep the contract."""

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

from loadmanager.check.rules import RULES
from loadmanager.embedded.ports import free_ports

CHECKOUT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "loadmanager", "check-broker"]
NAMES = [rule.name for rule in RULES]
KEPT, NOT_THERE = "kept", "does not apply"

pytestmark = pytest.mark.timeout(600)


async def verdicts(*arguments: str) -> Mapping[str, str]:
    """By the name of the rule; of a broken one with what showed it."""
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        "--json",
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found = json.loads(output)["rules"]
    return {
        each["rule"]: f"{each['verdict']} {each['why'] if each['verdict'] != NOT_THERE else ''}".strip()
        for each in found
    }


async def test_the_demos_broker_keeps_the_contract(tmp_path: Path) -> None:
    agent, port, data_port = free_ports(3)
    (tmp_path / "agent").write_text(json.dumps({"url": f"http://127.0.0.1:{agent}"}))
    client = f"{sys.executable} -m support.demo_client 127.0.0.1:{data_port}"
    found = await verdicts(
        f"http://127.0.0.1:{port}",
        f"--agent-port={agent}",
        f"--start={sys.executable} -m loadmanager.demo.broker --port {port} --data-port {data_port}"
        f" --agent-file {tmp_path}/agent --serving-log {tmp_path}/serving --ready-file {tmp_path}/ready",
        f"--probe={client}",
        f"--hang={client} {{topic}}",
        "--lease-ms=2000",
    )
    assert found == dict.fromkeys(NAMES, KEPT)


NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node: this example is in JavaScript")


@pytest.mark.parametrize(
    ("broker", "left_out"),
    [
        pytest.param("node examples/counter/broker.js", {"prepare"}, marks=NODE, id="js"),
        pytest.param(f"{sys.executable} examples/counter/broker.py", set(), id="python"),
    ],
)
async def test_the_examples_keep_the_contract(tmp_path: Path, broker: str, left_out: set[str]) -> None:
    port, clients = free_ports(2)
    found = await verdicts(
        f"http://127.0.0.1:{port}",
        f"--start={broker} --agent {{agent}} --port {port} --clients {clients} --folder {tmp_path}",
        f"--probe=http://127.0.0.1:{clients}/count?topic={{topic}}",
        "--skip=unload-hangs",
        "--lease-ms=2000",
    )
    assert found == {name: NOT_THERE if name in left_out else KEPT for name in NAMES if name != "unload-hangs"}
