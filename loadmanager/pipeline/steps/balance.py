"""The step `balance`: how even the load was, and what moving bundles did."""

from __future__ import annotations

from loadmanager.history.schemas import MOVES
from loadmanager.pipeline.balance import (
    flapping,
    hot_bundles,
    inconsistent_brokers,
    move_effects,
    namespace_skew,
    time_above,
)
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.step import Step


def balance(run: JobRun) -> None:
    read, write = run.read, run.write
    planner = run.recorded.settings.planner_settings()
    windows, even = read("broker_windows"), read("imbalance")
    write("time_above", time_above(even, windows, overloaded=run.recorded.overloaded))
    write("hot_bundles", hot_bundles(read("bundle_windows")))
    write("namespace_skew", namespace_skew(read("bundle_windows")))
    if run.history.files(MOVES):
        moves = run.history.frame(MOVES)
        write("flapping", flapping(moves, planner))
        write("move_effects", move_effects(moves, even))
    else:
        run.clear("flapping")
        run.clear("move_effects")
    write("inconsistent_brokers", inconsistent_brokers(read("totals_compared")))


STEP = Step(
    "balance",
    balance,
    reads=("broker_windows", "imbalance", "bundle_windows", "totals_compared"),
    writes=(
        "time_above",
        "hot_bundles",
        "namespace_skew",
        "flapping",
        "move_effects",
        "inconsistent_brokers",
    ),
)
