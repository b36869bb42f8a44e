from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.command_line import run as run_command
from support.nodes import settings
from support.recording_node import a_recording_node
from support.servers import closed_port
from support.waiting import patience

from loadmanager import __version__
from loadmanager.cli import COMMANDS, _application, main, service_runner
from loadmanager.cli.service_runner import ready, warn_if_open
from loadmanager.util.atomic_write import write_ready_file

ROOT = Path(__file__).parents[3]


DECIDE = ("decide", "-", "--place", "RoundRobinBrokerSelector", "--bundle", "t/n/0x0_0x10")


NAMED = "import sys; from loadmanager.cli import main; sys.argv[0] = 'loadmanager'; main()"
"""The command under its own name: `python -m` has another one, and shells ask for completions by it."""

A_TERMINAL = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=A_TERMINAL | environment)


@pytest.mark.parametrize("command", ["dump", "history", "simulate"])
def test_forked_help_equals_that_of_the_installed_command(command: str) -> None:
    installed = [str(Path(sys.executable).with_name("loadmanager")), command, "--help"]
    done = subprocess.run(installed, capture_output=True, text=True, env=os.environ | A_TERMINAL, check=False)
    forked = run(command, "--help")
    assert "Usage: loadmanager" in done.stdout
    assert (forked.returncode, forked.stdout, forked.stderr) == (done.returncode, done.stdout, done.stderr)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_unprintable_text_is_replaced(encoding: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with a_recording_node() as node:
        node.status, node.body = 200, '[{"brokerId": "b1:8080", "sentence": "überlastet 🙂"}]'.encode()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding))
        monkeypatch.setattr(
            "sys.argv", ["loadmanager", "admin", "broker-stats", "monitoring-metrics", "--url", node.url, *options]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
    lines = written.getvalue().decode(encoding)
    assert ended.value.code == 0
    if options:
        assert json.loads(lines) == json.loads(node.body)
    else:
        assert lines.splitlines()[:2] == ["brokerId", ("─" if encoding == "utf-8" else "-") * 8]


def test_version_is_shown() -> None:
    assert run("--version").stdout == f"loadmanager {__version__}\n"


def test_imported_modules_are_frozen_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["loadmanager", "--version"])
    frozen = gc.get_freeze_count()
    with pytest.raises(SystemExit):
        main()
    assert gc.get_freeze_count() > frozen
    assert gc.isenabled()


def test_bash_and_fish_completion_work() -> None:
    for_bash = {"_LOADMANAGER_COMPLETE": "complete_bash", "COMP_WORDS": "loadmanager de", "COMP_CWORD": "1"}
    assert run(**for_bash).stdout.split() == ["demo", "decide"]
    for_fish = {"_LOADMANAGER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run(**for_fish, _TYPER_COMPLETE_ARGS="loadmanager admin explain ")
    assert [completed.partition("\t")[0] for completed in done.stdout.splitlines()] == ["bundle", "broker", "why-not"]


SLOW = ("aiohttp", "asyncio", "loadmanager.wire.validation", "numpy", "pyarrow", "pydantic_settings", "yaml")
"""Modules that take long to import, and that no request needs."""


def test_admin_command_imports_no_slow_modules() -> None:
    line = ["loadmanager", "admin", "status", "--url", f"http://127.0.0.1:{closed_port()}"]
    looking = f"print([name for name in {SLOW} if name in sys.modules])"
    code = (
        f"import atexit, sys\nfrom loadmanager.cli import main\natexit.register(lambda: {looking})\nsys.argv = {line}"
    )
    code += "\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "[]\n")


def test_only_the_typed_command_of_a_group_is_prepared() -> None:
    def prepared(*words: str) -> tuple[int, int]:
        """Return the numbers of commands and groups of `admin`."""
        (added,) = [each for each in _application(["admin", *words]).registered_groups if each.name == "admin"]
        group = added.typer_instance
        assert group is not None
        return len(group.registered_commands), len(group.registered_groups)

    everything = prepared()
    assert min(everything) > 3
    assert prepared("status", "--json") == (1, 0)
    assert prepared("brokers", "list") == (0, 1)
    assert prepared("--help") == prepared("no-command") == everything


def test_completion_imports_no_slow_modules() -> None:
    looking = f"print([name for name in {SLOW} if name in sys.modules])"
    code = f"import atexit\n{NAMED.replace('main()', '')}\natexit.register(lambda: {looking})\nmain()"
    line = {"_LOADMANAGER_COMPLETE": "complete_bash", "COMP_WORDS": "loadmanager a", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | line,
        check=True,
    )
    assert done.stdout.split() == ["agent", "admin", "[]"]


def test_unknown_command_ends_with_2() -> None:
    done = run("server")
    assert done.returncode == 2
    assert "No such command 'server'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("process", "file"), [("serve", "loadmanager.yaml"), ("agent", "agent.yaml"), ("pulsar", "pulsar.yaml")]
)
def test_configuration_files_equal_the_printed_ones(process: str, file: str) -> None:
    done = run("config", process)
    assert done.returncode == 0
    assert done.stdout == (ROOT / "config" / file).read_text(encoding="utf-8")


def test_invalid_configuration_ends_serve_with_2_and_one_line(tmp_path: Path) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text("webServicPort: 1\n", encoding="utf-8")
    done = run("serve", "--config", str(path))
    assert done.returncode == 2
    assert done.stderr == f"loadmanager: {path}: unknown key 'webServicPort'; did you mean 'webServicePort'?\n"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("zk:", "expected host:port"), ("zk:h:port", "expected host:port"), ("zk:h:2181/a//b", "chroot")],
)
def test_bad_metadata_store_url_ends_serve_with_exit_code_2(tmp_path: Path, url: str, complaint: str) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text(f"metadataStoreUrl: '{url}'\nwebServicePort: 0\n", encoding="utf-8")
    done = run("serve", "--config", str(path))
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"loadmanager: metadataStoreUrl {url}: ")
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_ready_file_is_written_atomically(tmp_path: Path) -> None:
    write_ready_file(tmp_path / "ready.json", {"url": "http://h:1"})
    assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
    assert (tmp_path / "ready.json").read_text() == f'{{"url":"http://h:1","pid":{os.getpid()}}}'


async def test_ready_process_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unheard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: unheard.append(number))
    monkeypatch.setattr(service_runner, "write_ready_file", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with capture_logs() as logs:
            stop = ready("serving", settings(), tmp_path / "ready.json", {"url": "http://h:1"})
        async with asyncio.timeout(patience()):
            await stop.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
    assert (logs[0]["event"], unheard) == ("serving", [])


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_output_is_utf_8_on_any_terminal(form: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "loadmanager", *DECIDE, *form]
    line = '{"brokers": {"é:1": {}}}'.encode()
    done = subprocess.run(command, input=line, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "é:1" in done.stdout.decode("utf-8")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_unwritable_output_ends_with_1_and_one_line(form: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "loadmanager", *DECIDE, *form]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, input=b"{}", stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"loadmanager: standard output: No space left on device\n")


def test_closed_output_is_no_error() -> None:
    command = [sys.executable, "-m", "loadmanager", *DECIDE, "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"{}\n" * 200)
        process.stdin.close()
        said = process.stderr.read()
        assert (process.wait(timeout=patience()), said) == (0, b"")


def test_closed_standard_input_ends_with_2() -> None:
    command = [sys.executable, "-m", "loadmanager", *DECIDE]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "loadmanager: -: standard input is closed\n"


def test_invalid_token_key_ends_serve_with_2(tmp_path: Path) -> None:
    key, path = tmp_path / "secret.key", tmp_path / "loadmanager.yaml"
    key.write_bytes(b"too short to be a secret")
    path.write_text(f"authenticationEnabled: true\ntokenSecretKey: file://{key}\n", encoding="utf-8")
    done = run("serve", "--config", str(path))
    assert done.returncode == 2, done
    assert done.stderr == f"loadmanager: tokenSecretKey {key}: a secret of 24 bytes; expected 32 or more\n"


@pytest.mark.parametrize(
    ("keys", "address", "warns"),
    [
        ({}, "0.0.0.0", True),
        ({}, "10.0.0.1", True),
        ({}, "a-host", True),
        ({}, "127.0.0.1", False),
        ({}, "::1", False),
        ({}, "localhost", False),
        ({"authentication_enabled": True}, "0.0.0.0", False),
    ],
)
def test_open_listener_on_other_hosts_is_warned_about(keys: dict[str, Any], address: str, warns: bool) -> None:  # noqa: FBT001 - of the table
    with capture_logs() as logs:
        warn_if_open(settings(**keys), address)
    assert [entry["event"] for entry in logs] == ["open_to_anyone"] * warns
