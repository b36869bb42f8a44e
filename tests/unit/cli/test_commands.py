"""The command line as it is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.cli import COMMANDS
from loadmanager.cli.running import write_ready_file

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}
    command = [sys.executable, "-m", "loadmanager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_refused_with_exit_code_2() -> None:
    done = run("server")
    assert done.returncode == 2
    assert "No such command 'server'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("process", "file"), [("serve", "loadmanager.yaml"), ("agent", "agent.yaml")])
def test_the_configuration_files_in_the_repository_are_those_that_the_command_prints(process: str, file: str) -> None:
    done = run("config", process)
    assert done.returncode == 0
    assert done.stdout == (ROOT / "config" / file).read_text(encoding="utf-8")


def test_a_configuration_that_cannot_be_used_ends_serve_with_exit_code_2_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text("webServicPort: 1\n", encoding="utf-8")
    done = run("serve", "--config", str(path))
    assert done.returncode == 2
    assert done.stderr == f"loadmanager: {path}: unknown key 'webServicPort'; did you mean 'webServicePort'?\n"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("zk:", "expected host:port"), ("zk:h:port", "expected host:port"), ("zk:h:2181/a//b", "chroot")],
)
def test_a_metadata_store_url_that_is_none_ends_serve_with_exit_code_2(
    tmp_path: Path, url: str, complaint: str
) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text(f"metadataStoreUrl: '{url}'\nwebServicePort: 0\n", encoding="utf-8")
    done = run("serve", "--config", str(path))
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"loadmanager: metadataStoreUrl {url}: ")
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_the_ready_file_appears_whole(tmp_path: Path) -> None:
    write_ready_file(tmp_path / "ready.json", "http://h:1")
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
    assert (tmp_path / "ready.json").read_text() == f'{{"url":"http://h:1","pid":{os.getpid()}}}'
