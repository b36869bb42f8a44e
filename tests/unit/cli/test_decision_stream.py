from __future__ import annotations

import json
from typing import Any

import pytest
from support.command_line import run_admin
from support.recording_node import RecordingNode
from support.servers import closed_port

from loadmanager.cli.admin import decision_commands

LIVE, DECISIONS = "/loadbalance/v1/live", "/loadbalance/v1/decisions"
BUNDLE = "t/ns/0x00000000_0x80000000"
FORBIDDEN = (403, b'{"reason":"no more"}')


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_commands, "_AGAIN_S", 0.0)


def entry(epoch: int, sequence: int, **others: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of an entry
    at = 1000 * (10 * epoch + sequence)
    return {
        "sequence": sequence,
        "at": at,
        "epoch": epoch,
        "kind": "unload",
        "subject": BUNDLE,
        "reason": "admin_unload",
        "acted": True,
        "sentence": f"Because of {epoch}.{sequence}",
        "why": {},
        "source": "b1:8080",
        "destination": "b2:8080",
        "effect": None,
        "times": 1,
        "lastAt": at,
        **others,
    }


def effect(measured: float | None) -> dict[str, Any]:
    after = None if measured is None else {"imbalanceBefore": 2.0, "imbalanceAfter": measured}
    return {"predicted": {"imbalanceBefore": 2.0, "imbalanceAfter": 1.5}, "measured": after}


def listed(*entries: dict[str, Any]) -> tuple[int, bytes]:
    """The answer with these, oldest first here."""
    return 200, json.dumps({"epoch": 1, "decisions": entries[::-1]}).encode()


def streamed(*entries: dict[str, Any]) -> tuple[int, bytes]:
    frames = [
        f"event: decision\nid: {each['epoch']}:{each['sequence']}\ndata: {json.dumps(each)}\n\n" for each in entries
    ]
    return 200, "".join(['event: fleet\ndata: {"at":1}\n\n', ": nothing new\n\n", *frames]).encode()


def followed(node: RecordingNode, options: str = "") -> list[tuple[int, int]]:
    """Epoch and sequence of what was shown until the node refused."""
    done = run_admin(f"decisions --follow --json {options}", node.url)
    assert done.exit_code == 1, done.output
    assert "403 Forbidden: no more" in done.stderr
    return [(each["epoch"], each["sequence"]) for each in map(json.loads, done.stdout.splitlines())]


def test_newest_decision_is_last_with_its_reason_and_effect(node: RecordingNode) -> None:
    refrained = entry(
        1, 2, acted=False, kind="shed", sentence="", reason="bundle_pinned", source=None, destination=None
    )
    node.status, node.body = listed(entry(1, 1, effect=effect(1.25)), refrained | {"times": 3})
    assert run_admin("decisions", node.url).stdout.splitlines() == [
        f"1970-01-01 00:00Z  unload  {BUNDLE}  b1:8080 -> b2:8080",
        "  Because of 1.1",
        "  imbalance 2, predicted 1.5, measured 1.25",
        f"1970-01-01 00:00Z  shed  {BUNDLE}  (3 times, last 1970-01-01 00:00Z)",
        "  bundle pinned",
    ]


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ("--limit 5 --bundle b", "limit=5&subject=b"),
        ("--broker b1:8080 --kind unload,shed", "limit=20&subject=b1%3A8080&kind=unload%2Cshed"),
        ("--since 1000 --until 1970-01-01T00:01", "limit=20&since=1000&until=60000"),
    ],
)
def test_options_become_query_parameters(node: RecordingNode, options: str, query: str) -> None:
    assert run_admin(f"decisions {options}", node.url).exit_code == 0
    assert node.asked == [("GET", f"{DECISIONS}?{query}", b"")]


@pytest.mark.parametrize("options", ["--bundle b --broker c", "--follow --until 5"])
def test_conflicting_options_are_wrong_usage(node: RecordingNode, options: str) -> None:
    assert (run_admin(f"decisions {options}", node.url).exit_code, node.asked) == (2, [])


def test_leader_change_loses_and_repeats_no_decision(node: RecordingNode) -> None:
    of_before, of_now, of_next = entry(1, 1), entry(1, 2), entry(2, 1)
    node.script[DECISIONS] = [listed(of_before, of_now), listed(of_now, of_next, entry(2, 2)), listed()]
    node.script[LIVE] = [streamed(of_now, entry(1, 3)), streamed(entry(2, 2), entry(2, 3)), FORBIDDEN]
    assert followed(node) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    asked = [
        headers["Last-Event-ID"] for (_, path, _), headers in zip(node.asked, node.headers, strict=True) if path == LIVE
    ]
    assert asked == [None, "1:3", "2:3"]
    assert node.asked[3][1] == f"{DECISIONS}?limit=20&since=13000", "what was decided since the last that was shown"


def test_move_is_shown_again_once_measured(node: RecordingNode) -> None:
    began, measured = entry(1, 1, effect=effect(None)), entry(1, 1, effect=effect(1.25))
    node.script[DECISIONS] = [listed(began)]
    node.script[LIVE] = [streamed(began, measured, measured), FORBIDDEN]
    assert followed(node) == [(1, 1), (1, 1)]


def test_filtered_decisions_are_not_shown(node: RecordingNode) -> None:
    node.script[DECISIONS] = [listed()]
    others = [entry(1, 1, kind="assign"), entry(1, 2, source="b9:8080"), entry(1, 3, source=None, destination=None)]
    node.script[LIVE] = [streamed(*others, entry(1, 4)), FORBIDDEN]
    assert followed(node, "--kind unload --broker b1:8080") == [(1, 4)]


def test_temporary_errors_are_retried_and_reported_once(node: RecordingNode) -> None:
    nobody = (503, b'{"reason":"no node leads at the moment"}')
    node.script[DECISIONS] = [listed(entry(1, 1)), nobody, listed()]
    node.script[LIVE] = [streamed(), nobody, streamed(), streamed(entry(2, 1)), FORBIDDEN]
    done = run_admin("decisions -f", node.url)
    assert done.stderr.splitlines() == [
        "loadmanager: 503 Service Unavailable: no node leads at the moment; asking again",
        "loadmanager: following again",
        "loadmanager: 403 Forbidden: no more; docs/security.md says who may do what",
    ]
    assert [line.split()[0] for line in done.stdout.splitlines()[::2]] == ["00:00:11Z", "00:00:21Z"]


def test_unreachable_node_ends_follow_at_the_start() -> None:
    done = run_admin("decisions -f", f"http://127.0.0.1:{closed_port()}")
    assert done.exit_code == 3
    assert "--url or LOADMANAGER_ADMIN_URL says where nodes answer" in done.stderr
