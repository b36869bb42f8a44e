from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.command_line import run_admin
from support.recording_node import RecordingNode
from typer.testing import Result

from loadmanager.cli.admin import drain_commands
from loadmanager.wire.plan_bodies import BlockedBundle, DrainProgress

BROKERS = "/admin/v2/brokers"
OVER = (404, b'{"reason":"it is not being drained"}')


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_commands, "_LOOK_S", 0.0)
    monkeypatch.setattr(drain_commands, "_SAY_S", 0.0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Names of the brokers that were restarted."""
    return tmp_path / "restarted"


def run(node: RecordingNode, log: Path, options: str = "") -> Result:
    node.script[BROKERS] = [(200, json.dumps(["b2:8080", "b1:8080"]).encode())]
    command = f"sh -c 'echo {{broker}} {{host}} >> {log}'"
    return run_admin(f'brokers rolling-restart --run "{command}" {options}', node.url)


def drain(broker: str) -> str:
    return f"/loadbalance/v1/brokers/{broker}/drain"


def progress(state: str, left: int = 0, blocked: tuple[BlockedBundle, ...] = ()) -> tuple[int, bytes]:
    fields = {"failed": 0, "rate_per_s": 0.0, "eta_s": None, "since": 1, "moved": 0}
    body = {"broker": "b1:8080", "state": state, "bundles_left": left, "blocked": list(blocked), **fields}
    return 200, DrainProgress.model_validate(body).model_dump_json(by_alias=True).encode()


def a_restart() -> list[tuple[int, bytes]]:
    """The answers on a broker that is drained, restarted and refilled."""
    why = BlockedBundle(bundle="t/ns/0x00000000_0x80000000", why="it rests")
    states = progress("draining", 2), progress("done"), progress("done"), progress("returning", 2, (why,))
    return [OVER, *states, OVER]


def test_brokers_are_drained_restarted_and_refilled_in_order(node: RecordingNode, log: Path) -> None:
    node.script |= {drain(broker): a_restart() for broker in ("b1:8080", "b2:8080")}
    done = run(node, log)
    assert done.exit_code == 0, done.stderr
    assert log.read_text().splitlines() == ["b1:8080 b1", "b2:8080 b2"]
    assert [(method, path) for method, path, _ in node.asked if method != "GET"] == [
        ("PUT", f"{drain(broker)}?andReturn=true") for broker in ("b1:8080", "b2:8080")
    ]
    assert "b1:8080 gets its bundles back: 2 left; t/ns/0x00000000_0x80000000: it rests" in done.stderr
    assert done.stdout.splitlines() == [
        f"{number} of 2: b{number}:8080 is restarted and has its bundles again after 0 s" for number in (1, 2)
    ]


def test_plan_option_changes_nothing(node: RecordingNode, log: Path) -> None:
    done = run(node, log, "--plan")
    assert done.stdout.splitlines()[0] == f"1 of 2: b1:8080: sh -c 'echo b1:8080 b1 >> {log}'"
    assert [method for method, _, _ in node.asked] == ["GET"]


def test_interrupted_restart_can_be_continued(node: RecordingNode, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    node.script[drain("b2:8080")] = a_restart()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", interrupt)
        done = run(node, log, "--from b2:8080")
    assert done.exit_code == 130
    assert (
        "stopped at b2:8080: interrupted\nto go on: loadmanager admin brokers rolling-restart --from b2" in done.stderr
    )
    assert "to give up: loadmanager admin brokers stop-drain b2:8080" in done.stderr
    node.script[drain("b2:8080")] = [progress("returning", 1), OVER]
    done = run(node, log, "--from b2:8080")
    assert (done.exit_code, log.exists()) == (0, False), "it has been restarted already"


def test_failed_restart_command_stops(node: RecordingNode, log: Path) -> None:
    node.script[drain("b1:8080")] = a_restart()
    node.script[BROKERS] = [(200, b'["b1:8080"]')]
    done = run_admin("brokers rolling-restart --run false", node.url)
    assert done.exit_code == 1
    assert "stopped at b1:8080: Command '['false']' returned non-zero exit status 1." in done.stderr
    assert not log.exists()


def test_unknown_broker_is_named(node: RecordingNode, log: Path) -> None:
    done = run(node, log, "--from b9:8080")
    assert done.exit_code == 1
    assert "--from: b9:8080 is not registered; known: b1:8080, b2:8080" in done.stderr


def test_error_answer_stops(node: RecordingNode, log: Path) -> None:
    node.script[drain("b1:8080")] = [(403, b'{"reason":"no role"}')]
    assert "403 Forbidden: no role" in run(node, log).stderr
    node.script[drain("b1:8080")] = [OVER, progress("done"), (403, b'{"reason":"no role"}')]
    assert "403 Forbidden: no role" in run(node, log).stderr
