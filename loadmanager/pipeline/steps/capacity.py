"""The step `capacity`: what load costs a broker, and so how many brokers the next days need."""

from __future__ import annotations

from loadmanager.pipeline.capacity import capacity
from loadmanager.pipeline.costs import cost_models, known_cost
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.registered import registered
from loadmanager.pipeline.step import NothingToSay, Step


def plan_capacity(run: JobRun) -> None:
    reports = run.read("clean_broker_reports")
    run.write("cost_models", cost_models(reports))
    run.require_days()
    there = registered(reports, run.read("fleet_events"), run.end_ms)
    cost = known_cost(run.read_rows("cost_models"))
    planned = capacity(run.read("broker_windows"), reports, there, run.job.aim, cost, run.recorded.domains or None)
    if planned.why:
        raise NothingToSay(planned.why)
    run.write_pandas("capacity", planned.rows)


STEP = Step(
    "capacity",
    plan_capacity,
    reads=("clean_broker_reports", "fleet_events", "broker_windows"),
    writes=("cost_models", "capacity"),
)
