"""`loadmanager replay` on histories that a real leader recorded, as a command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.builders import broker, report
from support.recorded import NEVER, NOON_MS, Disk, abandon, record
from support.recorded_cluster import OF_STRATEGY, a_recorded_leader
from support.waiting import eventually_sync, patience

from loadmanager.cli import main
from loadmanager.history.entry_rows import HistoryEvent, MoveRow, Report
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import DECISIONS, EVENTS
from loadmanager.history.writer import HistoryWriter


async def a_history(folder: Path) -> Path:
    async with a_recorded_leader(folder, **OF_STRATEGY["ThresholdShedder"]) as recorded:
        assert await recorded.live(4) > 0
    return folder


def replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, history: Path, *options: str
) -> tuple[int, str, str]:
    """Exit code, output, and what was said on standard error."""
    monkeypatch.setattr(sys, "argv", ["loadmanager", "replay", "--history", str(history), *options])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


async def test_replay_verifies_a_history_and_names_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await a_history(tmp_path / "history")
    code, output, _ = replay(capsys, monkeypatch, history)
    assert code == 0, output
    assert output.splitlines()[-1] == "every decision is the same, bit for bit"
    code, output, _ = replay(capsys, monkeypatch, history, "--json")
    record = json.loads(output)
    assert (code, record["equal"], record["difference"]) == (0, True, None)
    assert record["compared"]["shed"] == 4

    row = next(row for row in History(str(history)).rows(DECISIONS) if row["kind"] == "shed" and row["steps"])
    for file in (history / DECISIONS).rglob("*.parquet"):
        table = pq.read_table(file)
        rows = table.to_pylist()
        for each in rows:
            if each["sequence"] == row["sequence"]:
                each["steps"][0]["reason"] = "lookup"
        pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    code, output, _ = replay(capsys, monkeypatch, history)
    assert code == 1
    assert f"epoch 1, sequence {row['sequence']}: shed about {row['steps'][0]['bundle']}, step.reason" in output
    assert f"recorded 'lookup', replayed '{row['steps'][0]['reason']}'" in output


def test_partial_write(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    directory = disk.directory(tmp_path / "history")
    writer = HistoryWriter(directory, "node", NEVER)
    writer.start()
    writer.begin_term(1, NOON_MS)
    writer.put(NOON_MS, HistoryEvent("checkpoint", "", {"parts": 1}))
    assert writer.flush(patience())
    for second in range(1, 4):
        writer.put(NOON_MS + second * 1000, HistoryEvent("redistributed", "", {}))
        writer.put(NOON_MS + second * 1000, MoveRow("began", "t/ns/0x0_0x1", "a", "b", "why"))
    disk.left = 1
    writer.flush(0)
    eventually_sync(lambda: writer.figures.write_failures, what="the second file cannot be written")
    abandon(writer)
    disk.left = None
    code, output, _ = replay(capsys, monkeypatch, tmp_path / "history")
    assert (code, "epoch 1: 3 rows are missing: its leader has not ended its term" in output) == (0, True), output
    record(directory, 2, at_ms=NOON_MS + 60_000)
    code, output, _ = replay(capsys, monkeypatch, tmp_path / "history")
    assert (code, "epoch 1: 3 rows are missing: the leader of epoch 1 did not end" in output) == (0, True), output


async def test_range_starts_at_the_checkpoint_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await a_history(tmp_path / "history")
    rows = [row for row in History(str(history)).rows(DECISIONS) if row["kind"] == "shed"]
    options = ("--from", str(rows[1]["at_ms"]), "--to", str(rows[2]["at_ms"]), "--json")
    code, output, _ = replay(capsys, monkeypatch, history, *options)
    assert code == 0, output
    assert json.loads(output)["compared"]["shed"] == 2


def an_hour(folder: Path) -> Path:
    """Two brokers for an hour: the first one carries all the load, and nothing is done about it."""
    writer = HistoryWriter(Directory.of(str(folder)), "node")
    writer.start()
    writer.begin_term(1, 0)
    settings = {"loadBalancerSheddingIntervalMinutes": "1", "loadBalancerSheddingGracePeriodMinutes": "1"}
    writer.put(0, HistoryEvent("checkpoint", "", {"settings": settings}))
    bundles = [f"t/ns/0x{at:08x}_0x{at + 0x10000000 - (at == 0xF0000000):08x}" for at in range(0, 2**32, 2**28)]
    load = dict.fromkeys(bundles, (1000.0, 1000.0, 20000000.0, 20000000.0))
    for minute in range(60):
        for number, owned in enumerate((load, {})):
            used = (2_560_000.0, 4e6) if owned else (0.0, 4e6)
            taken = report(owned, cpu=(300.0 * bool(owned), 800.0), bandwidth_in=used, bandwidth_out=used)
            writer.put(minute * 60_000 + number, Report(broker(f"b{number}"), taken))
    assert writer.close()
    return folder


def test_comparison_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    history = an_hour(tmp_path / "history")
    options = ("--set", "loadBalancerSheddingEnabled=false")
    code, output, error = replay(capsys, monkeypatch, history, *options, "--json")
    assert code == 0, error
    record = json.loads(output)
    assert record["observed"]["moves"] == record["changed"]["moves"] == 0
    assert record["observed"]["imbalance"] == pytest.approx(record["changed"]["imbalance"])
    assert record["as_recorded"]["moves"] > 0
    assert record["as_recorded"]["imbalance"] < record["observed"]["imbalance"]
    code, output, _ = replay(capsys, monkeypatch, history, "--strategy", "TransferShedder")
    assert code == 0
    assert "observed" in output
    assert "simulated with TransferShedder" in output


async def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    history = await a_history(tmp_path / "history")
    code, _, error = replay(capsys, monkeypatch, history, "--from", "yesterday")
    assert code == 2
    assert error == (
        "loadmanager: --from 'yesterday': expected a time such as 2026-01-31T12:00:00,"
        " how long ago it was such as 30m, 12h or 2d, or milliseconds since 1970\n"
    )
    code, _, error = replay(capsys, monkeypatch, history, "--set", "loadBalancerSheddingEnable=false")
    assert code == 2
    assert "loadBalancerSheddingEnable" in error
    code, _, error = replay(capsys, monkeypatch, history, "--strategy", "Transfer")
    assert code == 2
    assert "Transfer" in error
    code, _, error = replay(capsys, monkeypatch, tmp_path / "nothing")
    assert (code, "no such directory" in error) == (1, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, error = replay(capsys, monkeypatch, empty)
    assert (code, "no leader has recorded a checkpoint here" in error) == (1, True)


async def test_unreadable_file_is_named_and_missing_rows_are_not_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await a_history(tmp_path / "history")
    files = sorted((history / EVENTS).rglob("*.parquet"))
    broken = files[-1]
    broken.write_bytes(b"PAR1 no more")
    code, _, error = replay(capsys, monkeypatch, history)
    assert code == 1
    assert broken.name in error
    shutil.rmtree(history / EVENTS)
    assert replay(capsys, monkeypatch, history)[0] == 1
