from __future__ import annotations

import json
from typing import Any

import pytest
from support.command_line import run_admin
from support.recording_node import RecordingNode
from typer.testing import Result

from loadmanager.cli.admin import drain_commands
from loadmanager.wire.plan_bodies import BlockedBundle, DrainProgress

DRAIN = "/loadbalance/v1/brokers/b1:8080/drain"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_commands, "_LOOK_S", 0.0)
    monkeypatch.setattr(drain_commands, "_SAY_S", 0.0)


def run(node: RecordingNode, options: str = "--wait") -> Result:
    return run_admin(f"brokers drain b1:8080 {options}", node.url)


def progress(left: int, moved: int = 0, **others: Any) -> tuple[int, bytes]:  # noqa: ANN401 - fields of it
    fields: dict[str, Any] = {
        "state": "draining" if left else "done",
        "failed": 0,
        "rate_per_s": 2.0,
        "eta_s": left // 2,
        "blocked": [],
    }
    of_it = DrainProgress(broker="b1:8080", since=1, bundles_left=left, moved=moved, **(fields | others))
    return 200, of_it.model_dump_json(by_alias=True).encode()


def test_wait_shows_estimates_until_the_broker_is_empty(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(9, eta_s=None), progress(6, 3, failed=1), progress(0, 9)]
    done = run(node)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "b1:8080 is being drained: 9 bundles left, 0 moved",
        "b1:8080 is being drained: 6 bundles left, 3 moved, 1 not let go, about 3 s to go at 2/s",
    ]
    assert done.stdout == "b1:8080 is drained: 9 bundles moved in 0 s; it can be stopped\n"
    assert [method for method, _, _ in node.asked] == ["PUT", "GET", "GET"]


def test_json_wait_prints_the_last_progress(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(1), progress(0, 1)]
    assert json.loads(run(node, "--wait --json").stdout)["state"] == "done"


def test_drain_without_wait_is_started_and_shown(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(9)]
    done = run(node, "")
    assert done.exit_code == 0
    assert done.stdout.startswith("b1:8080 is being drained: 9 bundles left, 0 moved, about 4 s to go at 2/s (begun ")
    assert [method for method, _, _ in node.asked] == ["PUT"]


def test_drain_can_return_the_bundles(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(9), progress(3, state="returning", eta_s=None)]
    assert run(node, "--and-return").exit_code == 0
    assert node.asked[0][1] == f"{DRAIN}?andReturn=true"
    shown = run_admin("brokers drain-status b1:8080", node.url).stdout
    assert shown.startswith("b1:8080 gets its bundles back: 3 left (begun ")


def test_blocked_drain_ends_with_5_and_the_reasons(node: RecordingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_commands, "_BLOCKED_S", 0.0)
    why = [BlockedBundle(bundle="t/ns/0x00000000_0x80000000", why="it is pinned")]
    node.script[DRAIN] = [progress(3), progress(3, state="blocked", eta_s=None, blocked=why)]
    done = run(node)
    assert done.exit_code == 5
    assert done.stderr.splitlines()[-3:] == [
        "loadmanager: b1:8080 is blocked: 3 bundles left, 0 moved",
        "  t/ns/0x00000000_0x80000000: it is pinned",
        "  and 2 more",
    ]


def test_drain_beyond_its_time_limit_ends_with_4(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(3)]
    done = run(node, "--wait --at-most 0s")
    assert done.exit_code == 4
    assert done.stderr.endswith("3 bundles left, 0 moved, about 1 s to go at 2/s; it goes on\n")


def test_temporary_errors_are_retried(node: RecordingNode) -> None:
    nobody = (503, b'{"reason":"no node leads at the moment"}')
    node.script[DRAIN] = [progress(3), nobody, progress(0, 3)]
    done = run(node)
    assert done.exit_code == 0
    assert "503 Service Unavailable: no node leads at the moment; asking again" in done.stderr


def test_drain_stopped_by_another_client_ends_with_1(node: RecordingNode) -> None:
    node.script[DRAIN] = [progress(3), (404, b'{"reason":"broker b1:8080 is not being drained"}')]
    done = run(node)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith("404 Not Found: broker b1:8080 is not being drained\n")


def test_time_limit_without_wait_is_wrong_usage(node: RecordingNode) -> None:
    assert (run(node, "--at-most 5m").exit_code, node.asked) == (2, [])
