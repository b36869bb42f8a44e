"""Step `balance`: imbalance, time above the thresholds, largest bundles, and the effect of moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.resources import HOT
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.planning.churn import OPERATOR_REASONS, MoveMemory, noted
from loadmanager.core.planning.plan_effect import UNEVEN
from loadmanager.core.planning.repeated_moves import is_again, is_back
from loadmanager.history.table_schemas import MOVES, ORDER
from loadmanager.pipeline.attribution import SHORTEST_MS, window_of
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.step import Step
from loadmanager.pipeline.windows import SHORTEST_S, throughput

if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun

_DAY_S = 86_400
_HOTTEST = 20
_SETTLED_AFTER = 2
"""Windows from the end of a move until reports show its effect."""


def _write_balance(run: JobRun) -> None:
    windows, overloaded = run.read("broker_windows"), run.recorded.overloaded
    run.write("imbalance", imbalance(windows, overloaded))
    even = run.read("imbalance")
    run.write("time_above", time_above(even, windows, overloaded=overloaded))
    run.write("hot_bundles", hot_bundles(run.read("bundle_windows")))
    if run.history.files(MOVES):
        moves = run.history.frame(MOVES)
        run.write("flapping", flapping(moves, run.recorded.settings.planner_settings()))
        run.write("move_effects", move_effects(moves, even))
    else:
        run.clear("flapping")
        run.clear("move_effects")
    run.write("inconsistent_brokers", inconsistent_brokers(run.read("totals_compared")))


STEP = Step(
    "balance",
    _write_balance,
    reads=("broker_windows", "bundle_windows", "totals_compared"),
    writes=("imbalance", "time_above", "hot_bundles", "flapping", "move_effects", "inconsistent_brokers"),
)


def imbalance(broker_windows: DataFrame, overloaded: float, threshold: float = UNEVEN) -> DataFrame:
    """Return the imbalance in each 5-minute window that has a broker.

    Load is bytes/s, in and out together. Each broker is weighted by the time for which it was registered.
    """
    rows = _of_length(broker_windows, SHORTEST_S).select(
        *("start_ms", "broker", "covered_s", "mean_usage"),
        throughput("mean_").alias("load"),
    )
    total = f.sum(f.col("load") * f.col("covered_s"))
    at_once = Window.partitionBy("start_ms")
    mean = total.over(at_once) / f.sum("covered_s").over(at_once)
    off = f.col("load") - f.col("mean")
    known = f.col("mean_usage").isNotNull()
    deviation = f.sqrt(f.sum(off * off * f.col("covered_s")) / f.sum("covered_s"))
    found = (
        rows.withColumn("mean", mean)
        .groupBy("start_ms")
        .agg(
            f.count("*").alias("brokers"),
            f.max("covered_s").alias("covered_s"),
            (total / f.max("covered_s")).alias("load"),
            f.when(f.max("mean") > 0, f.max("load") / f.max("mean")).otherwise(1.0).alias("max_over_mean"),
            f.when(f.max("mean") > 0, deviation / f.max("mean")).otherwise(0.0).alias("cv"),
            f.min_by("broker", f.struct(-f.col("load"), "broker")).alias("worst_broker"),
            f.max("mean_usage").alias("worst_usage"),
            f.min_by("broker", f.when(known, f.struct(-f.col("mean_usage"), "broker"))).alias("worst_used_broker"),
            f.count_if(f.col("mean_usage") > overloaded).alias("overloaded_brokers"),
        )
    )
    return found.withColumn("above_threshold", f.col("max_over_mean") > threshold)


def time_above(
    imbalances: DataFrame, broker_windows: DataFrame, threshold: float = UNEVEN, overloaded: float = HOT
) -> DataFrame:
    """Sum the time of uneven load and of overloaded brokers, and the observed time."""
    of_cluster = _time_above(imbalances, "imbalance", f.lit("cluster"), f.col("max_over_mean"), threshold)
    used = _of_length(broker_windows, SHORTEST_S).where(f.col("mean_usage").isNotNull())
    of_brokers = _time_above(used, "usage", f.col("broker"), f.col("mean_usage"), overloaded)
    return of_cluster.unionByName(of_brokers)


def hot_bundles(bundle_windows: DataFrame, most: int = _HOTTEST) -> DataFrame:
    """Rank the bundles of each day by load."""
    daily = _daily_load(bundle_windows)
    day = Window.partitionBy("start_ms")
    figures = {
        "share": _share(f.col("load"), f.sum("load").over(day)),
        "times_mean": _share(f.col("load"), f.avg("load").over(day)),
        "rank": f.row_number().over(day.orderBy(f.desc("load"), "bundle")),
    }
    return daily.withColumns(figures).where((f.col("rank") <= most) & (f.col("load") > 0))


def flapping(moves: DataFrame, settings: PlannerSettings) -> DataFrame:
    """Count moves, returns and thrash of each bundle, by the rules of the leader (`core.planning.churn`)."""
    detail = {
        name: f.get_json_object("detail", f"$.{name}") for name in ("share", "isOwn", "atS", "source", "destination")
    }
    by_itself = ~f.coalesce(f.col("reason"), f.lit("")).isin(*(reason.value for reason in OPERATOR_REASONS))
    done = moves.where(f.col("kind") == "done").select(
        *("bundle", "at_ms", *ORDER, "source", "destination"),
        f.coalesce(detail["share"].cast("double"), f.lit(0.0)).alias("share"),
        f.coalesce(detail["isOwn"].cast("boolean"), by_itself).alias("is_own"),
        f.coalesce(detail["atS"].cast("double"), f.col("at_ms") / 1000).alias("at_s"),
        *(_incarnation(detail[end]).alias(f"{end}_incarnation") for end in ("source", "destination")),
    )

    def counted(of_bundle: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([_counted(of_bundle.sort_values(list(ORDER)), settings)])

    return done.groupBy("bundle").applyInPandas(counted, schema_of("flapping"))


def move_effects(moves: DataFrame, imbalances: DataFrame) -> DataFrame:
    """Compare the predicted and the measured imbalance of each move. The error is measured minus predicted.

    The measurement comes from the leader, or else from the windows before and after the move.
    """
    windows = imbalances.select("start_ms", f.col("max_over_mean").alias("seen"))
    before, after = (windows.toDF(f"{when}_ms", f"window_{when}") for when in ("before", "after"))
    began = _moves_with_ends(moves).withColumns(
        {
            "before_ms": window_of(f.col("at_ms"), SHORTEST_MS) - SHORTEST_MS,
            "after_ms": window_of(f.coalesce("until_ms", "at_ms"), SHORTEST_MS) + _SETTLED_AFTER * SHORTEST_MS,
        }
    )
    seen = began.join(before, "before_ms", "left").join(after, "after_ms", "left")
    by_leader, by_windows = f.col("leader_after").isNotNull(), f.col("window_after").isNotNull()
    measured_after = f.coalesce("leader_after", "window_after")
    return seen.select(
        *ORDER,
        "bundle",
        "source",
        f.coalesce("taken_by", "destination").alias("destination"),
        "reason",
        f.col("ended_as").alias("outcome"),
        "at_ms",
        throughput().alias("load"),
        f.col("imbalance_before").alias("predicted_before"),
        f.col("imbalance_after").alias("predicted_after"),
        f.when(by_leader, f.col("leader_before")).otherwise(f.col("window_before")).alias("measured_before"),
        measured_after.alias("measured_after"),
        f.when(by_leader, "leader").when(by_windows, "windows").alias("measured_by"),
        (measured_after - f.col("imbalance_after")).alias("error"),
    )


def _moves_with_ends(moves: DataFrame) -> DataFrame:
    """Join the start of each move with its end and the leader's measurement, where known."""
    key = "epoch", f.col("move").alias("sequence")
    ended = moves.where(f.col("kind").isin("done", "kept")).select(
        *key,
        f.col("outcome").alias("ended_as"),
        f.col("ended_ms").alias("until_ms"),
        f.col("destination").alias("taken_by"),
    )
    measured = moves.where(f.col("kind") == "measured").select(
        *key,
        f.col("imbalance_before").alias("leader_before"),
        f.col("imbalance_after").alias("leader_after"),
    )
    began = moves.where(f.col("kind") == "began")
    return began.join(ended, list(ORDER), "left").join(measured, list(ORDER), "left")


def inconsistent_brokers(totals_compared: DataFrame) -> DataFrame:
    """Find brokers whose totals differ from the sum over their bundles."""
    of_worst = ("epoch", "sequence", "at_ms", "reported", "summed")
    worst = f.max(f.struct("worst_difference", *of_worst)).alias("worst")
    sums = [f.sum(name).alias(name) for name in ("reports", "inconsistent")]
    found = totals_compared.groupBy("broker", "what").agg(*sums, worst).where(f.col("inconsistent") > 0)
    return found.select("broker", "what", "reports", "inconsistent", "worst.*").drop(*ORDER)


def _of_length(windows: DataFrame, window_s: int) -> DataFrame:
    return windows.where(f.col("window_s") == window_s)


def _share(part: Column, whole: Column) -> Column:
    return f.when(whole > 0, part / whole).otherwise(0.0)


def _time_above(frame: DataFrame, what: str, subject: Column, figure: Column, threshold: float) -> DataFrame:
    counted = frame.groupBy(subject.alias("subject")).agg(
        f.sum(f.when(figure > threshold, f.col("covered_s")).otherwise(0.0)).alias("above_s"),
        f.sum("covered_s").alias("observed_s"),
    )
    return counted.select(
        f.lit(what).alias("what"),
        "subject",
        f.lit(threshold).alias("threshold"),
        *("above_s", "observed_s"),
        (f.col("above_s") / f.col("observed_s")).alias("share"),
    )


def _daily_load(bundle_windows: DataFrame) -> DataFrame:
    """Return the load of each bundle and day, weighted by the part of the day that it covers."""
    there = f.max("covered_s").over(Window.partitionBy("start_ms"))
    part = f.col("covered_s") / there
    rate = f.col("mean_msg_rate_in") + f.col("mean_msg_rate_out")
    return _of_length(bundle_windows, _DAY_S).select(
        *("start_ms", "bundle", "namespace"),
        (throughput("mean_") * part).alias("load"),
        (rate * part).alias("msg_rate"),
    )


def _incarnation(registration: Column) -> Column:
    """Read the incarnation from `[broker, incarnation]` as JSON; 0 when unknown."""
    return f.coalesce(f.get_json_object(registration, "$[1]").cast("long"), f.lit(0))


def _counted(moves: pd.DataFrame, settings: PlannerSettings) -> dict[str, Any]:
    state: dict[str, Any] = {}
    returns, thrash, again = 0, 0.0, 0.0
    for move in moves.itertuples():
        destination = None
        if move.destination is not None:
            destination = Registration(BrokerId(move.destination), move.destination_incarnation)
        source = Registration(BrokerId(move.source), move.source_incarnation)
        state, _ = noted(
            state, move.bundle, source, destination, move.share, settings, at_s=move.at_s, is_own=move.is_own
        )
        last = MoveMemory.of(state).moves[-1]
        again += last.share if last.is_own and is_again(last) else 0.0
        if is_back(last):
            returns += 1
            thrash += last.share if last.is_own else 0.0
    return {
        "bundle": moves["bundle"].iloc[0],
        "moves": len(moves),
        "own_moves": int(moves["is_own"].sum()),
        "returns": returns,
        "thrash": thrash,
        "moved_again": again,
        "moved_share": float(moves["share"].sum()),
        "first_ms": int(moves["at_ms"].min()),
        "last_ms": int(moves["at_ms"].max()),
    }
