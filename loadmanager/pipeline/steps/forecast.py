"""The step `forecast`: what bundles and namespaces will carry, and how wrong such forecasts were so far."""

from __future__ import annotations

from loadmanager.pipeline.forecast.frames import backtest, forecast_runs, forecasts
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.step import Step


def forecast(run: JobRun) -> None:
    run.require_days()
    bundles = forecast_runs(run.read("bundle_windows"), "bundle")
    runs = bundles.unionByName(forecast_runs(run.read("namespace_windows"), "namespace")).persist()
    try:
        run.write("backtest", backtest(runs))
        run.write("forecasts", forecasts(runs))
    finally:
        runs.unpersist()


STEP = Step(
    "forecast",
    forecast,
    reads=("broker_windows", "bundle_windows", "namespace_windows"),
    writes=("backtest", "forecasts"),
)
