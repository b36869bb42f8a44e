"""Load by windows of time, and the leader's running means rebuilt from the reports.

How long a report stands is said in `standing`. Means are over the reports that stood in a window, each weighted by how
long it did. `max` is the highest of them. `p95` is the 95th percentile, by nearest rank, of the 5-minute means in a
window: what bandwidth is billed by.

The rows of bundles are gone through once, for `carried`: who carried what in each 5 minutes. Windows of 5 minutes are
made of that, longer ones of those of 5 minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.core.load import LONG_WINDOW, SHORT_WINDOW, BoolArray, FloatArray, IntArray, next_average
from loadmanager.errors import PipelineError
from loadmanager.history.schemas import ORDER
from loadmanager.pipeline.datasets import require, schema_of
from loadmanager.pipeline.schemas import (
    BUNDLE_KEY,
    METRICS,
    RESOURCES,
    bundle_name,
    exprs,
    frame_of,
    namespace_hash,
    packed_bounds,
)
from loadmanager.pipeline.standing import bundles_seen, bundles_standing

SHORTEST_S = 300
WINDOWS_S = (SHORTEST_S, 3600, 86_400)

_RATED = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
_FIGURES = (*METRICS, "topics", "sessions")
"""What is known of a bundle."""

_BUNDLE = ["hash", "bounds"]
_SHORT, _LONG = ([f"{length}_{name}" for name in METRICS] for length in ("short", "long"))
_OF_LAST = ("topics", "at_ms", *ORDER)
_REBUILT = t.StructType(
    [
        *(t.StructField(name, t.LongType()) for name in _BUNDLE),
        *(each for each in schema_of("running_means") if each.name not in ("bundle", "namespace")),
    ]
)
"""Running means, of bundles by numbers: names would cost more than the rest."""

_P95 = 0.95
_SHORTEST_MS = SHORTEST_S * 1000


def bundle_windows(pieces: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """From `carried`; a bundle is in each window in which a report stood that has it."""
    return with_longer("bundle_windows", short_bundle_windows(pieces), windows)


def broker_windows(
    broker_reports: DataFrame, reports: DataFrame, pieces: DataFrame, windows: Sequence[int] = WINDOWS_S
) -> DataFrame:
    """From the clean table, `standing.standing` and `carried`."""
    return with_longer("broker_windows", short_broker_windows(broker_reports, reports, pieces), windows)


def namespace_windows(pieces: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """From `carried`."""
    return with_longer("namespace_windows", short_namespace_windows(pieces), windows)


def with_longer(table: str, short: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """These windows of a table, of which the longer ones are made of those of 5 minutes.

    Each length goes through the short ones anew: where those are dear, write them first and give what was written.
    """
    lengths = {SHORTEST_S: short.where(f.col("window_s") == SHORTEST_S)}
    frames = [lengths.get(window) or _rolled_up(table, lengths[SHORTEST_S], window) for window in windows]
    return reduce(DataFrame.union, [require(each, table) for each in frames])


def carried(bundle_reports: DataFrame, reports: DataFrame) -> DataFrame:
    """Who carried each bundle in each 5 minutes, a row for each time that it was with one broker without interruption.

    From `clean_bundle_reports` and what `standing.standing` gives. `from_ms` is since when in these 5 minutes. Where
    `covered_ms` is 0, a report came (`n`) that was followed by another one in the same millisecond.

    Rows are grouped by numbers alone, for speed, and the names of namespaces and brokers are looked up by their hashes
    in the end (should two ever share one, it fails).
    """
    seen = bundles_seen(bundle_reports)
    rows = _by_window(bundles_standing(bundle_reports, seen, reports, _FIGURES))
    grouped = rows.groupBy("hash", "bounds", "stay", "window").agg(
        f.min("by").alias("by"), f.min("begun_ms").alias("from_ms"), *_sums(_FIGURES), *_highest(METRICS)
    )
    brokers = reports.select("broker").distinct().select("broker", f.xxhash64("broker").alias("by")).toArrow()
    named = _named(_named(grouped, seen, "namespace", "hash"), brokers, "broker", "by")
    named = named.withColumn("bundle", bundle_name(f.col("bounds")))
    return _table(_means_of(named, _FIGURES), "carried")


def short_bundle_windows(pieces: DataFrame) -> DataFrame:
    """Windows of 5 minutes, from `carried`."""
    of_bundles = pieces.repartition("bundle", "namespace")  # longer windows are made of the same rows then
    grouped = of_bundles.groupBy("start_ms", "bundle", "namespace").agg(
        f.sum("n").alias("n"),
        f.sum("covered_ms").alias("covered_ms"),
        *_summed_up(),
        *(f.max(f"max_{name}").alias(f"max_{name}") for name in METRICS),
    )
    return _table(_short(grouped), "bundle_windows")


def short_namespace_windows(pieces: DataFrame) -> DataFrame:
    """Windows of 5 minutes, from `carried`: at each moment a namespace carries what its bundles add up to."""
    earlier = Window.partitionBy("namespace", "start_ms").orderBy("from_ms")
    until_ms = f.col("from_ms") + f.col("covered_ms")
    reached_ms = f.max("until_ms").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    more_ms = f.greatest(f.lit(0), f.col("until_ms") - f.greatest("from_ms", "reached_ms"))
    stood = pieces.where(f.col("covered_ms") > 0).withColumn("until_ms", until_ms)
    stood = stood.withColumn("reached_ms", reached_ms).withColumn("more_ms", more_ms)
    by_bundle = stood.groupBy("start_ms", "namespace", "bundle").agg(f.sum("more_ms").alias("more_ms"), *_summed_up())
    grouped = by_bundle.groupBy("start_ms", "namespace").agg(
        f.count(f.lit(1)).alias("bundles"),
        f.sum("more_ms").alias("covered_ms"),
        *(f.sum(name).alias(name) for name in _MEANS),
    )
    highest = [f"mean_{name} AS max_{name}" for name in METRICS]
    return _table(_short(grouped).selectExpr("*", *highest), "namespace_windows")


def short_broker_windows(broker_reports: DataFrame, reports: DataFrame, pieces: DataFrame) -> DataFrame:
    """Windows of 5 minutes: resources as the broker reported them (in the clean table), its load that of the bundles
    that it carried. Highest are both as it reported them.
    """
    own = [*RESOURCES, "usage"]
    usage = ", ".join(f"coalesce({_fraction(name)}, 0D)" for name in _RATED)
    fractions = [f"{_fraction(name)} AS {name}" for name in RESOURCES]
    said = broker_reports.selectExpr(*ORDER, *fractions, f"greatest({usage}) AS usage", *METRICS)
    rows = _by_window(reports.drop("ends_ms").join(said, list(ORDER)))
    grouped = rows.groupBy("broker", "window").agg(*_sums(own), *_highest([*own, *METRICS]))
    load = pieces.groupBy("broker", "start_ms").agg(f.sum("covered_ms").cast("double").alias("bundles"), *_summed_up())
    both = _means_of(grouped, own).join(load, ["broker", "start_ms"], "left").na.fill(0.0, ["bundles", *_MEANS])
    both = both.withColumn("bundles", f.try_divide("bundles", "covered_ms"))
    return _table(_short(both), "broker_windows")


def running_means(bundle_reports: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """The short and long running means of each bundle, bit for bit as a leader has them that saw these reports.

    `before` is an earlier such table to go on from; reports that it has are not counted again. A leader leaves a bundle
    to its owner when two brokers report it at once; such a report is counted here.
    """
    if before is None:
        before = frame_of(bundle_reports.sparkSession, schema_of("running_means"))
    digits = (f.conv(f.substring("bundle", at, 8), 16, 10).cast("long") for at in (-19, -8))
    known = before.withColumns(dict(zip(BUNDLE_KEY[1:], digits, strict=True)))
    namespaces = reduce(DataFrame.union, (each.select("namespace") for each in (known, bundle_reports))).distinct()
    names = namespaces.select("namespace", namespace_hash()).toArrow()
    keys = [namespace_hash(), packed_bounds().alias("bounds")]
    samples = bundle_reports.select(*keys, *METRICS, "topics", "at_ms", *ORDER)
    buckets = int(str(bundle_reports.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    bucket = f.pmod(f.xxhash64("hash", "bounds"), f.lit(buckets))
    both = (known.select(*keys, *_REBUILT.names[2:]), samples)
    one, other = (each.groupBy(bucket) for each in both)
    rebuilt = _named(one.cogroup(other).applyInPandas(_rebuilt, _REBUILT), names, "namespace", "hash")
    return _table(rebuilt.withColumn("bundle", bundle_name(f.col("bounds"))), "running_means")


def _by_window(rows: DataFrame) -> DataFrame:
    """Rows that stand from `at_ms` until `until_ms` by the windows (`window`) in which they do: since when there
    (`begun_ms`), for how long (`stood_ms`), and whether it is the one that they came in (`own`).
    """
    last = f.greatest("at_ms", f.col("until_ms") - 1)
    each = f.explode(f.sequence(f.floor(f.col("at_ms") / _SHORTEST_MS), f.floor(last / _SHORTEST_MS)))
    start = f.col("window") * _SHORTEST_MS
    begun = f.greatest("at_ms", start)
    return rows.withColumn("window", each).withColumns(
        {
            "begun_ms": begun,
            "stood_ms": (f.least("until_ms", start + _SHORTEST_MS) - begun).cast("double"),
            "own": (f.col("at_ms") >= start).cast("long"),
        }
    )


def _named(rows: DataFrame, names: pa.Table, name: str, key: str) -> DataFrame:
    """The rows with the `name` that their hash (`key`) is of. Raises `PipelineError` when two have the same."""
    pairs = names.group_by([key, name]).aggregate([])
    shared = pairs.group_by(key).aggregate([(name, "list")]).filter(pc.list_value_length(pc.field(f"{name}_list")) > 1)
    if shared.num_rows:
        raise PipelineError(f"{name}s that share a hash: {', '.join(shared.column(f'{name}_list')[0].as_py())}")
    return rows.join(f.broadcast(rows.sparkSession.createDataFrame(pairs)), key)


def _sums(figures: Iterable[str]) -> list[Column]:
    """Over the reports that stood; a resource without a limit is not known, and has a weight of its own."""
    sums = ["sum(own) AS n", "sum(stood_ms) AS stood_ms", *(f"sum({name} * stood_ms) AS {name}" for name in figures)]
    known = [name for name in figures if name in RESOURCES]
    return exprs(*sums, *(f"sum(CASE WHEN {name} IS NOT NULL THEN stood_ms END) AS known_{name}" for name in known))


def _highest(names: Iterable[str]) -> list[Column]:
    return exprs(*(f"double(max(CASE WHEN stood_ms > 0 THEN {name} END)) AS max_{name}" for name in names))


def _means_of(grouped: DataFrame, figures: Iterable[str]) -> DataFrame:
    """From `_sums` to means, which are null where nothing stood."""
    weights = {name: f"known_{name}" if name in RESOURCES else "stood_ms" for name in figures}
    means = [f"try_divide({name}, {weight}) AS {_name_of_mean(name)}" for name, weight in weights.items()]
    place = [f"bigint(window) * {_SHORTEST_MS} AS start_ms", "bigint(stood_ms) AS covered_ms"]
    replaced = {*weights, "stood_ms", "window"}
    kept = [name for name in grouped.columns if name not in replaced]
    return grouped.selectExpr(*kept, *place, *means)


def _summed_up() -> list[Column]:
    """What pieces of `carried` add up to over time."""
    return exprs(*(f"sum({name} * covered_ms) AS {name}" for name in _MEANS))


def _short(grouped: DataFrame) -> DataFrame:
    """Windows of 5 minutes in which something stood, from `_summed_up`."""
    kept = [name for name in grouped.columns if name not in _MEANS]
    means = [f"{name} / covered_ms AS {name}" for name in _MEANS]
    p95 = [f"mean_{name} / covered_ms AS p95_{name}" for name in METRICS]
    stood = grouped.where("covered_ms > 0")
    return stood.selectExpr(*kept, "covered_ms / 1000 AS covered_s", f"{SHORTEST_S} AS window_s", *means, *p95)


def _table(frame: DataFrame, name: str) -> DataFrame:
    return require(frame.selectExpr(*schema_of(name).fieldNames()), name)


def _name_of_mean(name: str) -> str:
    return name if name in ("topics", "sessions") else f"mean_{name}"


_MEANS = [_name_of_mean(name) for name in _FIGURES]

_KEYS = {
    "bundle_windows": ("bundle", "namespace"),
    "broker_windows": ("broker",),
    "namespace_windows": ("namespace",),
}


def _rolled_up(table: str, short: DataFrame, window_s: int) -> DataFrame:
    """Longer windows made of those of 5 minutes."""
    counts = [name for name in ("n", "bundles") if dict(short.dtypes).get(name) == "bigint"]
    means = [name for name in ("topics", "sessions", "bundles") if dict(short.dtypes).get(name) == "double"]
    means += [name for name in short.columns if name.startswith("mean_")]
    rolled = short.groupBy(*_KEYS[table], f.expr(f"floor(start_ms / {window_s}000) * {window_s}000 AS start_ms")).agg(
        *exprs(
            *(f"{'sum' if name == 'n' else 'max'}({name}) AS {name}" for name in counts),
            "sum(covered_s) AS covered_s",
            *(f"{_mean_over_time(name)} AS {name}" for name in means),
            *(f"max({name}) AS {name}" for name in short.columns if name.startswith("max_")),
            *(f"{_percentile(f'mean_{name}')} AS p95_{name}" for name in METRICS),
        )
    )
    return rolled.withColumn("window_s", f.lit(window_s))


def _mean_over_time(name: str) -> str:
    return f"sum({name} * covered_s) / sum(CASE WHEN {name} IS NOT NULL THEN covered_s END)"


def _percentile(name: str) -> str:
    """By nearest rank."""
    return f"element_at(sort_array(collect_list({name})), int(ceil(size(collect_list({name})) * {_P95}D)))"


def _fraction(name: str) -> str:
    """How much of its limit a resource is used, null without a limit."""
    return f"CASE WHEN {name}_limit > 0 THEN {name}_usage / {name}_limit END"


def _rebuilt(known: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """All bundles of a bucket side by side: the k-th sample of each is taken in at once, as the leader's model does."""
    keys = pd.concat([known[_BUNDLE], samples[_BUNDLE]])
    rows = keys.groupby(_BUNDLE, sort=False).ngroup().to_numpy(np.int64)
    bundles = keys.drop_duplicates()
    means = _Means(len(bundles))
    means.set(rows[: len(known)], known)
    rows = rows[len(known) :]
    order = np.lexsort((samples["sequence"], samples["epoch"], rows))
    samples, rows = samples.iloc[order], rows[order]
    is_new = means.are_before(rows, samples["epoch"].to_numpy(), samples["sequence"].to_numpy())
    samples, rows = samples[is_new], rows[is_new]
    counts = np.bincount(rows, minlength=len(bundles))
    longest_first = np.argsort(-counts, kind="stable")
    starts = (np.cumsum(counts) - counts)[longest_first]
    load = samples[list(METRICS)].to_numpy(np.float64)
    for k in range(int(counts.max(initial=0))):
        going_on = int(np.count_nonzero(counts > k))
        means.take_in(longest_first[:going_on], load[starts[:going_on] + k])
    means.go_to(samples.iloc[(np.cumsum(counts) - 1)[counts > 0]], np.flatnonzero(counts))
    return pd.concat([bundles.reset_index(drop=True), means.as_frame()], axis=1)


class _Means:
    """The running means of the bundles of a bucket, and what goes with the last sample of each."""

    def __init__(self, bundles: int) -> None:
        self.short: FloatArray = np.zeros((bundles, len(METRICS)))
        self.long: FloatArray = np.zeros((bundles, len(METRICS)))
        self.short_samples = np.zeros(bundles, dtype=np.int16)
        self.long_samples = np.zeros(bundles, dtype=np.int16)
        self.last = {name: np.full(bundles, -1, dtype=np.int64) for name in _OF_LAST}

    def set(self, rows: IntArray, known: pd.DataFrame) -> None:
        """Have these bundles as they were known before."""
        self.short[rows] = known[_SHORT].to_numpy(np.float64)
        self.long[rows] = known[_LONG].to_numpy(np.float64)
        self.short_samples[rows], self.long_samples[rows] = known["short_samples"], known["long_samples"]
        self.go_to(known, rows)

    def go_to(self, last: pd.DataFrame, rows: IntArray) -> None:
        """These are the last samples of these bundles."""
        for name, values in self.last.items():
            values[rows] = last[name]

    def are_before(self, rows: IntArray, epoch: IntArray, sequence: IntArray) -> BoolArray:
        """Whether the means of these rows do not have the sample yet."""
        last, place = self.last["epoch"][rows], self.last["sequence"][rows]
        return np.asarray((last < epoch) | ((last == epoch) & (place < sequence)))

    def take_in(self, rows: IntArray, load: FloatArray) -> None:
        """One more sample of each of these bundles."""
        self.short[rows], self.short_samples[rows] = next_average(
            self.short[rows], self.short_samples[rows], load, SHORT_WINDOW
        )
        self.long[rows], self.long_samples[rows] = next_average(
            self.long[rows], self.long_samples[rows], load, LONG_WINDOW
        )

    def as_frame(self) -> pd.DataFrame:
        """A row for each bundle."""
        means = {**dict(zip(_SHORT, self.short.T, strict=True)), **dict(zip(_LONG, self.long.T, strict=True))}
        samples = {"short_samples": self.short_samples, "long_samples": self.long_samples}
        return pd.DataFrame({**means, **samples, **self.last})
