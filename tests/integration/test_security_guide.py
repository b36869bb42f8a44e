from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from support.nodes import Cluster, RunningNode

TOP = Path(__file__).parents[2]
PLACE = "/etc/loadmanager"
NODE = "http://localhost:8080"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the guide asks with curl")


def _blocks(kind: str) -> list[str]:
    _, section = (TOP / "docs/security.md").read_text().split("\n## Close a cluster in ten minutes\n")
    return re.findall(rf"```{kind}\n(.*?)```", section.split("\n## ")[0], re.DOTALL)


async def _type(folder: Path, commands: str, url: str = NODE) -> str:
    """Run the commands in the folder, all of which have to succeed; what they print."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(TOP),
        "LOADMANAGER_ADMIN_URL": url,
    }
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", commands.replace(NODE, url)),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await shell.communicate())[0].decode()
    assert shell.returncode == 0, said
    return said


async def test_guide_secures_a_cluster(tmp_path: Path) -> None:
    make, use = _blocks("sh")
    [configuration] = _blocks("yaml")
    await _type(tmp_path, make)
    keys = yaml.safe_load(configuration.replace(PLACE, str(tmp_path)))
    async with Cluster() as cluster:
        node: RunningNode = await cluster.start_leader(**keys)
        said = await _type(tmp_path, use, node.node.service_url)
    assert "0xffffffff" in said
    assert "403" in said
    assert "refused: app" in said
    assert "loadmanager_open_to_anyone" in said
    assert '{"partitions":0,' in said
