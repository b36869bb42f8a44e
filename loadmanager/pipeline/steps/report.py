"""Step `report`: one HTML page, and its tables as CSV."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.history_tables import CANNOT_GO_ON, cause_of
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.reporting.actions import REPORT
from loadmanager.pipeline.reporting.contents import TABLES_READ, About, collect
from loadmanager.pipeline.reporting.page import PAGE, make_report
from loadmanager.pipeline.step import Step, Summary, get_summary
from loadmanager.pipeline.steps.whatif import RECOMMENDED


def report(run: JobRun) -> None:
    _write_report(run.tables, run.summary)


def make_report_again(spark: SparkSession, out: str) -> str:
    """Make the report of the last run from the present tables; return its path. Raises `PipelineError`."""
    return _write_report(Tables(spark, out), get_summary(out))


def _write_report(tables: Tables, said: Summary) -> str:
    directory = Directory.of(said.out)
    try:
        contents = collect(tables)
        recommended = None
        with suppress(FileNotFoundError):
            recommended = directory.read(RECOMMENDED).decode()
        notes = {done.step: done.notes for done in said.steps}
        about = About(said.run, said.history, said.out, said.from_ms, said.to_ms, notes, recommended)
        for name, data in make_report(contents, about).items():
            directory.write(f"{REPORT}/{name}", pa.py_buffer(data))
    except CANNOT_GO_ON as error:
        raise PipelineError(f"{directory}/{REPORT}: cannot be written: {cause_of(str(error))}") from error
    return f"{said.out.rstrip('/')}/{REPORT}/{PAGE}"


STEP = Step("report", report, reads_if_there=TABLES_READ)
