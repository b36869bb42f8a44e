"""The step `ingest`: typed, cleaned, de-duplicated reports; what was rejected is kept with its reason."""

from __future__ import annotations

from loadmanager.pipeline.ingest import clean_broker_reports, clean_bundle_reports, rejected_rows
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.reading import read_leaving_out
from loadmanager.pipeline.step import Step


def ingest(run: JobRun) -> None:
    read_leaving_out(run.history, lambda: _ingest(run))
    for fault in run.history.faults:
        run.note(f"left out: {fault.path}: {fault.why}")


def _ingest(run: JobRun) -> None:
    run.summary.from_ms, run.summary.to_ms = run.history.range
    rejected = {}
    for name, clean in (("broker_reports", clean_broker_reports), ("bundle_reports", clean_bundle_reports)):
        cleaned = clean(*run.history.to_clean(name))
        run.write(f"clean_{name}", cleaned.clean)
        run.write(f"rejected_{name}", cleaned.find_rejected())
        rejected[name] = run.read(f"rejected_{name}")
    run.write("rejected_rows", rejected_rows(rejected, run.history.faults))


STEP = Step(
    "ingest",
    ingest,
    writes=(
        "clean_broker_reports",
        "rejected_broker_reports",
        "clean_bundle_reports",
        "rejected_bundle_reports",
        "rejected_rows",
    ),
)
