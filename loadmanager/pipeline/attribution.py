"""Attribution of load to brokers over time: validity of reports, and ownership intervals of bundles.

docs/pipeline.md, under "Windows", lists what ends the validity of a report. One broker carries a bundle at a time, so
load is counted once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.history.files import HOUR_MS
from loadmanager.history.gaps import IMPORTED, TERM_BEGAN, TERM_ENDED
from loadmanager.history.table_schemas import KEYS, LOAD_COLUMNS
from loadmanager.pipeline.datasets import frame_of

VALID_MS = 900_000
"""The longest time for which a report is valid."""

SHORTEST_MS = 300_000
FIGURES = (*LOAD_COLUMNS, "topics", "sessions")
BUNDLE = ("namespace", "range_lower", "range_upper")

BROKER_GONE, BROKER_REGISTERED = "broker_gone", "broker_registered"
FLEET_EVENTS = (BROKER_GONE, BROKER_REGISTERED, TERM_BEGAN, TERM_ENDED)
"""Kinds of events that end reports, or say which brokers there are."""

_EPOCHS = t.StructType().add("epoch", "long").add("epoch_end_ms", "long")
_UNTIL_NOW = (Window.unboundedPreceding, Window.currentRow)
_BEFORE = (Window.unboundedPreceding, -1)


def epoch_ends(first_ms: Mapping[tuple[str, int], int], epochs: Iterable[int], end_ms: int) -> dict[int, int]:
    """Return when reports of each epoch end at the latest: with its term, or with the history at `end_ms`.

    `first_ms` has the time of the first event by kind and epoch.
    """
    ends, next_ms = dict[int, int](), end_ms
    for epoch in sorted({*epochs, *(epoch for _, epoch in first_ms)}, reverse=True):
        ends[epoch] = end_ms if epoch == IMPORTED else min(first_ms.get((TERM_ENDED, epoch), next_ms), end_ms)
        next_ms = first_ms.get((TERM_BEGAN, epoch), next_ms)
    return ends


def valid_reports(broker_reports: DataFrame, events: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """Add the end of validity to broker reports: `until_ms` for the broker, `ends_ms` for its bundles.

    `ends_ms` does not consider later reports of the bundles. Reports after the end of their epoch are dropped.
    """
    gone = events.where(f.col("kind") == BROKER_GONE).selectExpr(*KEYS, "subject AS broker", "at_ms AS gone_ms")
    epochs = frame_of(events.sparkSession, _EPOCHS, ends.items())
    both = broker_reports.unionByName(gone, allowMissingColumns=True).join(f.broadcast(epochs), "epoch")
    backwards = Window.partitionBy("broker").orderBy(*(f.desc(name) for name in KEYS))
    followed = both.where("at_ms <= epoch_end_ms").select(
        "*",
        f.lag("at_ms").over(backwards).alias("next_ms"),
        f.last("gone_ms", ignorenulls=True).over(backwards.rowsBetween(*_BEFORE)).alias("next_gone_ms"),
    )
    ends_ms = f.least(f.col("at_ms") + VALID_MS, "next_gone_ms", "epoch_end_ms")
    ended = followed.where("gone_ms IS NULL").withColumn("ends_ms", ends_ms)
    return ended.withColumn("until_ms", f.least("ends_ms", "next_ms")).drop(
        "gone_ms", "next_ms", "next_gone_ms", "epoch_end_ms"
    )


def ownership_intervals(bundle_reports: DataFrame, valid: DataFrame, hours: Collection[int]) -> DataFrame:
    """Return the intervals for which a broker had a bundle, cut at the 5-minute windows of these hours.

    Columns: `BUNDLE`, `broker`, `start_ms` of the window, `from_ms` and `covered_ms` within it, `n` reports received,
    `first_ms` and `last_ms` of these, the figures integrated over time (load times ms), and the highest reported load.
    """
    reports = bundle_reports.select(*KEYS, *BUNDLE, *FIGURES).join(valid.select(*KEYS, "broker", "ends_ms"), list(KEYS))
    pairs = f.broadcast(overlaps(bundle_reports.select(*BUNDLE).distinct()))
    overlapping = reports.select(*KEYS, *BUNDLE).join(pairs, list(BUNDLE))
    others = overlapping.select(*KEYS, "namespace", "other_lower", "other_upper").toDF(*KEYS, *BUNDLE)
    rows = reports.unionByName(others, allowMissingColumns=True)
    # Sort by a hash first, since numbers compare faster than names. Order by plain columns: Spark sorts again for each
    # window function that is ordered by an expression.
    in_turn = Window.partitionBy("hash", *BUNDLE).orderBy(*KEYS, f.desc("is_other"))
    ordered = rows.withColumns({"hash": f.xxhash64(*BUNDLE), "is_other": f.col("broker").isNull()})
    is_same = f.lag("broker").over(in_turn).eqNullSafe(f.col("broker"))
    goes_on = is_same & (f.lag("ends_ms").over(in_turn) >= f.col("at_ms"))
    followed = ordered.withColumns({"next_ms": f.lead("at_ms").over(in_turn), "goes_on": goes_on})
    interval = f.count_if(~f.col("goes_on")).over(in_turn.rowsBetween(*_UNTIL_NOW))
    numbered = followed.withColumn("interval", interval).where("NOT is_other")
    rows = by_window(numbered.withColumn("until_ms", f.least("ends_ms", "next_ms")), hours)
    came_ms = f.when(f.col("at_ms") >= f.col("start_ms"), f.col("at_ms"))
    return rows.groupBy("hash", *BUNDLE, "broker", "interval", "start_ms").agg(
        f.min(f.greatest("at_ms", "start_ms")).alias("from_ms"),
        f.sum("valid_ms").alias("covered_ms"),
        f.count(came_ms).alias("n"),
        f.min(came_ms).alias("first_ms"),
        f.max(came_ms).alias("last_ms"),
        *(f.sum(f.col(name).cast("double") * f.col("valid_ms")).alias(name) for name in FIGURES),
        *(
            f.max(f.when(f.col("valid_ms") > 0, f.col(name).cast("double"))).alias(f"max_{name}")
            for name in LOAD_COLUMNS
        ),
    )


def by_window(rows: DataFrame, hours: Collection[int]) -> DataFrame:
    """Repeat each row for every 5-minute window (`start_ms`) in which it arrived or was valid, and add `valid_ms`."""
    first = f.floor(f.col("at_ms") / SHORTEST_MS)
    last = f.floor(f.greatest("at_ms", f.col("until_ms") - 1) / SHORTEST_MS)
    windows = rows.withColumn("window", f.explode(f.sequence(first, last)))
    start_ms = f.col("window") * SHORTEST_MS
    valid_ms = f.least("until_ms", f.col("start_ms") + SHORTEST_MS) - f.greatest("at_ms", "start_ms")
    placed = windows.withColumn("start_ms", start_ms).where(hour_of("start_ms").isin(*hours))
    return placed.withColumn("valid_ms", valid_ms).drop("window")


def window_of(at_ms: Column, length_ms: Column | int) -> Column:
    """Return the start of the window that contains a time."""
    return (f.floor(at_ms / length_ms) * length_ms).cast("long")


def hour_of(at_ms: str) -> Column:
    """Return the start of the hour that contains a time."""
    return window_of(f.col(at_ms), HOUR_MS)


def overlaps(ranges: DataFrame) -> DataFrame:
    """Return pairs of bundles that share hashes: `BUNDLE` of one, `other_lower` and `other_upper` of the other.

    Ranges sorted by their start are grouped into islands: a new one begins where a range starts at or after the highest
    end so far. Only pairs within an island can overlap, and an island has the parts of one bundle.
    """
    by_lower = Window.partitionBy("namespace").orderBy("range_lower", "range_upper")
    reached = f.max("range_upper").over(by_lower.rowsBetween(*_BEFORE))
    begins = ranges.withColumn("begins", reached.isNull() | (reached <= f.col("range_lower")))
    island = f.count_if("begins").over(by_lower.rowsBetween(*_UNTIL_NOW)).alias("island")
    ones = begins.select(*BUNDLE, island)
    others = ones.toDF("namespace", "other_lower", "other_upper", "island")
    is_other = (f.col("range_lower") != f.col("other_lower")) | (f.col("range_upper") != f.col("other_upper"))
    shares = (f.col("range_lower") < f.col("other_upper")) & (f.col("other_lower") < f.col("range_upper"))
    return ones.join(others, ["namespace", "island"]).where(is_other & shares).drop("island")
