"""`loadmanager admin status`: one screen, whatever is wrong, however large the fleet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support.command_line import run_admin
from support.recording_node import RecordingNode

from loadmanager.cli.admin import status_command
from loadmanager.cli.admin.status_command import draw
from loadmanager.wire.fleet_bodies import FleetBody

FLEET, DECISIONS = "/loadbalance/v1/fleet", "/loadbalance/v1/decisions"
BUNDLE = "t/ns/0x00000000_0x80000000"
NOON_MS = 43_200_000


def brokers(*used: float, state: str = "active") -> dict[str, Any]:
    """Columns of so many brokers; each uses its network that much, and half as much of its CPU."""
    return {
        "id": [f"b{number}:8080" for number in range(1, len(used) + 1)],
        "cpu": [each / 2 for each in used],
        **{name: [0.0] * len(used) for name in ("memory", "directMemory", "bandwidthOut")},
        "bandwidthIn": list(used),
        "highest": list(used),
        "msgRate": [1234.0] * len(used),
        "throughput": [3.5 * 2**20] * len(used),
        "bundles": [16] * len(used),
        "state": [state] * len(used),
        "reportedAt": [NOON_MS] * len(used),
    }


def seen(**others: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of it
    fleet: dict[str, Any] = {
        "at": NOON_MS,
        "node": "n2:8080",
        "leader": {"id": "n1:8080", "url": "http://n1:8080", "epoch": 7},
        "nodes": ["n1:8080", "n2:8080"],
        "openToAnyone": False,
        "availableNamespaces": [],
        "isWhole": True,
        "balancing": {"frozen": "", "dryRun": False, "breaker": None, "cannotMove": [], "limits": []},
        "drains": [],
        "brokers": brokers(20.0, 90.0),
        "mean": 55.0,
        "lowerBound": 52.0,
        "size": None,
        "capacity": 100.0,
        "bundles": 32,
        "unowned": 0,
        "unserved": [],
        "moving": [],
        "movingInAll": 0,
        "unplaceable": [],
        "faults": {},
        **others,
    }
    FleetBody.model_validate({name: each for name, each in fleet.items() if name != "lastMoves"})
    return {"lastMoves": [], **fleet}


MOVE = {
    "at": NOON_MS - 180_000,
    "kind": "unload",
    "subject": BUNDLE,
    "source": "b2:8080",
    "destination": "b1:8080",
    "reason": "hot_broker",
}


def test_quiet_fleet_is_a_few_lines_with_the_busiest_broker_first() -> None:
    assert draw(seen(lastMoves=[MOVE]), 80, 24) == [
        "2 brokers, 32 bundles; 12:00:00Z, by n2:8080",
        "leader     n1:8080, epoch 7; nodes n1:8080, n2:8080",
        "balancing  on",
        "",
        "b2:8080  █████████████│████████··   90 %  net in  1.23k/s, 3.5 MiB/s  16 bundles",
        "b1:8080  █████········│··········   20 %  net in  1.23k/s, 3.5 MiB/s  16 bundles",
        "mean 55 % (│); best possible 52 %",
        "",
        "last moves:",
        f"  3 min ago  {BUNDLE}  b2:8080 -> b1:8080  hot broker",
    ]


def test_needed_fleet_size_is_shown_with_its_reason() -> None:
    size = {"needed": 3, "sentence": "3 brokers carry the peak"}
    assert "size       3 brokers carry the peak" in draw(seen(size=size), 80, 24)


def test_lower_bound_above_the_current_usage_is_not_shown() -> None:
    assert draw(seen(lowerBound=90.1), 80, 24)[-1] == "mean 55 % (│)"


def test_limits_and_unplaceable_namespaces_are_shown() -> None:
    limits = [
        {"reason": "no_return", "sentence": "2 bundles wait", "until": NOON_MS + 240_000},
        {"reason": "rests", "sentence": "1 broker waits", "until": None},
    ]
    said = {"policy": "p", "namespaces": ["t/ns"], "count": 1, "sentence": "No broker may own t/ns"}
    told = draw(seen(balancing=seen()["balancing"] | {"limits": limits}, unplaceable=[said]), 120, 40)
    assert told[2:6] == [
        "balancing  limits keep bundles in place",
        "limit      2 bundles wait (no_return), until 12:04:00Z (in 4 min)",
        "limit      1 broker waits (rests)",
        "no broker  No broker may own t/ns",
    ]


def test_every_problem_is_shown() -> None:
    drain = {"broker": "b2:8080", "state": "draining", "since": 1, "bundlesLeft": 9, "moved": 1, "failed": 0}
    lines = draw(
        seen(
            openToAnyone=True,
            availableNamespaces=["t/a", "t/b"],
            isWhole=False,
            balancing={
                "frozen": "incident 4711",
                "dryRun": True,
                "breaker": {"stoppedS": 720, "bundles": 2},
                "cannotMove": [{"key": "loadBalancerX", "sentence": "Nothing can move because of loadBalancerX"}],
                "limits": [],
            },
            drains=[{**drain, "ratePerS": 3.0, "etaS": 3, "blocked": []}],
            brokers=brokers(50.0, 10.0, state="sick"),
            unowned=3,
            unserved=[{"broker": "b1:8080", "bundles": 16, "why": "it opens none", "remedy": "restart b1:8080"}],
            moving=[
                {"bundle": BUNDLE, "source": "b1:8080", "destination": None, "reason": "x", "since": NOON_MS - 9_000}
            ],
            movingInAll=4,
            faults={f"/loadbalance/{number}": "not JSON" for number in range(5)},
            lastMoves=[MOVE | {"kind": "unload_failed"}],
        ),
        120,
        40,
    )
    text = "\n".join(lines)
    for said in (
        "3 not yet assigned",
        "the leader does not answer",
        "frozen: incident 4711; dry run: nothing is moved; the breaker has stopped shedding for 12 min more;",
        "cannot move  Nothing can move because of loadBalancerX",
        f"moving       {BUNDLE} from b1:8080 to nobody yet, since 9 s ago, and 3 more",
        "fault        /loadbalance/0: not JSON",
        "unserved     16 bundles of b1:8080: it opens none; restart b1:8080",
        "available    topics of t/a, t/b may have two owners (availableNamespaces)",
        "open         to anyone: nobody is asked for a token",
        "and 2 more faults",
        "16 bundles  sick",
        "16 bundles  draining: 9 left, 3 s",
        "b1:8080  hot broker, failed",
    ):
        assert said in text


def test_missing_leader_and_brokers_are_stated() -> None:
    lines = draw(seen(leader=None, brokers=brokers(), mean=None, lowerBound=None), 80, 24)
    assert "no leader  none elected, or n2:8080 has no lease; nodes n1:8080, n2:8080" in lines
    assert "no brokers are registered" in lines


def test_brokers_in_trouble_and_the_busiest_are_shown_of_many() -> None:
    many = brokers(*(number / 10 for number in range(1000)))
    many["state"][3] = "unreadable"
    lines = draw(seen(brokers=many, lastMoves=[MOVE] * 3), 80, 24)
    assert len(lines) <= 23
    assert [line.split()[0] for line in lines[4:7]] == ["b4:8080", "b1000:8080", "b999:8080"]
    assert "no report" in lines[4]
    shown = sum("█" in line or "···" in line for line in lines)
    assert f"and {1000 - shown} more, used less" in lines


@given(st.lists(st.floats(0, 500), max_size=30), st.integers(72, 220), st.integers(16, 60))
def test_status_fits_the_screen(used: list[float], width: int, height: int) -> None:
    lines = draw(seen(brokers=brokers(*used)), width, height)
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width


def test_status_requests_fleet_and_last_moves(node: RecordingNode) -> None:
    node.script = {
        FLEET: [(200, json.dumps(seen()).encode())],
        DECISIONS: [(200, json.dumps({"decisions": [MOVE]}).encode())],
    }
    done = run_admin("status", node.url)
    assert done.exit_code == 0, done.output
    assert "last moves:" in done.stdout
    assert [path for _, path, _ in node.asked] == [FLEET, f"{DECISIONS}?limit=3&kind=unload%2Cunload_failed"]
    assert json.loads(run_admin("status --json", node.url).stdout)["lastMoves"] == [MOVE]


def test_last_moves_are_unknown_without_a_leader(node: RecordingNode) -> None:
    node.script = {FLEET: [(200, json.dumps(seen(leader=None)).encode())], DECISIONS: [(503, b'{"reason":"none"}')]}
    assert run_admin("status", node.url).exit_code == 0
    assert json.loads(run_admin("status --json", node.url).stdout)["lastMoves"] is None


def test_answer_of_another_version_is_shown(node: RecordingNode) -> None:
    fleet = {key: value for key, value in seen().items() if key != "brokers"}
    node.script = {FLEET: [(200, json.dumps(fleet).encode())], DECISIONS: [(503, b'{"reason":"none"}')]}
    done = run_admin("status", node.url)
    assert done.exit_code == 0
    assert "n2:8080" in done.stdout


def test_watch_continues_after_errors_until_forbidden(node: RecordingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "_AGAIN_S", 0.0)
    fleet, lost = (200, json.dumps(seen()).encode()), (503, b'{"reason":"no"}')
    node.script = {FLEET: [fleet, lost, fleet, (403, b'{"reason":"no more"}')], DECISIONS: [(503, b"")]}
    done = run_admin("status --watch", node.url)
    assert done.exit_code == 1
    assert done.stdout.count("balancing  on") == 2
    assert "503 Service Unavailable: no; what was seen last:" in done.stdout
    assert "403 Forbidden: no more" in done.stderr
