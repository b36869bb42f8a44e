"""Step `report`: one HTML page, and its tables as CSV."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.history_tables import ENGINE_ERRORS, cause_of
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.reporting.actions import REPORT
from loadmanager.pipeline.reporting.contents import TABLES_READ, collect
from loadmanager.pipeline.reporting.page import make_report
from loadmanager.pipeline.step import Step
from loadmanager.pipeline.steps.whatif import RECOMMENDED


def report(run: JobRun) -> None:
    directory = Directory.of(run.job.out)
    try:
        contents = collect(run)
        recommended = None
        with suppress(FileNotFoundError):
            recommended = directory.read(RECOMMENDED).decode()
        for name, data in make_report(contents, run.summary, recommended).items():
            directory.write(f"{REPORT}/{name}", pa.py_buffer(data))
    except ENGINE_ERRORS as error:
        raise PipelineError(f"{directory}/{REPORT}: cannot be written: {cause_of(str(error))}") from error


STEP = Step("report", report, reads_if_there=TABLES_READ)
