"""Load by windows of time, and the leader's running means rebuilt from the reports.

A report stands from when it came until its broker's next one, at most 15 minutes: a broker reports at least so often.
Means are over the reports that stood in a window, each weighted by how long it did. `max` is the highest of them.
`p95` is the 95th percentile, by nearest rank, of the 5-minute means in a window: what bandwidth is billed by.

Windows of 5 minutes are made of reports, longer ones of those of 5 minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.load import LONG_WINDOW, SHORT_WINDOW, BoolArray, FloatArray, IntArray, next_average
from loadmanager.history.schemas import ORDER
from loadmanager.pipeline.schemas import METRICS, RESOURCES, TABLES, bundle_name, packed_bounds, require

SHORTEST_S = 300
WINDOWS_S = (SHORTEST_S, 3600, 86_400)
STANDS_MS = 900_000
"""How long a report stands at the most."""

_RATED = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
_P95 = 0.95
_BUCKETS = 64
_EPOCH_BITS = 40
"""Where the epoch begins in the number of a report: there is room for 8 million leaders and 10^12 sequences of each."""


def bundle_windows(
    bundle_reports: DataFrame, broker_reports: DataFrame, windows: Sequence[int] = WINDOWS_S
) -> DataFrame:
    """From the clean tables; a bundle is in each window in which a report stood that has it."""
    return with_longer("bundle_windows", short_bundle_windows(bundle_reports, broker_reports), windows)


def broker_windows(broker_reports: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """From the clean table."""
    return with_longer("broker_windows", short_broker_windows(broker_reports), windows)


def namespace_windows(windows_of_bundles: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """From the windows of bundles, of 5 minutes at least: a namespace carries what its bundles add up to."""
    return with_longer("namespace_windows", short_namespace_windows(windows_of_bundles), windows)


def with_longer(table: str, short: DataFrame, windows: Sequence[int] = WINDOWS_S) -> DataFrame:
    """These windows of a table, of which the longer ones are made of those of 5 minutes.

    Each length goes through the short ones anew: where those are dear, write them first and give what was written.
    """
    lengths = {SHORTEST_S: short.where(f.col("window_s") == SHORTEST_S)}
    frames = [lengths.get(window) or _rolled_up(table, lengths[SHORTEST_S], window) for window in windows]
    return reduce(DataFrame.union, [require(each, table) for each in frames])


def short_bundle_windows(bundle_reports: DataFrame, broker_reports: DataFrame) -> DataFrame:
    """Windows of 5 minutes.

    For speed, rows are grouped by numbers alone: a report is one number, the bounds of a range are one, and the name of
    a namespace is looked up by its hash in the end (should two ever share one, it fails). The rows of a bundle are
    brought together before they are grouped: files are of a minute, in any order, so that grouping where they are read
    would make hardly fewer rows, and wider ones.
    """
    report = f.shiftleft("epoch", _EPOCH_BITS).bitwiseOR(f.col("sequence"))
    figures = [*METRICS, "topics", "sessions"]
    rows = _without_nulls(
        bundle_reports.select(report.alias("report"), _hash(), packed_bounds().alias("bounds"), *figures)
    )
    standing = _without_nulls(_standing(broker_reports).withColumn("report", report).drop(*ORDER))
    grouped = (
        rows.repartition("hash", "bounds")
        .join(f.broadcast(standing), "report")
        .groupBy("hash", "bounds", "window")
        .agg(*_weighted(figures), *(_highest(name) for name in METRICS))
    )
    named = grouped.join(f.broadcast(_names_by_hash(bundle_reports)), "hash")
    named = named.withColumn("bundle", bundle_name(f.col("bounds")))
    return require(_as_windows(named, figures), "bundle_windows")


def short_broker_windows(broker_reports: DataFrame) -> DataFrame:
    """Windows of 5 minutes."""
    highest = [*METRICS, *RESOURCES, "usage"]
    figures = [*highest, "topics", "bundles", "sessions"]
    fractions = {name: _fraction(name) for name in RESOURCES}
    rows = broker_reports.withColumns(
        {
            **fractions,
            "usage": f.greatest(*(f.coalesce(fractions[name], f.lit(0.0)) for name in _RATED)),
            "sessions": f.col("consumers") + f.col("producers"),
        }
    )
    joined = rows.select(*ORDER, "broker", *figures).join(_standing(broker_reports), list(ORDER))
    short = joined.groupBy("broker", "window").agg(*_weighted(figures), *(_highest(name) for name in highest))
    return require(_as_windows(short, figures), "broker_windows")


def short_namespace_windows(windows_of_bundles: DataFrame) -> DataFrame:
    """Windows of 5 minutes. A bundle counts for the time it was there, as a part of the time that its namespace was."""
    means = [*(f"mean_{name}" for name in METRICS), "topics", "sessions"]
    short = (
        windows_of_bundles.where(f.col("window_s") == SHORTEST_S)
        .groupBy("window_s", "start_ms", "namespace")
        .agg(
            f.count(f.lit(1)).alias("bundles"),
            f.max("covered_s").alias("covered_s"),
            *(f.sum(f.col(name) * f.col("covered_s")).alias(name) for name in means),
        )
        .withColumns({name: f.col(name) / f.col("covered_s") for name in means})
    )
    same = {f"{what}_{name}": f.col(f"mean_{name}") for name in METRICS for what in ("max", "p95")}
    return require(short.withColumns(same), "namespace_windows")


def running_means(bundle_reports: DataFrame, before: DataFrame | None = None, buckets: int = _BUCKETS) -> DataFrame:
    """The short and long running means of each bundle, bit for bit as a leader has them that saw these reports.

    `before` is an earlier such table to go on from; reports that it has are not counted again. A leader leaves a bundle
    to its owner when two brokers report it at once; such a report is counted here.
    """
    samples = bundle_reports.select(
        bundle_name(packed_bounds()).alias("bundle"), "namespace", *METRICS, "topics", "at_ms", *ORDER
    )
    if before is None:
        before = bundle_reports.sparkSession.createDataFrame([], TABLES["running_means"])
    bucket = f.pmod(f.xxhash64("bundle"), f.lit(buckets))
    known, new = (each.withColumn("bucket", bucket).groupBy("bucket") for each in (before, samples))
    return require(known.cogroup(new).applyInPandas(_rebuilt, TABLES["running_means"]), "running_means")


def _standing(broker_reports: DataFrame) -> DataFrame:
    """For how long each report stood in which windows; it is `own` of the one it came in."""
    following = f.lead("at_ms").over(Window.partitionBy("broker").orderBy(*ORDER))
    longest = f.col("at_ms") + STANDS_MS
    until = f.greatest(f.least(f.coalesce(following, longest), longest), f.col("at_ms") + 1)
    length = SHORTEST_S * 1000
    stood = broker_reports.select(*ORDER, "at_ms", until.alias("until_ms")).withColumn(
        "window",
        f.explode(f.sequence(f.floor(f.col("at_ms") / length), f.floor((f.col("until_ms") - 1) / length))),
    )
    start = f.col("window") * length
    return stood.select(
        *ORDER,
        f.col("window").cast("int"),
        (f.least("until_ms", start + length) - f.greatest("at_ms", start)).cast("double").alias("stood_ms"),
        (f.col("at_ms") >= start).cast("long").alias("own"),
    )


def _hash() -> Column:
    return f.xxhash64("namespace").alias("hash")


def _without_nulls(numbers: DataFrame) -> DataFrame:
    """Clean rows have none: where Spark knows it, it need not look for them in each step."""
    return numbers.select(*(f.coalesce(name, f.lit(0).cast(kind)).alias(name) for name, kind in numbers.dtypes))


def _names_by_hash(rows: DataFrame) -> DataFrame:
    """Each hash with the namespace that has it; it fails when there are two."""
    names = rows.select("namespace").distinct().groupBy(_hash()).agg(f.collect_list("namespace").alias("names"))
    shared = f.concat(f.lit("namespaces that share a hash: "), f.array_join("names", ", "))
    return names.select(
        "hash",
        f.when(f.size("names") == 1, f.element_at("names", 1)).otherwise(f.raise_error(shared)).alias("namespace"),
    )


def _weighted(figures: Iterable[str]) -> list[Column]:
    """Sums over the reports that stood; a resource without a limit is not known, and has a weight of its own."""
    return [
        f.sum("own").alias("n"),
        f.sum("stood_ms").alias("stood_ms"),
        *(f.sum(f.col(name) * f.col("stood_ms")).alias(name) for name in figures),
        *(
            f.sum(f.when(f.col(name).isNotNull(), f.col("stood_ms"))).alias(f"known_{name}")
            for name in _unsure(figures)
        ),
    ]


def _unsure(figures: Iterable[str]) -> list[str]:
    return [name for name in figures if name in RESOURCES]


def _highest(name: str) -> Column:
    return f.max(name).alias(f"max_{name}")


def _as_windows(grouped: DataFrame, figures: Sequence[str]) -> DataFrame:
    """From the sums over the reports of each window of 5 minutes to means."""
    unsure = _unsure(figures)
    means = {
        _name_of_mean(name): f.col(name) / f.col(f"known_{name}" if name in unsure else "stood_ms") for name in figures
    }
    means |= {f"p95_{name}": means[f"mean_{name}"] for name in METRICS}
    place = {
        "window_s": f.lit(SHORTEST_S),
        "start_ms": f.col("window").cast("long") * (SHORTEST_S * 1000),
        "covered_s": f.col("stood_ms") / 1000,
    }
    highest = {name: f.col(name).cast("double") for name in grouped.columns if name.startswith("max_")}
    others = [name for name in ("bundle", "namespace", "broker", "n") if name in grouped.columns]
    made = {**place, **means, **highest}
    return grouped.select(*others, *(column.alias(name) for name, column in made.items()))


def _name_of_mean(name: str) -> str:
    return name if name in ("topics", "bundles", "sessions") else f"mean_{name}"


_KEYS = {
    "bundle_windows": ("bundle", "namespace"),
    "broker_windows": ("broker",),
    "namespace_windows": ("namespace",),
}


def _rolled_up(table: str, short: DataFrame, window_s: int) -> DataFrame:
    """Longer windows made of those of 5 minutes."""
    start = (f.floor(f.col("start_ms") / (window_s * 1000)) * (window_s * 1000)).cast("long")
    counts = [name for name in ("n", "bundles") if dict(short.dtypes).get(name) == "bigint"]
    means = [name for name in ("topics", "sessions", "bundles") if dict(short.dtypes).get(name) == "double"]
    means += [name for name in short.columns if name.startswith("mean_")]
    weight = {name: f.when(f.col(name).isNotNull(), f.col("covered_s")) for name in means}
    rolled = short.groupBy(*_KEYS[table], start.alias("start_ms")).agg(
        *((f.sum(name) if name == "n" else f.max(name)).alias(name) for name in counts),
        f.sum("covered_s").alias("covered_s"),
        *((f.sum(f.col(name) * f.col("covered_s")) / f.sum(weight[name])).alias(name) for name in means),
        *(f.max(name).alias(name) for name in short.columns if name.startswith("max_")),
        *(_percentile(f"mean_{name}").alias(f"p95_{name}") for name in METRICS),
    )
    return rolled.withColumn("window_s", f.lit(window_s))


def _percentile(name: str) -> Column:
    """By nearest rank."""
    ascending = f.sort_array(f.collect_list(name))
    return f.element_at(ascending, f.ceil(f.size(ascending) * f.lit(_P95)).cast("int"))


def _fraction(name: str) -> Column:
    """How much of its limit a resource is used, null without a limit."""
    return f.when(f.col(f"{name}_limit") > 0, f.col(f"{name}_usage") / f.col(f"{name}_limit"))


def _rebuilt(known: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """All bundles of a bucket side by side: the k-th sample of each is taken in at once, as the leader's model does."""
    names = sorted({*known["bundle"], *samples["bundle"]})
    at = {name: row for row, name in enumerate(names)}
    means = _Means.of(known, at)
    rows = samples["bundle"].map(at).to_numpy(np.int64)
    order = np.lexsort((samples["sequence"], samples["epoch"], rows))
    samples, rows = samples.iloc[order], rows[order]
    is_new = means.are_before(rows, samples["epoch"].to_numpy(), samples["sequence"].to_numpy())
    samples, rows = samples[is_new], rows[is_new]
    counts = np.bincount(rows, minlength=len(names))
    longest_first = np.argsort(-counts, kind="stable")
    starts = (np.cumsum(counts) - counts)[longest_first]
    load = samples[list(METRICS)].to_numpy(np.float64)
    for k in range(int(counts.max(initial=0))):
        going_on = int(np.count_nonzero(counts > k))
        means.take_in(longest_first[:going_on], load[starts[:going_on] + k])
    last = samples.iloc[(np.cumsum(counts) - 1)[counts > 0]]
    return means.as_frame(names, known, last)


class _Means:
    """The running means of the bundles of a bucket, and up to where (epoch, sequence) they go."""

    def __init__(self, bundles: int) -> None:
        self.short: FloatArray = np.zeros((bundles, len(METRICS)))
        self.long: FloatArray = np.zeros((bundles, len(METRICS)))
        self.short_samples = np.zeros(bundles, dtype=np.int16)
        self.long_samples = np.zeros(bundles, dtype=np.int16)
        self.epoch = np.full(bundles, -1, dtype=np.int64)
        self.sequence = np.full(bundles, -1, dtype=np.int64)

    @classmethod
    def of(cls, known: pd.DataFrame, at: dict[str, int]) -> _Means:
        means = cls(len(at))
        rows = known["bundle"].map(at).to_numpy(np.int64)
        means.short[rows] = known[[f"short_{name}" for name in METRICS]].to_numpy(np.float64)
        means.long[rows] = known[[f"long_{name}" for name in METRICS]].to_numpy(np.float64)
        for name in ("short_samples", "long_samples", "epoch", "sequence"):
            getattr(means, name)[rows] = known[name]
        return means

    def are_before(self, rows: IntArray, epoch: IntArray, sequence: IntArray) -> BoolArray:
        """Whether the means of these rows do not have the sample yet."""
        last, place = self.epoch[rows], self.sequence[rows]
        return np.asarray((last < epoch) | ((last == epoch) & (place < sequence)))

    def take_in(self, rows: IntArray, load: FloatArray) -> None:
        """One more sample of each of these bundles."""
        self.short[rows], self.short_samples[rows] = next_average(
            self.short[rows], self.short_samples[rows], load, SHORT_WINDOW
        )
        self.long[rows], self.long_samples[rows] = next_average(
            self.long[rows], self.long_samples[rows], load, LONG_WINDOW
        )

    def as_frame(self, names: Sequence[str], known: pd.DataFrame, last: pd.DataFrame) -> pd.DataFrame:
        """As a table; what goes with the last sample of a bundle is in `last`, or `known` from before."""
        columns = ["topics", "at_ms", *ORDER]
        newest = pd.concat([known[["bundle", *columns]], last[["bundle", *columns]]]).drop_duplicates(
            "bundle", keep="last"
        )
        newest = newest.set_index("bundle").loc[names]
        frame: dict[str, Any] = {"bundle": names, "namespace": [name.rpartition("/")[0] for name in names]}
        frame |= {f"short_{name}": self.short[:, at] for at, name in enumerate(METRICS)}
        frame |= {f"long_{name}": self.long[:, at] for at, name in enumerate(METRICS)}
        frame |= {
            "short_samples": self.short_samples.astype(np.int32),
            "long_samples": self.long_samples.astype(np.int32),
        }
        return pd.DataFrame(frame | {name: newest[name].to_numpy(np.int64) for name in columns})
