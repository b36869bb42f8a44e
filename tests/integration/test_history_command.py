"""`loadmanager history` as a process: what it prints, what it brings in, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.command_line import run as run_command
from support.recorded import NOON_MS, a_report, a_writer, put_file, record
from support.waiting import patience

from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS, EVENTS, TABLES

TRACES = Path(os.environ.get("LOADMANAGER_SHARED", Path(__file__).parents[3] / "shared")) / "traces"
BUNDLE = "t/ns/0x00000000_0xffffffff"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command("history", *arguments, environ={"TERM": "dumb", "COLUMNS": "200"})


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two terms, of which the first never ended."""
    root = tmp_path / "history"
    directory = Directory.of(str(root))
    record(directory, 1, "a")
    record(directory, 3, "b", at_ms=NOON_MS + 60_000)
    with a_writer(directory) as writer:
        writer.begin_term(4, NOON_MS + 120_000)
        writer.put(NOON_MS + 120_000, a_report(bundles=2))
        assert writer.flush(patience())
    return root


def test_ls_lists_tables_and_gaps(root: Path) -> None:
    done = run("ls", root)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["table", "files", "rows", "MiB", "from", "to", "epochs"]
    assert [row[0] for row in rows[2 : len(TABLES) + 2]] == list(TABLES)
    assert rows[list(TABLES).index(EVENTS) + 2][-1] == "1-4"
    assert done.stdout.splitlines()[-1].endswith("nothing was recorded in epoch 2")
    tables = lines_of(run("ls", root, "--json"))
    assert tables[1]["rows"] == 2
    assert tables[-1]["gap"]


def test_show_prints_rows_as_a_table_and_as_json(root: Path) -> None:
    done = run("show", root, EVENTS, "--columns", "at_ms,kind", "--limit", "2")
    assert done.stdout.splitlines()[2].split() == ["2026-09-21", "12:00:00", "term_began"]
    assert "--limit 0 shows all" in done.stderr
    shown = lines_of(run("show", root, EVENTS, "--json", "--from", "2026-09-21T12:01:00", "--to", NOON_MS_PLUS_MINUTES))
    assert [row["kind"] for row in shown] == ["term_began", "b", "term_ended"]
    assert run("show", root, "decisions").stdout.splitlines()[0].split() == TABLES["decisions"].names


NOON_MS_PLUS_MINUTES = str(NOON_MS + 90_000)


def test_damaged_file_is_named_the_others_shown_and_the_exit_code_1(root: Path) -> None:
    path = put_file(root, b"PAR1")
    for arguments in (("ls", root), ("show", root, EVENTS)):
        done = run(*arguments)
        assert done.returncode == 1
        assert done.stderr.count(f"left out: {path}: not a Parquet file") == 1
        assert done.stdout.count("term_began") == 3 or arguments[0] == "ls"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ls", "{}/nothing"), 1, "nothing: no such directory"),
        (("ls", "nfs4://x"), 1, "expected a directory, or a URL"),
        (("show", "{}", "event"), 1, "table event: unknown; there are broker_reports"),
        (("show", "{}", "events", "--columns", "x"), 1, "columns x: not in events"),
        (("show", "{}", "events", "--from", "noon"), 2, "--from 'noon': expected a time"),
        (("import", "csv", "{}", "/nowhere.csv"), 1, "/nowhere.csv: No such file or directory"),
        (("import", "csv", "{}", "/x.csv", "--bundles", "2"), 2, "--brokers 10: more than --bundles 2"),
    ],
)
def test_bad_input_changes_nothing(root: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    done = run(*(word.replace("{}", str(root)) for word in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("loadmanager: ")
    assert message in done.stderr
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traffic is not here")
def test_csv_import_makes_bundles_and_rejects_gaps_unless_filled(tmp_path: Path) -> None:
    root = tmp_path / "history"
    tweets = sorted(TRACES.glob("tweets_*.csv"))
    options = ("--bundles", "200", "--brokers", "4", "--for", "86400")
    done = run("import", "csv", root, *tweets, *options)
    assert done.stdout.startswith(f"{288 * 4} reports, ")
    info = History(str(root)).info(BUNDLE_REPORTS)
    assert (info.rows, info.to_ms) == (288 * 200, (info.from_ms or 0) + 287 * 300_000)
    with_gaps = TRACES / "aws_elb_request_count_8c0756.csv"
    done = run("import", "csv", root, with_gaps, *options)
    assert done.returncode == 1
    assert f"{with_gaps}, row " in done.stderr
    assert "column timestamp: 1 missing before it" in done.stderr
    assert run("import", "csv", root, with_gaps, *options, "--fill-gaps", "1").returncode == 0
