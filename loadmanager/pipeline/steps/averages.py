"""The step `averages`: who carried what, windows per bundle, broker and namespace of it, how even they were, and the
leader's running means.
"""

from __future__ import annotations

from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.keeping_up import WINDOW_TABLES
from loadmanager.pipeline.running_means import MEANS
from loadmanager.pipeline.step import Step


def averages(run: JobRun) -> None:
    run.keeping_up.average(run.end_ms, run.recorded.overloaded)
    run.keeping_up.go_on_with_means()
    run.kept(*WINDOW_TABLES, MEANS)


STEP = Step(
    "averages",
    averages,
    reads=("clean_bundle_reports", "clean_broker_reports", "fleet_events"),
    writes=(*WINDOW_TABLES, MEANS),
)
