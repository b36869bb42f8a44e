"""`loadmanager history` as a process: what it prints, what it brings in, and how it refuses."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.command_line import run as run_command
from support.recorded import NOON_MS, a_report, a_writer, put_file, record
from support.registrations import a_record, load_of, register, write
from support.stores import ZooKeeperWorld
from support.waiting import eventually, patience
from support.zookeeper import a_session

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS, EVENTS, TABLES
from loadmanager.store import paths
from loadmanager.wire.dump_line import decode_line

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


def test_ls_shows_what_there_is_and_what_is_missing(root: Path) -> None:
    done = run("ls", root)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["table", "files", "rows", "MiB", "from", "to", "epochs"]
    assert [row[0] for row in rows[1 : len(TABLES) + 1]] == list(TABLES)
    assert rows[list(TABLES).index(EVENTS) + 1][-1] == "1-4"
    assert done.stdout.splitlines()[-1].endswith("of epoch 2 nothing is here")
    tables = lines_of(run("ls", root, "--json"))
    assert tables[1]["rows"] == 2
    assert tables[-1]["gap"]


def test_show_prints_rows_for_people_and_as_json(root: Path) -> None:
    done = run("show", root, EVENTS, "--columns", "at_ms,kind", "--limit", "2")
    assert done.stdout.splitlines()[1].split() == ["2026-09-21", "12:00:00", "term_began"]
    assert "--limit 0 shows all" in done.stderr
    shown = lines_of(run("show", root, EVENTS, "--json", "--from", "2026-09-21T12:01:00", "--to", NOON_MS_PLUS_MINUTES))
    assert [row["kind"] for row in shown] == ["term_began", "b", "term_ended"]
    assert run("show", root, "decisions").stdout.split() == TABLES["decisions"].names


NOON_MS_PLUS_MINUTES = str(NOON_MS + 90_000)


def test_export_writes_one_file_in_each_form(root: Path, tmp_path: Path) -> None:
    columns = ["sequence", "namespace", "msg_rate_in"]
    for form in ("csv", "jsonl", "parquet"):
        done = run(
            *("export", root, BUNDLE_REPORTS, "--format", form),
            *("--columns", ",".join(columns), "--output", tmp_path / f"out.{form}"),
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        from_csv = list(csv.DictReader(file))
    from_json = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    from_parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    rates = [[float(row["msg_rate_in"]) for row in rows] for rows in (from_csv, from_json, from_parquet)]
    assert rates[0] == rates[1] == rates[2]
    assert len(rates[0]) == 2
    assert run("export", root, BUNDLE_REPORTS, "--output", "-").stdout.splitlines()[0] == ",".join(
        TABLES[BUNDLE_REPORTS].names
    )


def test_a_damaged_file_is_named_the_others_are_shown_and_the_exit_code_is_1(root: Path) -> None:
    path = put_file(root, b"PAR1")
    for arguments in (("ls", root), ("show", root, EVENTS), ("export", root, EVENTS, "--output", "-")):
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
        (("export", "{}", "events", "--format", "xls", "--output", "-"), 2, "--format xls: expected one of csv"),
        (("export", "{}", "events", "--format", "parquet", "--output", "-"), 2, "--output -: a Parquet file"),
        (("export", "{}", "event", "--output", "-"), 1, "table event: unknown"),
        (("export", "{}", "events", "--output", "/nowhere/at/all.csv"), 1, "No such file or directory"),
        (("import", "csv", "{}", "/nowhere.csv"), 1, "/nowhere.csv: No such file or directory"),
        (("import", "csv", "{}", "/x.csv", "--bundles", "2"), 2, "--brokers 10: more than --bundles 2"),
        (("import", "reports-json", "{}", "/nowhere"), 1, "/nowhere: no *.json in it"),
        (("import", "pulsar", "{}", "zk:"), 2, "ZooKeeper hosts ''"),
    ],
)
def test_bad_input_changes_nothing(root: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    done = run(*(word.replace("{}", str(root)) for word in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("loadmanager: ")
    assert message in done.stderr
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_directory_of_reports_is_imported(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    for number in range(3):
        report = {"lastUpdate": NOON_MS + number, "lastStats": {BUNDLE: {"msgRateIn": number}}}
        (tmp_path / "reports" / f"b{number}:8080.json").write_text(json.dumps(report), encoding="utf-8")
    done = run("import", "reports-json", tmp_path / "history", tmp_path / "reports")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 reports, 8 rows in ")
    rows = lines_of(run("show", tmp_path / "history", BUNDLE_REPORTS, "--json"))
    assert [row["msg_rate_in"] for row in rows] == [0.0, 1.0, 2.0]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traffic is not here")
def test_recorded_traffic_becomes_bundles_and_its_gaps_are_refused_unless_filled(tmp_path: Path) -> None:
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


@pytest.mark.zookeeper
async def test_old_namespaces_are_recorded(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    world = ZooKeeperWorld(zookeeper, chroot)
    root = tmp_path / "history"
    heartbeat, old = (f"{namespace}/{BUNDLE.rpartition('/')[2]}" for namespace in ("pulsar/c1/b1:8080", "t/c1/old"))
    record_ = a_record("b1:8080", {name: load_of(50) for name in (BUNDLE, heartbeat, old)}, cpu=95)
    try:
        store = await world.connect()
        await store.ensure_path(paths.BROKERS)
        await register(store, "b1:8080", record_)
        await register(store, "b2:8080", a_record("b2:8080", {"nonsense": load_of(50)}, cpu=5))
        url = f"zk:{zookeeper.connect_string}{chroot}"
        done = await asyncio.to_thread(run, "import", "pulsar", root, url, "--for", "0")
    finally:
        await world.close()
    assert done.returncode == 0
    (left_out,) = done.stderr.splitlines()
    assert left_out.startswith("left out: b2:8080: lastStats: bundle 'nonsense'")
    (recorded,) = History(str(root)).reports()
    assert (set(recorded.report.bundle_names), recorded.report.usage[0, 0]) == ({BUNDLE, heartbeat, old}, 95)
    assert recorded.report.load[0] == record_["msgRateIn"]


@pytest.mark.zookeeper
async def test_sampling_changes_nothing(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    world = ZooKeeperWorld(zookeeper, chroot)
    root = tmp_path / "history"
    url = f"zk:{zookeeper.connect_string}{chroot}"
    try:
        store = await world.connect()
        await store.ensure_path(paths.BROKERS)
        await register(store, "b1:8080", a_record("b1:8080", {BUNDLE: load_of(50)}, cpu=95))
        await register(store, "b2:8080", a_record("b2:8080", cpu=5))
        before = versions(zookeeper, chroot)
        sampling = asyncio.create_task(
            asyncio.to_thread(run, "import", "pulsar", root, url, "--every", "0.5", "--for", "12")
        )
        await eventually(lambda: bool(list(History(str(root)).reports())))
        assert versions(zookeeper, chroot) == before
        record_ = {**a_record("b1:8080", {BUNDLE: load_of(60)}, cpu=50), "lastUpdate": NOON_MS}
        await write(store, paths.broker("b1:8080"), json.dumps(record_).encode())
        done = await sampling
    finally:
        await world.close()
    assert (done.returncode, done.stderr) == (0, "")
    reports = list(History(str(root)).reports())
    assert [each.registration.broker for each in reports][:2] == ["b1:8080", "b2:8080"]
    assert [each.report.usage[0, 0] for each in reports if each.report.last_update_ms == NOON_MS] == [50]
    (body,) = [row["body"] for row in History(str(root)).rows(EVENTS) if row["kind"] == "checkpoint"]
    assert sorted(decode_line(body, "checkpoint")["brokers"]) == ["b1:8080", "b2:8080"]


def test_a_store_that_does_not_answer_is_an_error(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    done = run("import", "pulsar", tmp_path, f"zk:{zookeeper.connect_string}{chroot}/nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("loadmanager: metadataStoreUrl ")


def versions(server: EmbeddedZooKeeper, path: str) -> dict[str, int]:
    """Every znode below the path, and the transaction that changed it last."""
    found: dict[str, int] = {}
    with a_session(server.connect_string) as client:
        open_paths = [path]
        while open_paths:
            each = open_paths.pop()
            _, stat = client.get(each)
            found[each] = stat.mzxid
            open_paths += [f"{each}/{child}" for child in client.get_children(each)]
    return found
