"""Step `averages`: who carried what, windows per bundle, broker and namespace of it, and how even they were."""

from __future__ import annotations

from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.keeping_up import WINDOW_TABLES
from loadmanager.pipeline.step import Step


def averages(run: JobRun) -> None:
    run.keeping_up.average(run.end_ms, run.recorded.overloaded)
    run.kept(*WINDOW_TABLES)


STEP = Step(
    "averages",
    averages,
    reads=("clean_bundle_reports", "clean_broker_reports", "fleet_events"),
    writes=WINDOW_TABLES,
)
