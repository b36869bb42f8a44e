"""Step `ingest`: clean reports, rejected rows, and windows per bundle, broker and namespace."""

from __future__ import annotations

from loadmanager.pipeline.ingest import TABLES, Ingest
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.step import Step


def ingest(run: JobRun) -> None:
    job = run.job
    under_way = Ingest(
        run.spark,
        run.tables,
        job.history,
        from_ms=job.from_ms,
        to_ms=job.to_ms,
        bad_files=job.bad_files,
        keep_days=job.keep_days,
        anew=job.anew,
    )
    under_way.run(run.recorded.overloaded)
    run.summary.from_ms, run.summary.to_ms = under_way.range
    run.kept(*TABLES)
    for note in under_way.notes:
        run.note(note)


STEP = Step("ingest", ingest, writes=TABLES)
