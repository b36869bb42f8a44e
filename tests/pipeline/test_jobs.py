"""The steps of a run, one after the other, on an hour of a small fleet; and what bad input gets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession
from support.frames import files_of, rows_of
from support.recorded import NOON_MS
from support.recorded_fleet import BROKERS, BUNDLES, MINUTE_MS, NAMESPACES, record_fleet
from support.whole_run import Done, whatif

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.history.files import Directory
from loadmanager.pipeline.datasets import DATASETS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.job import Job
from loadmanager.pipeline.league import Recommendation, recommended_yaml
from loadmanager.pipeline.publish import learned_from
from loadmanager.pipeline.runner import StepError, run
from loadmanager.pipeline.step import SUMMARY, Summary, get_summary
from loadmanager.pipeline.steps import STEPS
from loadmanager.pipeline.steps import whatif as whatif_step
from loadmanager.pipeline.steps.whatif import RECOMMENDED, default_whatif, missing_day, write_recommended
from loadmanager.pipeline.whatif_file import WhatIf

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
REPORTS = 60 * BROKERS


def test_run_reports_all_steps_in_order_with_their_rows(done: Done) -> None:
    summary, lines, tables = done
    assert [line for line in lines if " of " in line] == [
        f"{step} ({number} of {len(STEPS)})" for number, step in enumerate(STEPS, 1)
    ]
    assert [line.partition(":")[0] for line in lines if line.endswith(" s")] == list(STEPS)
    written = rows_written(summary)
    assert {line for line in lines if line.startswith(" ")} == {
        f"  {table}: {rows:,} rows" for table, rows in written.items()
    }
    assert written.keys() <= DATASETS.keys()
    assert all(tables.rows(table) == rows for table, rows in written.items())


def rows_written(summary: Summary) -> dict[str, int]:
    return {table: rows for each in summary.steps for table, rows in each.rows.items()}


def test_step_writes_all_its_declared_tables(done: Done) -> None:
    made = set[str]()
    for each in done[0].steps:
        declared = set(STEPS[each.step].writes)
        assert declared - made <= each.rows.keys() <= declared, each.step
        made |= declared


def test_tables_contain_the_reports_of_the_fleet(done: Done) -> None:
    rows = rows_written(done[0])
    assert rows["clean_broker_reports"] == REPORTS
    assert rows["rejected_rows"] == 0
    assert rows["scenarios"] == 2
    assert rows["league"] == 2
    for table in ("bundle_windows", "broker_windows", "namespace_windows", "imbalance", "cost_models"):
        assert rows[table] > 0, table


def test_one_hour_of_history_gives_notes_instead_of_forecasts(done: Done) -> None:
    summary, _, _ = done
    why = "not enough history: needs 3 days of hourly windows, has 0.0 (0 of them whole, with at least 18 hours)"
    assert {f"{step}: {why}" for step in ("forecast", "capacity", "advice")} <= set(summary.notes)
    rows = rows_written(summary)
    assert [rows[table] for table in ("backtest", "forecasts", "capacity", "advice")] == [0, 0, 0, 0]


def test_summary_names_the_range_and_the_steps(done: Done) -> None:
    summary, _, _ = done
    assert get_summary(summary.out) == summary
    assert summary.from_ms == NOON_MS
    assert summary.to_ms is not None
    assert NOON_MS + 59 * MINUTE_MS < summary.to_ms <= NOON_MS + HOUR_MS
    assert all(each.fault is None and each.run == summary.run for each in summary.steps)


def test_one_hour_of_history_gives_no_recommendation(done: Done) -> None:
    summary, _, tables = done
    said = "Nothing is recommended: 0 whole days were replayed, at least 5 are needed."
    assert not (Path(summary.out) / RECOMMENDED).exists()
    assert f"what-if: {said}" in summary.notes
    row = tables.read("recommendation").collect()[0]
    assert (row["fleet"], row["configuration"], row["days"], row["why"]) == ("as-recorded", None, 0, said)


@pytest.mark.parametrize("tried", [None, whatif()], ids=["default", "file"])
def test_less_than_a_day_is_not_replayed(
    spark: SparkSession, history: Path, tmp_path: Path, tried: WhatIf | None
) -> None:
    (tmp_path / RECOMMENDED).write_text("# of an earlier run")
    summary = run(spark, Job(str(history), str(tmp_path), whatif=tried), ["whatif"])
    tables = ("scenarios", "league", "paired_differences", "recommendation")
    assert {table: summary.steps[0].rows[table] for table in tables} == dict.fromkeys(tables, 0)
    note = "Nothing is recommended: needs 1 day of history (at least 18 hours), has 1.0 hours."
    assert summary.notes[-1] == f"what-if: {note}"
    assert not (tmp_path / RECOMMENDED).exists()
    assert missing_day(18 * HOUR_MS) is None


def test_recommended_configuration_is_loadable_and_removed_without_one(tmp_path: Path) -> None:
    settings = settings_of({"loadBalancerLoadSheddingStrategy": "TransferShedder"}, "test")
    directory, found = Directory.of(str(tmp_path)), Recommendation("as-recorded", "one", ("It is.",), 5, 3)
    write_recommended(directory, recommended_yaml(found, settings, ["From a test."]))
    path = tmp_path / RECOMMENDED
    assert load_settings(Settings, path).planner_settings().shedding_strategy == "TransferShedder"
    assert "# It is." in path.read_text()
    write_recommended(directory, None)
    assert not path.exists()


@pytest.mark.parametrize(("days", "tried_days", "seeds"), [(0.5, 0.5, 1), (4, 1, 1), (5, 5, 3), (30, 5, 3)])
def test_default_whatif_tries_what_a_recommendation_needs(days: float, tried_days: float, seeds: int) -> None:
    found = default_whatif(NOON_MS, NOON_MS + round(days * DAY_MS))
    assert found.begin is not None
    assert found.end is not None
    assert (found.end - found.begin).total_seconds() * 1000 == tried_days * DAY_MS
    assert len(found.seeds) == seeds


def test_report_has_every_section(done: Done) -> None:
    page = (Path(done[0].out) / "report" / "index.html").read_text()
    for name in ("imbalance", "brokers", "league", "capacity", "advice"):
        assert f'<section id="{name}">' in page


def test_learned_load_of_a_namespace_is_the_mean_of_its_bundles(done: Done) -> None:
    summary, _, tables = done
    learned = learned_from(tables, summary)
    assert learned["run"] == summary.run
    hours = [row for row in rows_of(tables.read("namespace_windows")) if row["window_s"] == HOUR_MS // 1000]
    carried = {
        row["namespace"]: (row["mean_msg_throughput_in"] + row["mean_msg_throughput_out"]) * row["covered_s"]
        for row in hours
    }
    assert sorted(carried) == [f"tenant/ns-{number}" for number in range(NAMESPACES)]
    assert list(learned["namespaces"]) == sorted(carried, key=carried.__getitem__, reverse=True)
    # Per bundle: a quarter carries 6 times the usual 800 messages/s, growing from once to twice over the hour.
    for each in learned["namespaces"].values():
        assert each["bundles"] == BUNDLES
        assert each["msgRateIn"] == pytest.approx(800 * (6 + 3) / 4 * 1.5, rel=0.1)


def test_single_steps_can_be_repeated(spark: SparkSession, done: Done, tmp_path: Path) -> None:
    summary, _, _ = done
    out = tmp_path / "out"
    shutil.copytree(summary.out, out)
    lines = list[str]()
    again = run(spark, Job(summary.history, str(out)), ["advice"], lines.append)
    assert lines[0] == "advice (1 of 1)"
    assert [line.partition(":")[0] for line in lines[1:]] == ["  advice", "advice"]
    runs = {each.step: each.run for each in again.steps}
    assert runs == {step: again.run if step == "advice" else summary.run for step in STEPS}
    assert (again.from_ms, again.to_ms) == (summary.from_ms, summary.to_ms)


def rows_by_table(tables: Tables) -> dict[str, int]:
    return {name: tables.rows(name) for name in DATASETS if tables.has(name)}


@pytest.fixture
def before(spark: SparkSession, done: Done, tmp_path: Path) -> Iterator[tuple[Job, Tables]]:
    """A copy of the tables of a whole run; they have to be the same afterwards."""
    summary, _, _ = done
    out = tmp_path / "out"
    shutil.copytree(summary.out, out)
    tables = Tables(spark, str(out))
    expected = rows_by_table(tables)
    yield Job(summary.history, str(out)), tables
    assert rows_by_table(tables) == expected
    assert tables.read("imbalance").count() == expected["imbalance"]


def failed(spark: SparkSession, job: Job, step: str) -> str:
    """Return the error of a run of the step, which the summary has too."""
    with pytest.raises(StepError) as raised:
        run(spark, job, [step])
    said = orjson.loads((Path(job.out) / SUMMARY).read_bytes())["steps"][-1]
    assert said["step"] == step
    assert str(raised.value) == f"step {step}: {said['fault']}"
    return str(raised.value)


def test_empty_range_is_named_with_the_existing_one(spark: SparkSession, before: tuple[Job, Tables]) -> None:
    job, _ = before
    for step in ("ingest", "balance"):
        text = failed(spark, replace(job, from_ms=NOON_MS + 24 * HOUR_MS), step)
        assert re.search(r"no broker_reports in the range 20\S+ to the end; there is: 20", text)


def test_range_limits_the_steps_after_ingest(spark: SparkSession, done: Done, tmp_path: Path) -> None:
    summary, _, _ = done
    shutil.copytree(summary.out, tmp_path / "out")
    job = Job(summary.history, str(tmp_path / "out"))
    part = replace(job, from_ms=NOON_MS + 21 * MINUTE_MS, to_ms=NOON_MS + 30 * MINUTE_MS + 1)
    tables = Tables(spark, job.out)
    for steps, asked, minutes in ((["ingest", "balance"], part, [20, 25, 30]), (["balance"], job, range(0, 60, 5))):
        found = run(spark, asked, steps)
        assert tables.rows("clean_broker_reports") == REPORTS
        starts = [row["start_ms"] for row in rows_of(tables.read("imbalance"), "start_ms")]
        assert starts == [NOON_MS + minute * MINUTE_MS for minute in minutes]
        expected = (asked.from_ms or summary.from_ms, asked.to_ms or summary.to_ms)
        assert (found.from_ms, found.to_ms) == expected
    days = rows_of(tables.read("hot_bundles"))
    assert {row["start_ms"] for row in days} == {NOON_MS - 12 * HOUR_MS}
    alone = run(spark, part, ["balance"])
    assert (alone.from_ms, alone.to_ms) == (part.from_ms, part.to_ms)
    assert len(rows_of(tables.read("hot_bundles"))) == len(days), "a day that overlaps the range counts as a whole"


def test_missing_history_is_named(spark: SparkSession, before: tuple[Job, Tables], tmp_path: Path) -> None:
    job, _ = before
    assert f"{tmp_path}/none: there is no history" in failed(spark, replace(job, history=f"{tmp_path}/none"), "ingest")


def a_bad_file(history: Path, tmp_path: Path, content: bytes | None) -> tuple[str, Path]:
    """A copy of the history in which one file has other content, or that of a damaged page for None; and the file."""
    root = tmp_path / "history"
    shutil.copytree(history, root)
    bad = files_of(root, "bundle_reports")[0]
    if content is None:
        data = bytearray(bad.read_bytes())
        data[4 : len(data) // 2] = os.urandom(len(data) // 2 - 4)
        content = bytes(data)
    bad.write_bytes(content)
    return str(root), bad


@pytest.mark.parametrize("content", [b"", b"PAR1, not really", None], ids=["empty", "foreign", "damaged"])
def test_unreadable_file_is_named_and_tables_stay(
    spark: SparkSession, before: tuple[Job, Tables], history: Path, tmp_path: Path, content: bytes | None
) -> None:
    job, _ = before
    root, bad = a_bad_file(history, tmp_path, content)
    assert str(bad) in failed(spark, replace(job, history=root, anew=True), "ingest")


def test_unreadable_file_is_left_out_on_request(spark: SparkSession, tmp_path: Path) -> None:
    record_fleet(tmp_path / "recorded", minutes=90)
    root, bad = a_bad_file(tmp_path / "recorded", tmp_path, b"not Parquet")
    summary = run(spark, Job(root, str(tmp_path / "out"), leave_out_bad_files=True), ["ingest"])
    (note,) = summary.notes
    assert str(bad) in note
    hours = Tables(spark, str(tmp_path / "out")).read_rows("reported_by").column("start_ms").unique().to_pylist()
    assert hours == [NOON_MS + HOUR_MS]


def test_whatif_notes_a_left_out_file_and_replays_the_rest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif_step, "WHOLE_DAY_HOURS", 0.5)
    record_fleet(tmp_path / "recorded", minutes=90)
    root, bad = a_bad_file(tmp_path / "recorded", tmp_path, b"not Parquet")
    job = Job(root, str(tmp_path / "out"), leave_out_bad_files=True, whatif=whatif())
    summary = run(spark, job, ["whatif"])
    assert [each.partition(": not a Parquet")[0] for each in summary.notes if "Parquet" in each] == [f"left out: {bad}"]
    assert summary.steps[0].rows["scenarios"] == 2


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"strategies": ["ThresholdSheder"]}, ["ThresholdSheder", "ThresholdShedder"]),
        ({"settings": {"loadBalancerEnabledd": True}}, ["loadBalancerEnabledd", "loadBalancerEnabled"]),
        (
            {"variants": [{"name": "a", "settings": {"loadBalancerBrokerThresholdShedderPercentage": 300}}]},
            ["settings of ThresholdShedder, a", "loadBalancerBrokerThresholdShedderPercentage"],
        ),
    ],
    ids=["strategy", "key", "value"],
)
def test_invalid_whatif_is_refused_before_any_step(
    spark: SparkSession, history: Path, tmp_path: Path, given: dict[str, object], names: list[str]
) -> None:
    job, lines = Job(str(history), str(tmp_path / "out"), whatif=whatif(**given)), list[str]()
    with pytest.raises(StepError) as raised:
        run(spark, job, list(STEPS), lines.append)
    assert lines == []
    assert str(raised.value).startswith("step whatif: two: ")
    assert all(name in str(raised.value) for name in names)
    (step,) = get_summary(job.out).steps
    assert f"step {step.step}: {step.fault}" == str(raised.value)


def test_missing_history_is_named_by_its_step(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(f"{tmp_path}/none", str(tmp_path / "out"), whatif=whatif())
    with pytest.raises(StepError, match=r"step ingest: .*none: there is no history"):
        run(spark, job, list(STEPS))


def test_step_without_its_tables_names_the_missing_one(spark: SparkSession, history: Path, tmp_path: Path) -> None:
    text = failed(spark, Job(str(history), str(tmp_path / "out")), "advice")
    assert "broker_windows: there is no such table yet" in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for little."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.deep
def test_full_disk_keeps_earlier_tables(spark: SparkSession, history: Path, small_disk: Path) -> None:
    job = Job(str(history), str(small_disk))
    lines = list[str]()
    with pytest.raises(StepError, match=r"cannot be written: .*No space left on device"):
        run(spark, job, list(STEPS), lines.append)
    tables = Tables(spark, str(small_disk))
    written = [line.partition(":")[0].strip() for line in lines if line.startswith(" ")]
    assert written
    for table in written:
        assert f"  {table}: {tables.read(table).count():,} rows" in lines


def test_table_survives_a_full_disk(spark: SparkSession, history: Path, tmp_path: Path, small_disk: Path) -> None:
    record_fleet(tmp_path / "history", minutes=10)
    job = Job(str(tmp_path / "history"), str(small_disk))
    table = "clean_broker_reports"
    to_ms = run(spark, job, ["ingest"]).to_ms
    tables, filler = Tables(spark, str(small_disk)), small_disk / "filler"
    shutil.copytree(history, tmp_path / "history", dirs_exist_ok=True)
    fill(filler)
    with pytest.raises(StepError, match=r"step ingest: .*No space left on device"):
        run(spark, job, ["ingest"])
    assert tables.read(table).count() == tables.rows(table) == 10 * BROKERS
    assert get_summary(job.out).to_ms == to_ms
    filler.unlink()
    run(spark, job, ["ingest"])
    assert tables.read(table).count() == tables.rows(table) == REPORTS


def fill(path: Path) -> None:
    """Take all room that is left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
