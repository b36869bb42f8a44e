"""Every command in docs/admin-cli.md works as it is written there, one after the other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.background import a_cluster_in_another_thread
from support.nodes import Cluster
from typer.testing import CliRunner

from loadmanager.cli.admin_command import admin

TEXT = (Path(__file__).parents[2] / "docs" / "admin-cli.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^\$ loadmanager admin (.+?)(?:  # ends with (\d))?$", re.MULTILINE)
ROW = re.compile(r"^\|([^|]*)\|(.*)\|$", re.MULTILINE)
NAME = re.compile(r"`([a-z-]+)`")


async def _prepare(cluster: Cluster) -> None:
    await cluster.start_leader()
    await cluster.a_broker("b1:8080")
    await cluster.a_broker("b2:8080")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with a_cluster_in_another_thread(_prepare) as cluster:
        yield cluster


def test_documented_commands_end_as_shown(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    url = cluster.nodes[0].node.service_url
    runner = CliRunner(env={"LOADMANAGER_ADMIN_URL": url, "NO_COLOR": "1", "TERM": "dumb"})
    commands = COMMAND.findall(TEXT)
    assert len(commands) > 30
    for line, code in commands:
        done = runner.invoke(admin, shlex.split(line))
        assert done.exit_code == int(code or 0), (line, done.output)


def test_table_of_commands_is_complete() -> None:
    section = TEXT.partition("## The commands")[2].partition("## ")[0]
    documented = {
        ("".join(NAME.findall(group)), name) for group, names in ROW.findall(section) for name in NAME.findall(names)
    }
    existing = {("", each.name or "") for each in admin.registered_commands}
    for group in admin.registered_groups:
        assert group.typer_instance is not None
        existing |= {(group.name or "", each.name or "") for each in group.typer_instance.registered_commands}
    assert documented == existing
