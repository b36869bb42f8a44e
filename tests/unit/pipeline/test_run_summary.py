"""Summary of a run: `summary.json` stays as it is while an ingest finds nothing new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from loadmanager.errors import PipelineError
from loadmanager.pipeline import runner
from loadmanager.pipeline.job import Job, JobRun
from loadmanager.pipeline.step import Step, Summary, get_summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ingest = Callable[[JobRun], None]


def found(hours: int = 0, to_ms: int = 2, note: str = "", rows: int = 5) -> Ingest:
    """Return a step that leaves this result without Spark."""

    def ingest(run: JobRun) -> None:
        run.done.hours, run.done.rows = hours, {"imbalance": rows}
        run.summary.from_ms, run.summary.to_ms = 1, to_ms
        if note:
            run.done.note(note)

    return ingest


def fail(_: JobRun) -> None:
    raise PipelineError("damaged")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Ingest, str], Summary]:
    """Run of one step in place of the real one; the summary that is there afterwards."""
    job = Job(f"{tmp_path}/history", f"{tmp_path}/out")

    def run_step(function: Ingest, name: str = "ingest") -> Summary:
        monkeypatch.setattr(runner, "STEPS", {name: Step(name, function)})
        try:
            runner.run(cast("SparkSession", None), job, [name])
        except runner.StepError:
            assert function is fail
        return get_summary(job.out)

    return run_step


def test_ingest_without_news_keeps_the_summary(run: Callable[..., Summary]) -> None:
    made = run(found(hours=3))
    assert made.steps[0].hours == 3
    assert run(found()) == made
    report = run(found(), "report")
    assert report.run != made.run
    assert run(found()) == report


@pytest.mark.parametrize(
    "change",
    [found(hours=1), found(to_ms=3), found(note="left out: a"), found(rows=4), fail],
    ids=["hours", "range", "note", "rows", "fault"],
)
def test_ingest_with_another_result_writes_the_summary(run: Callable[..., Summary], change: Ingest) -> None:
    made = run(found(hours=3))
    changed = run(change)
    assert changed.run != made.run
    assert changed.steps[0].run == changed.run


def test_resolved_fault_is_removed_from_the_summary(run: Callable[..., Summary]) -> None:
    run(found(hours=3))
    failed = run(fail)
    assert failed.steps[0].fault == "damaged"
    assert run(fail) == failed
    assert run(found()).steps[0].fault is None
