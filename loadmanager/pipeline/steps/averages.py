"""The step `averages`: who carried what, windows per bundle, broker and namespace of it, the leader's running means."""

from __future__ import annotations

from loadmanager.pipeline.averages import (
    carried,
    running_means,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
    with_longer,
)
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.standing import standing
from loadmanager.pipeline.step import Step


def averages(run: JobRun) -> None:
    bundles, brokers = run.read("clean_bundle_reports"), run.read("clean_broker_reports")
    reports = standing(brokers, run.history.frame("events"), run.end_ms)
    run.write("carried", carried(bundles, reports))
    pieces = run.read("carried")
    for name, short in (
        ("bundle_windows", short_bundle_windows(pieces)),
        ("broker_windows", short_broker_windows(brokers, reports, pieces)),
        ("namespace_windows", short_namespace_windows(pieces)),
    ):
        kept = short.persist()  # each length is made of it
        try:
            run.write(name, with_longer(name, kept))
        finally:
            kept.unpersist()
    run.write("running_means", running_means(bundles))


STEP = Step(
    "averages",
    averages,
    reads=("clean_bundle_reports", "clean_broker_reports"),
    writes=("carried", "bundle_windows", "broker_windows", "namespace_windows", "running_means"),
)
