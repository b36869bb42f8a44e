"""The step `ingest`: typed, cleaned, de-duplicated reports; what was rejected is kept with its reason."""

from __future__ import annotations

from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.keeping_up import CLEAN_TABLES
from loadmanager.pipeline.step import Step


def ingest(run: JobRun) -> None:
    run.history.require_reports()
    run.keeping_up.ingest(run.history)
    run.summary.from_ms, run.summary.to_ms = run.history.range
    run.kept(*CLEAN_TABLES)
    for fault in run.history.faults:
        run.note(f"left out: {fault.path}: {fault.why}")


STEP = Step("ingest", ingest, writes=CLEAN_TABLES)
