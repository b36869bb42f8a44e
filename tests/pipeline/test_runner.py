from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.frames import rows_of
from support.whole_run import Done, in_order, whatif

from loadmanager.errors import PipelineError
from loadmanager.pipeline import runner
from loadmanager.pipeline.datasets import frame_of, schema_of
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.job import Job, JobRun
from loadmanager.pipeline.runner import StepError
from loadmanager.pipeline.step import NoResult, Step, Summary, get_summary
from loadmanager.pipeline.steps import STEPS
from loadmanager.pipeline.steps import whatif as whatif_step

ROWS: dict[str, list[tuple[object, ...]]] = {
    "fleet_events": [(1, 1, 1, "broker_gone", "a:1")],
    "recommendation": [("as-recorded", None, 1, 1, "no")],
}


class StepRunner:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.job = spark, Job(f"{folder}/history", f"{folder}/out")
        self.tables, self.lines = Tables(spark, self.job.out), list[str]()

    def run(self, *steps: Step) -> Summary:
        own = {each.name: each for each in steps}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runner, "STEPS", {**STEPS, **own})
            return runner.run(self.spark, self.job, list(own), self.lines.append)

    def fails(self, *steps: Step) -> str:
        """Return the error of the run, which the summary has too."""
        with pytest.raises(StepError) as raised:
            self.run(*steps)
        said = get_summary(self.job.out).steps[-1]
        assert str(raised.value) == f"step {said.step}: {said.fault}"
        return str(raised.value)


@pytest.fixture
def step_runner(spark: SparkSession, tmp_path: Path) -> StepRunner:
    return StepRunner(spark, tmp_path)


def writes(run: JobRun, *tables: str) -> None:
    for table in tables:
        run.write(table, frame_of(run.spark, schema_of(table), ROWS[table]))


def test_step_reads_only_declared_or_own_tables(step_runner: StepRunner) -> None:
    def step(run: JobRun) -> None:
        writes(run, "fleet_events")
        assert run.read("fleet_events").count() == 1
        run.read("imbalance")

    text = step_runner.fails(Step("one", step, writes=("fleet_events",)))
    assert text == "step one: table imbalance: not declared as read"


def test_step_writes_only_declared_tables(step_runner: StepRunner) -> None:
    made = Step("one", lambda run: writes(run, "fleet_events", "recommendation"), writes=("fleet_events",))
    assert step_runner.fails(made) == "step one: table recommendation: not declared as written"
    assert step_runner.tables.rows("fleet_events") == 1
    assert not step_runner.tables.has("recommendation")


def test_step_cannot_write_a_table_declared_only_as_read(step_runner: StepRunner) -> None:
    one = Step("one", lambda run: writes(run, "fleet_events"), writes=("fleet_events",))
    two = Step("two", lambda run: writes(run, "fleet_events"), reads=("fleet_events",))
    assert step_runner.fails(one, two) == "step two: table fleet_events: not declared as written"


def test_missing_table_is_refused_with_the_step_that_makes_it(step_runner: StepRunner) -> None:
    one = Step("one", lambda run: writes(run, "fleet_events"), writes=("fleet_events",))
    two = Step("two", lambda run: writes(run, "fleet_events"), reads=("fleet_events", "broker_windows"))
    text = step_runner.fails(one, two)
    assert text == (
        f"step two: {step_runner.job.out}/broker_windows: there is no such table yet;"
        " it is made by the step ingest (--step ingest)"
    )
    assert step_runner.lines == []
    assert not step_runner.tables.has("fleet_events")


def test_table_of_an_earlier_step_or_run_is_readable(step_runner: StepRunner) -> None:
    one = Step("one", lambda run: writes(run, "fleet_events"), writes=("fleet_events",))
    two = Step("two", lambda run: run.done.note(f"{run.read('fleet_events').count()} row"), reads=("fleet_events",))
    assert step_runner.run(one, two).notes == ["1 row"]
    assert step_runner.run(two).notes == ["1 row"]


def test_optional_table_may_be_missing(step_runner: StepRunner) -> None:
    step = Step("one", lambda run: run.done.note(f"{run.tables.has('fleet_events')}"), reads_if_there=("fleet_events",))
    assert step_runner.run(step).notes == ["False"]


def test_step_checks_run_before_any_step_begins(step_runner: StepRunner) -> None:
    def refuse(_: JobRun) -> None:
        raise PipelineError("cannot be done")

    one = Step("one", lambda run: writes(run, "fleet_events"), writes=("fleet_events",))
    assert step_runner.fails(one, Step("two", lambda _: None, check=refuse)) == "step two: cannot be done"
    assert step_runner.lines == []


def test_step_without_result_empties_its_tables_and_notes_the_reason(
    step_runner: StepRunner,
) -> None:
    def step(run: JobRun) -> None:
        writes(run, "fleet_events")
        raise NoResult("nothing is known")

    summary = step_runner.run(Step("one", step, writes=("fleet_events", "recommendation")))
    assert summary.notes == ["one: nothing is known"]
    assert summary.steps[0].rows == {"fleet_events": 1, "recommendation": 0}
    assert step_runner.tables.read("recommendation").collect() == []
    assert step_runner.lines[:3] == ["one (1 of 1)", "  fleet_events: 1 rows", "  recommendation: 0 rows"]
    assert step_runner.lines[3].startswith("one: 1 rows, ")


def test_unknown_table_cannot_be_declared() -> None:
    with pytest.raises(PipelineError, match=r"table broker_window: unknown; there are .*broker_windows"):
        Step("one", lambda _: None, reads=("broker_window",))


def test_unknown_table_is_neither_read_nor_written(step_runner: StepRunner) -> None:
    frame = frame_of(step_runner.spark, schema_of("fleet_events"))
    with pytest.raises(PipelineError, match="table late_file: unknown"):
        step_runner.tables.write("late_file", frame)
    with pytest.raises(PipelineError, match="table late_file: unknown"):
        step_runner.tables.read("late_file")


class KilledError(Exception):
    """The process is killed here."""


def test_next_run_repairs_steps_killed_before_their_last_table(
    spark: SparkSession, done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, _, expected = done
    shutil.copytree(summary.out, tmp_path / "out")
    tables, job = Tables(spark, str(tmp_path / "out")), Job(summary.history, str(tmp_path / "out"), whatif=whatif())
    later = {name: step.writes for name, step in STEPS.items() if name != "ingest"}
    for table in {table for writes in later.values() for table in writes}:
        tables.clear(table)
    left = {writes[-1] for writes in later.values() if writes}
    commit = Tables._commit

    def killed(given: Tables, name: str, *rest: Any) -> None:  # noqa: ANN401 - as the real one
        if name in left:
            left.remove(name)
            raise KilledError
        commit(given, name, *rest)

    monkeypatch.setattr(whatif_step, "WHOLE_DAY_HOURS", 0.5)
    monkeypatch.setattr(Tables, "_commit", killed)
    for step, writes in later.items():
        while left & set(writes):
            with pytest.raises(KilledError):
                runner.run(spark, job, [step])
        runner.run(spark, job, [step])
        for table in writes:
            found, wanted = (in_order(rows_of(each.read(table))) for each in (tables, expected))
            assert len(found) == len(wanted), table
            for row, other in zip(found, wanted, strict=True):
                assert row == pytest.approx(other, nan_ok=True), table
