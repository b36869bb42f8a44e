"""For how long what was reported stands: the rule that all windows follow.

What a report says of a bundle stands from when it came until the first of these:

- anybody's next report of this bundle, or of one that has hashes in common with it: it was split or merged
- `broker_gone` of the broker that reported it
- the end of its leader's term: `term_ended`, or for want of it the next `term_began`
- the end of the range
- 15 minutes have passed: a broker reports at least so often

So a bundle is carried by one broker at a time, and what it carries is counted once. What a report says of the broker
itself, its resources, stands likewise until the broker's next report.

What comes later is what (`at_ms`, `epoch`, `sequence`) say; of reports of one millisecond the last one stands. What
a leader recorded after the end of its term is left out: the next one records the same. What was imported (epoch 0) has
no term.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.load import BoolArray
from loadmanager.core.names import HASH_SPACE_END
from loadmanager.history.gaps import IMPORTED, TERM_BEGAN, TERM_ENDED
from loadmanager.history.schemas import ORDER
from loadmanager.pipeline.schemas import BUNDLE_KEY, namespace_hash, packed_bounds

STANDS_MS = 900_000
"""How long a report stands at the most."""

BROKER_GONE, BROKER_REGISTERED = "broker_gone", "broker_registered"
FLEET_EVENTS = (BROKER_GONE, BROKER_REGISTERED, TERM_BEGAN, TERM_ENDED)
"""The kinds of events that say for how long reports stand, and who is there."""

_TIME = ("at_ms", *ORDER)
_EPOCH_BITS = 40
"""Where the epoch begins in the number of a report: there is room for 8 million leaders and 10^12 sequences of each."""


def standing(broker_reports: DataFrame, events: DataFrame, end_ms: int) -> DataFrame:
    """Each report that stands, with `at_ms`, `broker` and until when: `until_ms` of itself, and what it says of bundles
    until `ends_ms` if nobody reports them before.

    From `clean_broker_reports` and the history's `events` (`FLEET_EVENTS` are enough) of the same range, which ends
    before `end_ms`.
    """
    reports = broker_reports.select(*_TIME, "broker", f.lit(0).alias("is_end"))
    gone = events.where(f.col("kind") == BROKER_GONE).select(
        *_TIME, f.col("subject").alias("broker"), f.lit(1).alias("is_end")
    )
    backwards = Window.partitionBy("broker").orderBy(*(f.desc(name) for name in _TIME))
    gone_ms = f.last(f.when(f.col("is_end") == 1, f.col("at_ms")), ignorenulls=True)
    seen = reports.unionByName(gone).withColumns(
        {
            "next_ms": f.lag("at_ms").over(backwards),
            "gone_ms": gone_ms.over(backwards.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )
    ends = f.broadcast(terms(broker_reports.select("epoch"), events))
    of_terms = seen.where(f.col("is_end") == 0).join(ends, "epoch", "left")
    in_term = of_terms.where(f.col("term_ms").isNull() | (f.col("at_ms") <= f.col("term_ms")))
    ends_ms = f.least(f.col("at_ms") + STANDS_MS, "gone_ms", "term_ms", f.lit(end_ms).cast("long"))
    return in_term.select(*_TIME, "broker", f.least(ends_ms, "next_ms").alias("until_ms"), ends_ms.alias("ends_ms"))


def registered(broker_reports: DataFrame, events: DataFrame, end_ms: int) -> DataFrame:
    """Each `broker` that is there before `end_ms`: it has reported, or registered, and not gone since. One that was
    silent for as long as two reports stand has gone unseen.
    """
    is_there = f.when(f.col("kind") == BROKER_GONE, 0).otherwise(1).alias("is_there")
    told = events.where(f.col("kind").isin(BROKER_GONE, BROKER_REGISTERED))
    seen = broker_reports.select(*_TIME, "broker", f.lit(1).alias("is_there")).unionByName(
        told.select(*_TIME, f.col("subject").alias("broker"), is_there)
    )
    last = f.max(f.struct(*_TIME, "is_there")).alias("last")
    lately = (f.col("last.at_ms") >= end_ms - 2 * STANDS_MS) & (f.col("last.is_there") == 1)
    return seen.where(f.col("at_ms") < end_ms).groupBy("broker").agg(last).where(lately).select("broker")


def terms(epochs: DataFrame, events: DataFrame) -> DataFrame:
    """The end of the term of each `epoch`, of these and of the events' own (`term_ms`), null where it is not known."""
    of_reports = epochs.select("epoch", f.lit("").alias("kind"), f.lit(0).cast("long").alias("at_ms")).distinct()
    rows = of_reports.unionByName(events.select("epoch", "kind", "at_ms")).where(f.col("epoch") > IMPORTED)
    began, ended = (f.min(f.when(f.col("kind") == kind, f.col("at_ms"))) for kind in (TERM_BEGAN, TERM_ENDED))
    later = Window.orderBy(f.desc("epoch")).rowsBetween(Window.unboundedPreceding, -1)
    terms = rows.groupBy("epoch").agg(began.alias("began_ms"), ended.alias("ended_ms"))
    next_ms = f.last("began_ms", ignorenulls=True).over(later)
    return terms.select("epoch", f.coalesce("ended_ms", next_ms).alias("term_ms"))


def bundles_seen(bundle_reports: DataFrame) -> pa.Table:
    """Each bundle (`namespace`, its `hash`, `range_lower`, `range_upper`), with the first and the last time that it was
    reported (`first_ms`, `last_ms`).
    """
    bundles = bundle_reports.groupBy(*BUNDLE_KEY).agg(f.min("at_ms").alias("first_ms"), f.max("at_ms").alias("last_ms"))
    return bundles.select("*", namespace_hash()).toArrow()


def bundles_standing(
    bundle_reports: DataFrame, seen: pa.Table, reports: DataFrame, figures: Sequence[str]
) -> DataFrame:
    """The rows of `clean_bundle_reports` whose report is among `reports`, from `at_ms` until `until_ms`; `seen` are the
    bundles of all rows.

    All is numbers, for speed: a bundle is the `hash` of its namespace and its `bounds`, a broker the hash `by`. `stay`
    tells apart the times that a bundle was with one broker without interruption.
    """
    rows = bundle_reports.select(_report(), namespace_hash(), packed_bounds().alias("bounds"), *figures)
    cut = seen.filter(pa.array(_are_cut_anew(seen)))
    if cut.num_rows:
        marks = _reports_of_others(bundle_reports, bundle_reports.sparkSession.createDataFrame(cut))
        nothing = [f.lit(0).cast(kind).alias(name) for name, kind in rows.dtypes if name in figures]
        marked = marks.select("*", *nothing, f.lit(1).alias("is_other"))
        rows = rows.withColumn("is_other", f.lit(0)).unionByName(marked)
    else:
        rows = rows.withColumn("is_other", f.lit(0))
    ends = reports.select(_report(), "at_ms", "ends_ms", f.xxhash64("broker").alias("by"))
    known = _without_nulls(rows).join(_without_nulls(ends), "report")
    in_turn = Window.partitionBy("hash", "bounds").orderBy("at_ms", "report", f.desc("is_other"))
    goes_on = (
        (f.lag("is_other").over(in_turn) == 0)
        & (f.lag("by").over(in_turn) == f.col("by"))
        & (f.lag("ends_ms").over(in_turn) >= f.col("at_ms"))
    )
    until_ms = f.least("ends_ms", f.lead("at_ms").over(in_turn))
    turns = known.withColumns({"until_ms": until_ms, "begins": f.when(goes_on, 0).otherwise(1)})
    stay = f.sum("begins").over(in_turn.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return turns.withColumn("stay", stay).where(f.col("is_other") == 0)


def _are_cut_anew(seen: pa.Table) -> BoolArray:
    """Which of these bundles are of namespaces with bundles that have hashes in common."""
    namespace, lower, upper = (seen.column(name).to_numpy() for name in ("hash", "range_lower", "range_upper"))
    order = np.lexsort((upper, lower, namespace))
    number = np.cumsum(np.diff(namespace[order], prepend=namespace[order][:1]) != 0)
    beyond = number * (HASH_SPACE_END + 1)  # namespaces one behind the other
    reached = np.maximum.accumulate(beyond + upper[order])
    shares = np.zeros(len(order), dtype=bool)
    shares[1:] = (beyond + lower[order])[1:] < reached[:-1]
    return np.isin(namespace, namespace[order][shares])


def _reports_of_others(bundle_reports: DataFrame, cut: DataFrame) -> DataFrame:
    """Of each bundle (`hash`, `bounds`) the `report`s of those that have hashes in common with it, as long as it may
    stand. `cut` are the bundles of namespaces that were cut anew.
    """
    cut = cut.withColumn("bounds", packed_bounds()).drop("namespace")
    other = cut.select("hash", *(f.col(name).alias(f"other_{name}") for name in cut.columns if name != "hash"))
    pairs = cut.join(other, "hash").where(
        (f.col("bounds") != f.col("other_bounds"))
        & (f.col("range_lower") < f.col("other_range_upper"))
        & (f.col("other_range_lower") < f.col("range_upper"))
        & (f.col("first_ms") <= f.col("other_last_ms"))
        & (f.col("other_first_ms") <= f.col("last_ms") + STANDS_MS)
    )
    found = bundle_reports.select(
        _report(), namespace_hash(), packed_bounds().alias("other_bounds"), f.col("at_ms").alias("seen_ms")
    ).join(f.broadcast(pairs), ["hash", "other_bounds"])
    may_stand = (f.col("seen_ms") >= f.col("first_ms")) & (f.col("seen_ms") <= f.col("last_ms") + STANDS_MS)
    return found.where(may_stand).select("report", "hash", "bounds")


def _report() -> Column:
    """The number of a report, in the order of reports."""
    return f.shiftleft("epoch", _EPOCH_BITS).bitwiseOR(f.col("sequence")).alias("report")


def _without_nulls(numbers: DataFrame) -> DataFrame:
    """Clean rows have none: where Spark knows it, it need not look for them in each step."""
    return numbers.selectExpr(*(f"coalesce({name}, CAST(0 AS {kind})) AS {name}" for name, kind in numbers.dtypes))
