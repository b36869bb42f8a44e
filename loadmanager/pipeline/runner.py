"""Runner of pipeline steps, one after the other.

| | |
|---|---|
| before the first step | the tables that each step reads are there, or a step before makes them; its own check passes |
| during a step | it reads and writes only the tables that it declares |
| a step has nothing to say | the reason is a note of the run; tables that it has not written are empty |
| a step fails | the run ends with its name; each table is as before, or as a step has written it as a whole |
| at the end, also of a failed run | `<out>/summary.json` is written, unless an ingest alone found nothing new |
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from loadmanager.errors import LoadManagerError, PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.history_tables import ENGINE_ERRORS, cause_of
from loadmanager.pipeline.job import Job, JobRun
from loadmanager.pipeline.step import SUMMARY, NoResult, Step, StepResult, Summary, get_summary
from loadmanager.pipeline.steps import STEPS

Spark = SparkSession
"""The session type, for modules that do not import PySpark."""


class StepError(PipelineError):
    """A step failed; `__cause__` is the reason. Tables that were already written are intact."""


def run(spark: SparkSession, job: Job, names: Sequence[str], show: Callable[[str], object] = lambda _: None) -> Summary:
    """Run these steps in the pipeline's order, and `show` a line about each step and table.

    A failed run writes the summary too. Raises `StepError`.
    """
    state, steps = JobRun(spark, job, _summary_after(job), show), [STEPS[name] for name in STEPS if name in names]
    before = replace(state.summary)
    try:
        _check(state, steps)
        for number, step in enumerate(steps, 1):
            show(f"{step.name} ({number} of {len(steps)})")
            _run_step(state, step)
    finally:
        if _is_new(before, state.summary):
            with suppress(*ENGINE_ERRORS):
                Directory.of(job.out).write(SUMMARY, pa.py_buffer(state.summary.encode()))
    return state.summary


def _is_new(before: Summary, after: Summary) -> bool:
    """Return False for a run of the step `ingest` alone that left the tables, the range and the notes as they were."""
    made = [done for done in after.steps if done.run == after.run]
    if [done.step for done in made] != ["ingest"] or made[0].hours:
        return True
    one, two = (
        (summary.from_ms, summary.to_ms, {done.step: (done.rows, done.notes, done.fault) for done in summary.steps})
        for summary in (before, after)
    )
    return one != two


def _summary_after(job: Job) -> Summary:
    """Return the summary of a new run, with the results of earlier ones of the same history."""
    found = Summary(f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}", job.history, job.out)
    with suppress(LoadManagerError):
        before = get_summary(job.out)
        if before.history == job.history:
            found.from_ms, found.to_ms, found.steps = before.from_ms, before.to_ms, before.steps
    return found


def _check(run: JobRun, steps: Sequence[Step]) -> None:
    """Find steps that cannot run before the first one starts. Raises `StepError`."""
    made = set[str]()
    for step in steps:
        try:
            for table in step.reads:
                if table not in made and not run.tables.has(table):
                    maker = next(name for name, each in STEPS.items() if table in each.writes)
                    raise PipelineError(
                        f"{run.job.out}/{table}: there is no such table yet; it is made by the step {maker}"
                        f" (--step {maker})"
                    )
            if step.check is not None:
                step.check(run)
        except (LoadManagerError, *ENGINE_ERRORS) as error:
            raise _failed(run.begin(step), error) from error
        made |= set(step.writes)


def _run_step(run: JobRun, step: Step) -> None:
    done, started_s = run.begin(step), time.monotonic()
    try:
        if step.reads or step.reads_if_there:
            run.summarise_range()
        step.function(run)
    except NoResult as why:
        run.done.note(f"{step.name}: {why}")
        for table in step.writes:
            if table not in done.rows:
                run.clear(table)
    except (LoadManagerError, *ENGINE_ERRORS) as error:
        raise _failed(done, error) from error
    finally:
        done.seconds = time.monotonic() - started_s
    rows = sum(done.rows.values())
    run.show(f"{step.name}: {f'{rows:,} rows, ' if rows else ''}{done.seconds:.1f} s")


def _failed(done: StepResult, error: Exception) -> StepError:
    done.fault = str(error) if isinstance(error, LoadManagerError) else cause_of(str(error))
    return StepError(f"step {done.step}: {done.fault}")
