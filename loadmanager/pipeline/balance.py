"""For how long the load was uneven, who was too busy, what moved to and fro, and whether moves brought what they
promised. How even it was in each 5 minutes is said in `evenness`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.churn import AT_AN_OPERATORS_WORD, Memory, noted
from loadmanager.core.effect import UNEVEN
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Registration
from loadmanager.core.repeats import is_again, is_back
from loadmanager.core.resources import HOT
from loadmanager.core.settings import PlannerSettings
from loadmanager.history.schemas import ORDER
from loadmanager.pipeline.averages import SHORTEST_S
from loadmanager.pipeline.datasets import require, schema_of

_DAY_S = 86_400
_SHORTEST_MS = SHORTEST_S * 1000
_HOTTEST = 20
_SETTLED_AFTER = 2
"""Windows from the end of a move to the one in which brokers' reports have followed it."""


def time_above(
    imbalances: DataFrame,
    broker_windows: DataFrame,
    threshold: float = UNEVEN,
    overloaded: float = HOT,
) -> DataFrame:
    """For how long the cluster was uneven, and each broker too busy, of the time that was observed."""
    of_cluster = _time_above(imbalances, "imbalance", f.lit("cluster"), f.col("max_over_mean"), threshold)
    used = _of_length(broker_windows, SHORTEST_S)
    of_brokers = _time_above(used, "usage", f.col("broker"), f.col("mean_usage"), overloaded)
    return require(of_cluster.unionByName(of_brokers), "time_above")


def hot_bundles(bundle_windows: DataFrame, most: int = _HOTTEST) -> DataFrame:
    """The bundles of each day with the most load."""
    daily = _daily_load(bundle_windows)
    day = Window.partitionBy("start_ms")
    ranked = daily.withColumns(
        {
            "share": _share(f.col("load"), f.sum("load").over(day)),
            "times_mean": _share(f.col("load"), f.avg("load").over(day)),
            "rank": f.row_number().over(day.orderBy(f.desc("load"), "bundle")),
        }
    )
    ranked = ranked.where((f.col("rank") <= most) & (f.col("load") > 0))
    return require(ranked, "hot_bundles")


def namespace_skew(bundle_windows: DataFrame) -> DataFrame:
    """How unevenly the load of each namespace is spread over its bundles, day by day."""
    daily = _daily_load(bundle_windows).groupBy("start_ms", "namespace")
    totals = daily.agg(
        f.count(f.lit(1)).alias("bundles"),
        f.sum("load").alias("load"),
        f.max("load").alias("highest"),
        f.avg("load").alias("mean"),
        f.stddev_pop("load").alias("deviation"),
        _with_most("load", "bundle").alias("hottest_bundle"),
    )
    is_idle = f.col("mean") <= 0
    return require(
        totals.select(
            *("start_ms", "namespace", "bundles", "load", "hottest_bundle"),
            f.when(is_idle, 1.0).otherwise(f.col("highest") / f.col("mean")).alias("max_over_mean"),
            f.when(is_idle, 0.0).otherwise(f.col("deviation") / f.col("mean")).alias("cv"),
            _share(f.col("highest"), f.col("load")).alias("hottest_share"),
        ),
        "namespace_skew",
    )


def flapping(moves: DataFrame, settings: PlannerSettings | None = None) -> DataFrame:
    """What each bundle did that moved; returns and thrash are counted as the leader does, by `core.churn`."""
    rules = settings or PlannerSettings()
    detail = {
        name: f.get_json_object("detail", f"$.{name}") for name in ("share", "isOwn", "atS", "source", "destination")
    }
    by_itself = ~f.coalesce(f.col("reason"), f.lit("")).isin(*(reason.value for reason in AT_AN_OPERATORS_WORD))
    done = moves.where(f.col("kind") == "done").select(
        *("bundle", "at_ms", *ORDER, "source", "destination"),
        f.coalesce(detail["share"].cast("double"), f.lit(0.0)).alias("share"),
        f.coalesce(detail["isOwn"].cast("boolean"), by_itself).alias("is_own"),
        f.coalesce(detail["atS"].cast("double"), f.col("at_ms") / 1000).alias("at_s"),
        *(_incarnation(detail[end]).alias(f"{end}_incarnation") for end in ("source", "destination")),
    )

    def counted(of_bundle: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame([_counted(of_bundle.sort_values(list(ORDER)), rules)])

    return require(done.groupBy("bundle").applyInPandas(counted, schema_of("flapping")), "flapping")


def move_effects(moves: DataFrame, imbalances: DataFrame) -> DataFrame:
    """What each move was predicted to bring, and what was measured: by the leader, else from the windows before and
    after it. The error is the imbalance afterwards as measured, less that predicted.
    """
    windows = imbalances.select("start_ms", f.col("max_over_mean").alias("seen"))
    before, after = (windows.toDF(f"{when}_ms", f"window_{when}") for when in ("before", "after"))
    began = _moves_with_ends(moves).withColumns(
        {
            "before_ms": _window_of(f.col("at_ms")) - _SHORTEST_MS,
            "after_ms": _window_of(f.coalesce("until_ms", "at_ms")) + _SETTLED_AFTER * _SHORTEST_MS,
        }
    )
    seen = began.join(before, "before_ms", "left").join(after, "after_ms", "left")
    by_leader = f.col("leader_after").isNotNull()
    by_windows = f.col("window_after").isNotNull()
    measured_after = f.coalesce("leader_after", "window_after")
    return require(
        seen.select(
            *ORDER,
            "bundle",
            "source",
            f.coalesce("taken_by", "destination").alias("destination"),
            "reason",
            f.col("ended_as").alias("outcome"),
            "at_ms",
            (f.col("msg_throughput_in") + f.col("msg_throughput_out")).alias("load"),
            f.col("imbalance_before").alias("predicted_before"),
            f.col("imbalance_after").alias("predicted_after"),
            f.when(by_leader, f.col("leader_before")).otherwise(f.col("window_before")).alias("measured_before"),
            measured_after.alias("measured_after"),
            f.when(by_leader, "leader").when(by_windows, "windows").alias("measured_by"),
            (measured_after - f.col("imbalance_after")).alias("error"),
        ),
        "move_effects",
    )


def _moves_with_ends(moves: DataFrame) -> DataFrame:
    """Each move that began, with how it ended and what the leader measured, where that is known."""
    ended = moves.where(f.col("kind").isin("done", "kept")).select(
        "epoch",
        f.col("move").alias("sequence"),
        f.col("outcome").alias("ended_as"),
        f.col("ended_ms").alias("until_ms"),
        f.col("destination").alias("taken_by"),
    )
    measured = moves.where(f.col("kind") == "measured").select(
        "epoch",
        f.col("move").alias("sequence"),
        f.col("imbalance_before").alias("leader_before"),
        f.col("imbalance_after").alias("leader_after"),
    )
    began = moves.where(f.col("kind") == "began")
    return began.join(ended, list(ORDER), "left").join(measured, list(ORDER), "left")


def inconsistent_brokers(totals_compared: DataFrame) -> DataFrame:
    """Brokers that report other totals than their bundles add up to, of all hours together."""
    of_worst = ("epoch", "sequence", "at_ms", "reported", "summed")
    worst = f.max(f.struct("worst_difference", *of_worst)).alias("worst")
    sums = [f.sum(name).alias(name) for name in ("reports", "inconsistent")]
    found = totals_compared.groupBy("broker", "what").agg(*sums, worst).where(f.col("inconsistent") > 0)
    return require(
        found.select("broker", "what", "reports", "inconsistent", "worst.*").drop(*ORDER), "inconsistent_brokers"
    )


def _load() -> Column:
    return f.col("mean_msg_throughput_in") + f.col("mean_msg_throughput_out")


def _of_length(windows: DataFrame, window_s: int) -> DataFrame:
    return windows.where(f.col("window_s") == window_s)


def _window_of(at_ms: Column) -> Column:
    return (f.floor(at_ms / _SHORTEST_MS) * _SHORTEST_MS).cast("long")


def _with_most(figure: str, name: str) -> Column:
    """The first by name of those with the highest figure."""
    return f.min_by(name, f.struct(-f.col(figure), name))


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
    """The load of each bundle and day; one that was there for a part of the day counts for that part."""
    there = f.max("covered_s").over(Window.partitionBy("start_ms"))
    part = f.col("covered_s") / there
    rate = f.col("mean_msg_rate_in") + f.col("mean_msg_rate_out")
    return _of_length(bundle_windows, _DAY_S).select(
        *("start_ms", "bundle", "namespace"), (_load() * part).alias("load"), (rate * part).alias("msg_rate")
    )


def _incarnation(registration: Column) -> Column:
    """Of `[broker, incarnation]` as JSON; 0 when it is not known."""
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
        last = Memory.of(state).moves[-1]
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
