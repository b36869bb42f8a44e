"""The step `advice`: what the history suggests to change."""

from __future__ import annotations

from loadmanager.pipeline.advice.frames import AdviceTables, advice
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.step import Step


def advise(run: JobRun) -> None:
    run.require_days()
    read = run.read
    tables = AdviceTables(
        read("bundle_windows"), read("broker_windows"), read("reported_by"), read("clean_broker_reports")
    )
    run.write("advice", advice(tables, run.recorded.settings.planner_settings()))


STEP = Step(
    "advice",
    advise,
    reads=("broker_windows", "bundle_windows", "clean_broker_reports", "reported_by"),
    writes=("advice",),
)
