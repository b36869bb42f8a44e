"""Carries out the steps of a run, one after the other, and says what became of each.

| | |
|---|---|
| before any step begins | what each one reads is there, or is written by one before it; its own check finds no fault |
| while a step is at work | it reads and writes only what it has declared |
| it has nothing to say | why is a note of the run, and those of its tables that it has not written are empty |
| it fails | the run ends with the step's name; every table is as it was, or as a step has written it as a whole |
| however it ends | `<out>/summary.json` says what was done |
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from loadmanager.errors import LoadManagerError, PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.history_tables import CANNOT_GO_ON, cause_of
from loadmanager.pipeline.job import Job, JobRun, Watch
from loadmanager.pipeline.step import SUMMARY, Done, NothingToSay, Step, Summary, get_summary
from loadmanager.pipeline.steps import STEPS

Spark = SparkSession
"""The session, for those who do not import PySpark."""


class StepError(PipelineError):
    """A step failed; `__cause__` is why. What other steps wrote is intact, and so is what this one wrote before."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step = step


def run(spark: SparkSession, job: Job, names: Sequence[str], watch: Watch) -> Summary:
    """The steps of these names, in their order; the summary is written also when one fails. Raises `StepError`."""
    return carry_out(spark, job, [step for name, step in STEPS.items() if name in names], watch)


def carry_out(spark: SparkSession, job: Job, steps: Sequence[Step], watch: Watch) -> Summary:
    """Run these steps, see `run`."""
    under_way = JobRun(spark, job, _summary_after(job), watch)
    try:
        _check(under_way, steps)
        for step in steps:
            _carry_out(under_way, step)
    finally:
        with suppress(*CANNOT_GO_ON):
            Directory.of(job.out).write(SUMMARY, pa.py_buffer(under_way.summary.encode()))
    return under_way.summary


def _summary_after(job: Job) -> Summary:
    """Return the summary of a new run, with the results of earlier ones of the same history."""
    found = Summary(_new_id(), job.history, job.out)
    with suppress(PipelineError):
        before = get_summary(job.out)
        if before.history == job.history:
            found.from_ms, found.to_ms, found.steps = before.from_ms, before.to_ms, before.steps
    return found


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def _check(run: JobRun, steps: Sequence[Step]) -> None:
    """Refuse what cannot be done before the first step has taken its time."""
    made = set[str]()
    for step in steps:
        try:
            for table in step.reads:
                if table not in made and not run.has(table):
                    raise PipelineError(_missing(run, table))
            if step.check is not None:
                step.check(run)
        except (LoadManagerError, *CANNOT_GO_ON) as error:
            raise _failed(run.begin(step), error) from error
        made |= set(step.writes)


def _missing(run: JobRun, table: str) -> str:
    maker = next(name for name, step in STEPS.items() if table in step.writes)
    return f"{run.job.out}/{table}: there is no such table yet; it is made by the step {maker} (--step {maker})"


def _carry_out(run: JobRun, step: Step) -> None:
    with _at_work(run, step) as done:
        try:
            step.function(run)
        except NothingToSay as why:
            run.note(f"{step.name}: {why}")
            for table in step.writes:
                if table not in done.rows:
                    run.clear(table)


@contextmanager
def _at_work(run: JobRun, step: Step) -> Iterator[Done]:
    """Begin the step, and record how it ended."""
    done = run.begin(step)
    run.watch.began(step.name)
    started_s = time.monotonic()
    try:
        yield done
    except (LoadManagerError, *CANNOT_GO_ON) as error:
        raise _failed(done, error) from error
    finally:
        done.seconds = time.monotonic() - started_s
    run.watch.ended(step.name, done.seconds)


def _failed(done: Done, error: Exception) -> StepError:
    done.fault = str(error) if isinstance(error, LoadManagerError) else cause_of(str(error))
    return StepError(done.step, done.fault)
