"""`loadmanager admin why` and `audit`: what became of a bundle, and who changed what."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from support.command_line import run_admin
from support.recorded import NOON_MS, a_writer
from support.recording_node import RecordingNode
from support.waiting import patience

from loadmanager.history.entry_rows import MoveRow
from loadmanager.history.files import Directory
from loadmanager.wire.lineage_bodies import BundleLineage, LineageEntry

BUNDLE, PARENT = "t/ns/0x00000000_0x40000000", "t/ns/0x00000000_0x80000000"
LIFE = f"/loadbalance/v1/history/bundle/{BUNDLE}"


def entry(kind: str, sentence: str, bundle: str | None = BUNDLE, **others: Any) -> LineageEntry:  # noqa: ANN401 - fields
    at = {"at": NOON_MS, "last_at": NOON_MS, "epoch": 1, "sequence": 1}
    return LineageEntry(kind=kind, sentence=sentence, bundle=bundle, **(at | others))


def life(*entries: LineageEntry, omitted: int = 0) -> bytes:
    told = BundleLineage(
        bundle=BUNDLE, since=NOON_MS - 3_600_000, until=NOON_MS + 1, omitted=omitted, entries=[*entries]
    )
    return told.model_dump_json(by_alias=True).encode()


def test_lineage_starts_with_a_summary_and_ends_with_the_newest_entry(node: RecordingNode) -> None:
    way = {"source": "b1:8080", "destination": "b2:8080"}
    node.status, node.body = (
        200,
        life(
            entry("leader", "n1:8080 leads, epoch 1", None),
            entry("shed", "No move because it is pinned", PARENT, acted=False, times=3),
            entry("move", "moved in 16 ms", **way),
            omitted=2,
        ),
    )
    done = run_admin(f"why {BUNDLE}", node.url)
    when = "12:00:00Z (2026-09-21 12:00Z)"
    assert done.stdout.splitlines() == [
        f"{BUNDLE} moved once since 2026-09-21 11:00Z; it went to b2:8080 2026-09-21 12:00Z.",
        "(2 older entries are left out: --limit, or a later --since)",
        f"{when}  leader",
        "  n1:8080 leads, epoch 1",
        f"{when}  shed  as {PARENT}  (3 times, last 12:00:00Z)",
        "  No move because it is pinned",
        f"{when}  move  b1:8080 -> b2:8080",
        "  moved in 16 ms",
    ]


def test_unreachable_nodes_are_named(node: RecordingNode) -> None:
    node.status, node.body = 200, life().replace(b'"unheard":[]', b'"unheard":["n2:8080","n3:8080"]')
    told = run_admin(f"why {BUNDLE}", node.url).stdout.splitlines()
    assert told[1:] == ["(n2:8080, n3:8080 did not answer: what only they recorded is missing)"]


def test_times_are_sent_in_milliseconds(node: RecordingNode) -> None:
    node.status, node.body = 200, life()
    before = round(time.time() * 1000)
    done = run_admin(f"why {BUNDLE} --since 12h --until 5000 --limit 7", node.url)
    assert done.stdout == f"Nothing is recorded of {BUNDLE} since 2026-09-21 11:00Z.\n"
    ((method, path, _),) = node.asked
    query = dict(pair.split("=") for pair in path.partition("?")[2].split("&"))
    assert (method, path.partition("?")[0], query["until"], query["limit"]) == ("GET", LIFE, "5000", "7")
    assert 0 <= int(query["since"]) - (before - 43_200_000) < 60_000


def test_missing_history_shows_the_remedy_of_the_node(node: RecordingNode) -> None:
    node.status, node.body = 404, b'{"reason":"nothing is recorded: historyUrl is not set"}'
    done = run_admin(f"why {BUNDLE}", node.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "historyUrl is not set" in done.stderr


def test_history_option_reads_files_without_a_node(node: RecordingNode, tmp_path: Path) -> None:
    with a_writer(Directory.of(str(tmp_path / "history"))) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS + 1000, MoveRow("began", BUNDLE, "b1:8080", "b2:8080", "admin_unload"))
        writer.end_term(NOON_MS + 2000)
        assert writer.flush(patience())
    done = run_admin(f"why {BUNDLE} --since 2026-01-01 --json --history {tmp_path / 'history'}", node.url)
    assert done.exit_code == 0, done.stderr
    assert [each["kind"] for each in json.loads(done.stdout)["entries"]] == ["move"]
    assert node.asked == []


def test_missing_history_directory_is_rejected(node: RecordingNode, tmp_path: Path) -> None:
    done = run_admin(f"why {BUNDLE} --history {tmp_path / 'nothing'}", node.url)
    assert done.exit_code == 1
    assert done.stderr == f"loadmanager: --history {tmp_path / 'nothing'}: no such directory\n"


def test_audit_lists_changes_newest_last(node: RecordingNode) -> None:
    freeze = {"at": NOON_MS, "who": "ann", "from": "10.0.0.1", "operation": "PUT /loadbalance/v1/freeze"}
    freeze |= {"path": "/loadbalance/v1/freeze", "status": 204, "before": None, "after": {"frozen": "night"}}
    refused = freeze | {"who": "bob", "status": 403, "after": None}
    node.status, node.body = 200, json.dumps({"entries": [refused, freeze]}).encode()
    when = "12:00:00Z (2026-09-21 12:00Z)"
    assert run_admin("audit --limit 5", node.url).stdout.splitlines() == [
        f"{when}  ann from 10.0.0.1  PUT /loadbalance/v1/freeze  204",
        '  nothing -> {"frozen":"night"}',
        f"{when}  bob from 10.0.0.1  PUT /loadbalance/v1/freeze  403",
    ]
    assert node.asked == [("GET", "/loadbalance/v1/audit?limit=5", b"")]
    node.body = b'{"entries":[]}'
    assert run_admin("audit", node.url).stdout == "nobody has changed anything\n"
