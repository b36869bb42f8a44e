from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.recorded import NOON_MS, a_writer, abandon, put_file
from support.waiting import patience

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.plan import Verdict
from loadmanager.errors import HistoryFileError
from loadmanager.history.bundle_lineage import read_lineage
from loadmanager.history.entry_rows import Decision, Entry, HistoryEvent, MoveRow, OperationRow
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import MOVES
from loadmanager.wire.lineage_bodies import BundleLineage

PARENT, LOWER, UPPER = (
    f"t/ns/{each}" for each in ("0x00000000_0x80000000", "0x00000000_0x40000000", "0x40000000_0x80000000")
)
ELSEWHERE = "t/ns/0x80000000_0xffffffff"
B1, B2, B3 = "b1:8080", "b2:8080", "b3:8080"


def decision(kind: str, steps: Sequence[dict[str, Any]] = (), *verdicts: Verdict) -> Decision:
    return Decision(kind, 1, "", 1.0, steps, verdicts)


def step(kind: str, bundle: str, source: str | None, destination: str | None, reason: str) -> dict[str, Any]:
    return {"kind": kind, "bundle": bundle, "source": source, "destination": destination, "reason": reason}


def verdict(subject: str, reason: str, *, acted: bool, **why: Any) -> Verdict:  # noqa: ANN401 - figures
    return Verdict(subject, reason_of(reason), acted=acted, why=why)


def operation(path: str, after: dict[str, Any] | None = None) -> OperationRow:
    return OperationRow("n1", "ann", "10.0.0.1", f"PUT {path}", "id", path, 204, None, after)


def write(root: Path, epoch: int, *entries: Entry, begin_ms: int = NOON_MS, ends: bool = True) -> None:
    """A term with these entries, a second apart; the sequence of the first is 1."""
    with a_writer(Directory.of(str(root))) as writer:
        writer.begin_term(epoch, begin_ms)
        for number, entry in enumerate(entries, 1):
            writer.put(begin_ms + number * 1000, entry)
        if ends:
            writer.end_term(begin_ms + len(entries) * 1000)
        assert writer.flush(patience())
        if not ends:
            abandon(writer)


def life_of(root: Path, bundle: str, most: int = 100, **bounds: int) -> BundleLineage:
    from_ms, to_ms = bounds.get("from_ms", 0), bounds.get("to_ms", NOON_MS * 2)
    return read_lineage(History(str(root)), BundleName.parse(bundle), from_ms, to_ms, most)


def told(life: BundleLineage) -> list[tuple[str, str | None]]:
    return [(entry.kind, entry.bundle) for entry in life.entries]


def test_decision_is_shown_with_the_verdicts_behind_it(tmp_path: Path) -> None:
    above = verdict(B1, "broker_above_average", acted=True, usage_percent=90.0)
    placed = verdict(LOWER, "least_long_term_message_rate", acted=True, broker=B2, msg_rate_per_s=5.0, candidates=2)
    other = verdict(B3, "broker_above_average", acted=True)
    moving = step("unload", LOWER, B1, B2, "broker_above_average")
    write(tmp_path, 1, decision("shed", [moving, step("unload", ELSEWHERE, B1, B2, "x")], above, placed, other))
    (entry,) = life_of(tmp_path, LOWER).entries
    assert (entry.kind, entry.bundle, entry.source, entry.destination, entry.acted) == ("shed", LOWER, B1, B2, True)
    assert entry.sentence == f"{above.sentence()}. {placed.sentence()}"
    assert life_of(tmp_path, "t/other/0x00000000_0x40000000").entries == []


def test_repeated_refusal_is_one_entry_while_its_reason_stays_the_same(tmp_path: Path) -> None:
    pinned, frozen = (verdict(LOWER, word, acted=False) for word in ("bundle_pinned", "bundle_frozen"))
    write(tmp_path, 1, *(decision("shed", (), each) for each in (pinned, pinned, pinned, frozen, pinned)))
    entries = life_of(tmp_path, LOWER).entries
    assert [(each.reason, each.times, each.acted) for each in entries] == [
        ("bundle_pinned", 3, False),
        ("bundle_frozen", 1, False),
        ("bundle_pinned", 1, False),
    ]
    assert (entries[0].at, entries[0].last_at) == (NOON_MS + 1000, NOON_MS + 3000)


def test_preview_is_not_part_of_the_lineage(tmp_path: Path) -> None:
    write(tmp_path, 1, decision("preview_shed", [step("unload", LOWER, B1, B2, "broker_above_average")]))
    assert life_of(tmp_path, LOWER).entries == []


def test_move_is_one_entry_with_its_outcome_and_measurement(tmp_path: Path) -> None:
    write(
        tmp_path,
        1,
        MoveRow("began", LOWER, B1, B2, "broker_above_average", imbalance_before=1.5, imbalance_after=1.2),
        MoveRow("began", UPPER, B1, B2, "admin_unload"),
        MoveRow("done", LOWER, B1, B2, "broker_above_average", started_ms=5, ended_ms=21, outcome="Owned", move=1),
        MoveRow("kept", UPPER, B1, B2, "admin_unload", started_ms=5, ended_ms=9, move=2, detail={"error": "503"}),
        MoveRow("measured", LOWER, B1, B2, "broker_above_average", imbalance_before=1.5, imbalance_after=1.25, move=1),
        MoveRow("began", LOWER, B2, None, "admin_unload"),
    )  # fmt: skip
    moved, released = life_of(tmp_path, LOWER).entries
    assert moved.sentence == "moved in 16 ms (broker above average): imbalance 1.5, predicted 1.2, measured 1.25"
    assert released.sentence == "moving; its end is not recorded (admin unload)"
    (kept,) = life_of(tmp_path, UPPER).entries
    assert kept.sentence == "not moved: 503; its owner kept it in 4 ms (admin unload)"
    assert not kept.acted


def test_lineage_follows_splits_leaders_and_gaps(tmp_path: Path) -> None:
    cuts = [HistoryEvent("namespace", "t/ns", {"ranges": ranges, "ownerships": []}) for ranges in (
        [PARENT[5:], ELSEWHERE[5:]], [LOWER[5:], UPPER[5:], ELSEWHERE[5:]],
    )]  # fmt: skip
    write(
        tmp_path,
        1,
        HistoryEvent("leader_elected", "n1:8080", {"epoch": 1}),
        cuts[0],
        decision("place", [step("assign", PARENT, None, B1, "x")], verdict(PARENT, "bundle_frozen", acted=True)),
        decision("place", [step("assign", ELSEWHERE, None, B3, "x")]),
        cuts[1],
        HistoryEvent("namespace", "t/ns", {"changed": {"0": []}}),
        HistoryEvent("broker_gone", B1),
        HistoryEvent("broker_gone", B3),
        ends=False,
    )
    write(tmp_path, 2, HistoryEvent("leader_elected", "n2:8080", {"epoch": 2}), begin_ms=NOON_MS + 3_600_000)
    life = life_of(tmp_path, LOWER)
    assert told(life) == [
        ("leader", None),
        ("place", PARENT),
        ("cut", None),
        ("broker_gone", None),
        ("gap", None),
        ("leader", None),
    ]
    assert life.entries[2].sentence == "cut anew: 0x00000000_0x80000000 became 0x00000000_0x40000000"
    assert [entry.epoch for entry in life.entries] == [1, 1, 1, 1, 2, 2]
    assert "did not end its term" in life.entries[4].sentence


def test_operations_on_bundle_namespace_brokers_and_plans_are_listed(tmp_path: Path) -> None:
    paths = {
        f"/admin/v2/namespaces/{LOWER}/unload": True,
        f"/admin/v2/namespaces/{PARENT}/split": True,
        f"/admin/v2/namespaces/{ELSEWHERE}/unload": False,
        "/admin/v2/namespaces/t/ns/unload": True,
        "/admin/v2/namespaces/t/ns": True,
        "/admin/v2/namespaces/t/ns2": False,
        f"/loadbalance/v1/brokers/{B1}/drain": True,
        f"/loadbalance/v1/brokers/{B3}/drain": False,
        "/loadbalance/v1/plans/abc/execute": True,
        "/loadbalance/v1/freeze": False,
    }
    moved = MoveRow("began", LOWER, B1, B2, "plan_executed")
    named = operation("/loadbalance/v1/plans", {"moves": [LOWER]})
    write(tmp_path, 1, moved, *map(operation, paths), named)
    orders = [entry for entry in life_of(tmp_path, LOWER).entries if entry.kind == "operation"]
    assert [entry.detail["path"] for entry in orders] == [
        *(path for path, concerns in paths.items() if concerns),
        "/loadbalance/v1/plans",
    ]
    assert orders[0].sentence == f"PUT /admin/v2/namespaces/{LOWER}/unload by ann from 10.0.0.1: 204"


def test_newest_entries_within_the_time_range_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 1, *(MoveRow("began", LOWER, B1, B2, "admin_unload") for _ in range(5)))
    life = life_of(tmp_path, LOWER, most=2)
    assert (life.omitted, [entry.sequence for entry in life.entries]) == (3, [4, 5])
    within = life_of(tmp_path, LOWER, from_ms=NOON_MS + 2000, to_ms=NOON_MS + 4000)
    assert [entry.sequence for entry in within.entries] == [2, 3]


def test_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, 1, decision("place", [step("assign", LOWER, None, B1, "x")]))
    put_file(tmp_path, b"no Parquet", table=MOVES)
    faults = list[HistoryFileError]()
    life = read_lineage(History(str(tmp_path)), BundleName.parse(LOWER), 0, NOON_MS * 2, on_fault=faults.append)
    assert (told(life), len(faults)) == ([("place", LOWER)], 1)
