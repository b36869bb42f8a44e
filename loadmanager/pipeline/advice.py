"""What the history suggests to change, each piece of advice with its numbers.

Bundles are judged by the rules that the leader goes by, with what they carried in all but the busiest tenth of their
hours at most: what is above a limit then is so again and again, and what is cold then is cold. The history knows no
single topics, so splits are taken to be halves. Bundles that nobody reports are idle and not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.load import METRICS, RESOURCES, BrokerReport
from loadmanager.core.merging import MergeCandidate, find_merges
from loadmanager.core.names import (
    HASH_SPACE_END,
    BrokerId,
    BundleName,
    BundleRange,
    NamespaceName,
    is_self_test_namespace,
    namespace_of,
)
from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Figure, Verdict
from loadmanager.core.quality import Gate
from loadmanager.core.reasons import Reason, SplitReason
from loadmanager.core.resources import ResourceWeights
from loadmanager.core.settings import KEYS, PlannerSettings, short_class_name
from loadmanager.core.splitting import SPLIT_ALGORITHMS
from loadmanager.core.splitting.base import MIB
from loadmanager.core.splitting.finder import LIMIT_KEYS, Split, SplitCandidate, find_for_modular, find_reason
from loadmanager.history.schemas import RESOURCE_COLUMNS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.forecast import hourly
from loadmanager.pipeline.schemas import bundle_name, packed_bounds

ADVICE = schema_of("advice")

SPLIT, SPLIT_BLOCKED, UNSPLITTABLE, MERGE, BUNDLES = "split", "split_blocked", "unsplittable", "merge", "bundles"
NEVER, ALWAYS = "threshold_never", "threshold_always"
QUIET, UNKNOWN_LIMITS = "quiet_reports", "unknown_limits"
CLUSTER = "cluster"

_BUSY = 0.9
"""The quantile of its hours by which a bundle is judged."""
_DAY_MS = 86_400_000
_MOST_ROUNDS = 500
"""Merges of one namespace that are thought through, one after the other."""
_WHY_NOT: dict[Reason, str] = {
    SplitReason.TOO_FEW_TOPICS: UNSPLITTABLE,
    SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES: SPLIT_BLOCKED,
    SplitReason.RANGE_NOT_SPLITTABLE: SPLIT_BLOCKED,
}
_LIMIT_COLUMNS = tuple(name for name in RESOURCE_COLUMNS if name.endswith("_limit"))
_BUNDLE_HOURS, _BROKER_HOURS, _SILENCES, _LIMITS = "bundle_hours", "broker_hours", "silences", "limits"
_NOBODY = Registration(BrokerId(""), 0)


@dataclass(frozen=True, slots=True)
class Advice:
    kind: str
    subject: str
    text: str
    evidence: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class BusyBundle:
    """What a bundle carried in all but the busiest tenth of its `hours` at most, rates in and out together.

    `owner` is the last broker that reported it, `last_ms` when, and `since_ms` since when nobody else did.
    """

    name: str
    owner: str
    hours: int
    since_ms: int
    last_ms: int
    topics: int
    sessions: int
    msg_rate: float
    throughput: float


def current(bundles: Iterable[BusyBundle]) -> list[BusyBundle]:
    """Of the bundles of a namespace those that make up its present shape, by range: of two that overlap, the one that
    was reported later.
    """
    kept: list[tuple[BundleRange, BusyBundle]] = []
    for bundle in sorted(bundles, key=lambda each: (-each.last_ms, each.name)):
        own = BundleName.parse_any(bundle.name).range
        if all(own.upper <= other.lower or other.upper <= own.lower for other, _ in kept):
            kept.append((own, bundle))
    return [bundle for _, bundle in sorted(kept, key=lambda each: each[0])]


def advise_namespace(bundles: Sequence[BusyBundle], settings: PlannerSettings, until_ms: int) -> list[Advice]:
    """On the shape of one namespace: its present bundles, by range, and the end of what is known."""
    namespace = namespace_of(bundles[0].name)
    hours = {bundle.name: bundle.hours for bundle in bundles}
    shape = [_merge_candidate(bundle, until_ms) for bundle in bundles]
    whole = _with_gaps(shape)
    found = []
    for verdict in _splits(shape, len(whole), settings)[1]:
        kind = SPLIT if verdict.acted else _WHY_NOT.get(verdict.verdict)
        if kind is not None and (kind != UNSPLITTABLE or "above" in verdict.why):
            found.append(_of_bundle(kind, verdict, hours[verdict.subject]))
    merges, _ = find_merges({namespace: whole}, settings)
    found += [_of_bundle(MERGE, merge.why, min(hours[merge.lower], hours[merge.upper])) for merge in merges]
    return found + _bundle_count(namespace, shape, whole, settings)


def _of_bundle(kind: str, verdict: Verdict, hours: int) -> Advice:
    text = f"By what it carries at most in nine of ten hours, of {hours}: {verdict.sentence()}"
    return Advice(kind, verdict.subject, text, {"reason": str(verdict.verdict), "hours": hours, **verdict.why})


def _bundle_count(
    namespace: str, shape: Sequence[MergeCandidate], whole: Sequence[MergeCandidate], settings: PlannerSettings
) -> list[Advice]:
    """How many bundles it would have in the end by the rules, if it were for them alone and not for who owns what."""
    free = [replace(each, owner=_NOBODY, age_s=float("inf")) for each in shape]
    parts, splits = _split_up(free, len(whole) - len(shape), settings)
    merges = _count_merges(namespace, _with_gaps(parts), settings)
    settled = len(whole) + splits - merges
    if settled == len(whole):
        return []
    text = (
        f"It has {len(whole)} bundles; the rules for splits and merges come to rest at {settled},"
        f" after {splits} splits and {merges} merges, if its load stays as it was"
    )
    total = sum(each.msg_rate for each in shape), sum(each.throughput for each in shape) / MIB
    evidence: dict[str, Figure] = {
        "bundles": len(whole),
        "bundles_reported": len(shape),
        "bundles_settled": settled,
        "splits": splits,
        "merges": merges,
        "topics": sum(each.topics for each in shape),
        "msg_rate_per_s": total[0],
        "mib_per_s": total[1],
        **settings.said("namespace_minimum_bundles", "namespace_maximum_bundles"),
    }
    return [Advice(BUNDLES, namespace, text, evidence)]


def _split_up(
    bundles: Sequence[MergeCandidate], others: int, settings: PlannerSettings
) -> tuple[list[MergeCandidate], int]:
    """The parts when everything above a limit has been cut, and how many bundles that adds."""
    parts = list(bundles)
    while True:
        splits, _ = _splits(parts, len(parts) + others, settings)
        if not splits:
            return parts, len(parts) - len(bundles)
        cut = {split.bundle: split for split in splits}
        parts = [part for each in parts for part in (_cut(each, cut[each.name]) if each.name in cut else [each])]


def _cut(bundle: MergeCandidate, split: Split) -> list[MergeCandidate]:
    """Parts that carry the same, as nothing is known of the topics."""
    name = BundleName.parse_any(bundle.name)
    ends = (name.range.lower, *split.boundaries, name.range.upper)
    count = len(ends) - 1
    return [
        replace(
            bundle,
            name=str(BundleName(name.namespace, BundleRange(lower, upper))),
            topics=bundle.topics // count,
            sessions=bundle.sessions // count,
            msg_rate=bundle.msg_rate / count,
            throughput=bundle.throughput / count,
        )
        for lower, upper in pairwise(ends)
    ]


def _count_merges(namespace: str, bundles: list[MergeCandidate], settings: PlannerSettings) -> int:
    for done in range(_MOST_ROUNDS):
        merges, _ = find_merges({namespace: bundles}, settings)
        if not merges:
            return done
        at = next(row for row, each in enumerate(bundles) if each.name == merges[0].lower)
        bundles[at : at + 2] = [_joined(bundles[at], bundles[at + 1])]
    return _MOST_ROUNDS


def _joined(lower: MergeCandidate, upper: MergeCandidate) -> MergeCandidate:
    own, above = BundleName.parse_any(lower.name), BundleName.parse_any(upper.name)
    return replace(
        lower,
        name=str(BundleName(own.namespace, BundleRange(own.range.lower, above.range.upper))),
        topics=lower.topics + upper.topics,
        sessions=lower.sessions + upper.sessions,
        msg_rate=lower.msg_rate + upper.msg_rate,
        throughput=lower.throughput + upper.throughput,
    )


def _splits(
    bundles: Iterable[MergeCandidate], count: int, settings: PlannerSettings
) -> tuple[tuple[Split, ...], tuple[Verdict, ...]]:
    """By the leader's rule, of a namespace with so many bundles."""
    halves = SPLIT_ALGORITHMS["range_equally_divide"]
    candidates = [
        SplitCandidate(
            each.name, BundleName.parse_any(each.name).range, each.topics, each.sessions, each.msg_rate, each.throughput
        )
        for each in bundles
    ]
    counts = {namespace_of(each.name): count for each in candidates}
    found = find_for_modular(candidates, counts, lambda _, own: halves(own, (), (), settings), settings)
    return found.splits, found.verdicts


def _merge_candidate(bundle: BusyBundle, until_ms: int) -> MergeCandidate:
    return MergeCandidate(
        bundle.name,
        Registration(BrokerId(bundle.owner), 0),
        bundle.topics,
        bundle.sessions,
        bundle.msg_rate,
        bundle.throughput,
        age_s=(until_ms - bundle.since_ms) / 1000,
    )


def _with_gaps(bundles: Sequence[MergeCandidate]) -> list[MergeCandidate]:
    """The same, and where hashes between them are in none a bundle of which nothing is known, not even an owner."""
    namespace = BundleName.parse_any(bundles[0].name).namespace
    found, reached = list[MergeCandidate](), 0
    for each in bundles:
        own = BundleName.parse_any(each.name).range
        if reached < own.lower:
            found.append(_unknown(namespace, reached, own.lower))
        found.append(each)
        reached = own.upper
    if reached < HASH_SPACE_END:
        found.append(_unknown(namespace, reached, HASH_SPACE_END))
    return found


def _unknown(namespace: NamespaceName, lower: int, upper: int) -> MergeCandidate:
    return MergeCandidate(str(BundleName(namespace, BundleRange(lower, upper))), None, 0, 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Extent:
    """Of the highest value of each hour: the highest of all of them, and the lowest."""

    highest: float
    lowest: float


_BUNDLE_LIMITS = {
    SplitReason.TOPICS: ("topics", "namespace_bundle_max_topics", "topics"),
    SplitReason.SESSIONS: ("sessions", "namespace_bundle_max_sessions", "sessions"),
    SplitReason.MSG_RATE: ("msg_rate", "namespace_bundle_max_msg_rate", "messages/s"),
    SplitReason.BANDWIDTH: ("throughput", "namespace_bundle_max_bandwidth_mbytes", "MiB/s"),
}
"""The limits of a bundle: what of it they limit, the setting, and its unit."""


def advise_on_bundle_limits(extents: Mapping[str, Extent], hours: int, settings: PlannerSettings) -> list[Advice]:
    """On limits that no bundle, or that in each hour some bundle was above. `extents` by what is limited."""
    found = []
    for reason, (what, setting, unit) in _BUNDLE_LIMITS.items():
        extent = extents[what]
        above_by = [find_reason(_with_only(what, each), settings) for each in (extent.highest, extent.lowest)]
        kind = ALWAYS if above_by[1] is reason else None if above_by[0] is reason else NEVER
        if kind is not None:
            scale = MIB if what == "throughput" else 1
            shown = Extent(extent.highest / scale, extent.lowest / scale)
            threshold = Threshold(LIMIT_KEYS[reason], getattr(settings, setting), "the largest bundle of an hour", unit)
            found.append(_on_threshold(kind, threshold, shown, hours))
    return found


def _with_only(what: str, amount: float) -> SplitCandidate:
    """A bundle that carries nothing else."""
    of = defaultdict(float, {what: amount})
    return SplitCandidate("", None, round(of["topics"]), round(of["sessions"]), of["msg_rate"], of["throughput"])


@dataclass(frozen=True, slots=True)
class Threshold:
    """A setting and its value, what is compared with it, and the unit of both."""

    key: str
    value: float
    what: str
    unit: str


def thresholds_of(settings: PlannerSettings) -> dict[str, Threshold]:
    """Those on brokers that decide something with the configured strategies, by what is compared with them."""
    found = {
        "usage": Threshold(
            KEYS["broker_overloaded_threshold_percentage"],
            settings.broker_overloaded_threshold_percentage,
            "the usage of the most used broker of an hour",
            "%",
        )
    }
    strategy = short_class_name(settings.shedding_strategy)
    if strategy == "ThresholdShedder":
        found["above_mean"] = Threshold(
            KEYS["broker_threshold_shedder_percentage"],
            settings.broker_threshold_shedder_percentage,
            "what the most used broker of an hour used more than the mean",
            "points",
        )
    if strategy == "TransferShedder":
        found["deviation"] = Threshold(
            KEYS["broker_load_target_std"],
            settings.broker_load_target_std,
            "the standard deviation of the brokers' usage in an hour",
            "",
        )
    return found


def advise_on_brokers(extents: Mapping[str, Extent], hours: int, settings: PlannerSettings) -> list[Advice]:
    """On thresholds that nothing, or that something in each hour was above. `extents` by what `thresholds_of` names."""
    found = []
    for what, threshold in thresholds_of(settings).items():
        extent = extents[what]
        if extent.lowest > threshold.value:
            found.append(_on_threshold(ALWAYS, threshold, extent, hours))
        elif extent.highest <= threshold.value:
            found.append(_on_threshold(NEVER, threshold, extent, hours))
    return found


def _on_threshold(kind: str, threshold: Threshold, extent: Extent, hours: int) -> Advice:
    unit = f" {threshold.unit}".rstrip()
    much = f"{threshold.key} {threshold.value:g}{unit}"
    if kind == NEVER:
        text = f"Nothing was above {much} in {hours} hours: {threshold.what} was at most {extent.highest:.4g}{unit}"
    else:
        text = f"In each of {hours} hours {threshold.what} was above {much}: at least {extent.lowest:.4g}{unit}"
    evidence: dict[str, Figure] = {
        threshold.key: threshold.value,
        "unit": threshold.unit,
        "highest": extent.highest,
        "lowest": extent.lowest,
        "hours": hours,
    }
    return Advice(kind, CLUSTER, text, evidence)


def advise_on_silence(broker: str, gaps: int, longest_s: float, reports: int, settings: PlannerSettings) -> Advice:
    """On a broker that was silent so many times for longer than a report counts, and reported again."""
    key, most_s = KEYS["broker_load_data_ttl_in_seconds"], settings.broker_load_data_ttl_in_seconds
    text = (
        f"It was silent {gaps} times for more than {key} {most_s}, up to"
        f" {longest_s:.0f} s, between {reports} reports of one life of it: meanwhile it neither gave nor got anything"
    )
    evidence: dict[str, Figure] = {
        "gaps": gaps,
        "longest_s": longest_s,
        "reports": reports,
        key: most_s,
    }
    return Advice(QUIET, broker, text, evidence)


def advise_on_limits_of_brokers(limits: Mapping[str, Sequence[float]], weights: ResourceWeights) -> list[Advice]:
    """On brokers whose last report has no limit (0) of a resource that has a weight. `limits` (5,) by broker."""
    gate = Gate()
    for broker, each in limits.items():
        gate.judge(Registration(BrokerId(broker), 0), _report_with(each), at_s=0.0, most_age_s=0.0)
    remarks = gate.doubts(0.0, 0.0, weights).remarks
    return [Advice(UNKNOWN_LIMITS, each.subject, each.sentence(), each.why) for each in remarks]


def _report_with(limits: Sequence[float]) -> BrokerReport:
    """A report of which nothing counts but the limits."""
    return BrokerReport(
        usage=np.column_stack([np.zeros(RESOURCES), limits]),
        load=np.zeros(METRICS),
        num_topics=0,
        num_bundles=0,
        num_consumers=0,
        num_producers=0,
        bundle_names=(),
        bundle_load=np.empty((0, METRICS)),
        bundle_topics=np.empty(0, dtype=np.int64),
        bundle_sessions=np.empty(0, dtype=np.int64),
        bundle_cache_bytes=np.empty(0, dtype=np.int64),
        last_update_ms=0,
        start_timestamp_ms=0,
        version="",
        load_manager_class="",
        persistent_enabled=True,
        non_persistent_enabled=True,
    )


@dataclass(frozen=True, slots=True)
class AdviceTables:
    """What advice is taken from: `bundle_windows`, `broker_windows`, and the clean reports of both."""

    bundle_windows: DataFrame
    broker_windows: DataFrame
    bundle_reports: DataFrame
    broker_reports: DataFrame


def advice(tables: AdviceTables, settings: PlannerSettings) -> DataFrame:
    """`ADVICE`."""
    parts = [
        frame.select(f.lit(about).alias("about"), f.to_json(f.struct("*")).alias("fact"))
        for about, frame in (
            (_BUNDLE_HOURS, _bundle_hours(tables.bundle_windows)),
            (_BROKER_HOURS, _broker_hours(tables.broker_windows)),
            (_SILENCES, _silences(tables.broker_reports, settings)),
            (_LIMITS, _limits(tables.broker_reports)),
        )
    ]

    def advise(rows: pd.DataFrame) -> pd.DataFrame:
        return _frame(_advise_on(rows["about"].iloc[0], [orjson.loads(fact) for fact in rows["fact"]], settings))

    on_numbers = reduce(DataFrame.unionByName, parts).groupBy("about").applyInPandas(advise, ADVICE)
    return _shape(tables, settings).unionByName(on_numbers)


def _advise_on(about: str, facts: Sequence[dict[str, Any]], settings: PlannerSettings) -> list[Advice]:
    """On the rows of one of the small tables below."""
    if about == _BUNDLE_HOURS:
        return advise_on_bundle_limits(_extents(facts), len(facts), settings)
    if about == _BROKER_HOURS:
        return advise_on_brokers(_extents(facts), len(facts), settings)
    by_broker = sorted(facts, key=lambda fact: fact["broker"])
    if about == _SILENCES:
        return [advise_on_silence(**fact, settings=settings) for fact in by_broker]
    limits = {fact["broker"]: [fact[name] for name in _LIMIT_COLUMNS] for fact in by_broker}
    return advise_on_limits_of_brokers(limits, settings.resource_weights)


def busy_bundles(bundle_windows: DataFrame, bundle_reports: DataFrame) -> DataFrame:
    """The columns of `BusyBundle` and the namespace, of all bundles that were ever reported."""
    rate, bytes_per_s = _both("mean_msg_rate"), _both("mean_msg_throughput")
    carried = hourly(bundle_windows).groupBy("namespace", f.col("bundle").alias("name"))
    busy = carried.agg(
        f.count("*").cast("int").alias("hours"),
        *(
            f.percentile(value, f.lit(_BUSY)).alias(name)
            for name, value in (
                ("topics", f.col("topics")),
                ("sessions", f.col("sessions")),
                ("msg_rate", rate),
                ("throughput", bytes_per_s),
            )
        ),
    )
    reports = bundle_reports.select(bundle_name(packed_bounds()).alias("name"), "broker", "at_ms")
    last = reports.groupBy("name").agg(
        f.max_by("broker", "at_ms").alias("owner"), f.max("at_ms").alias("last_ms"), f.min("at_ms").alias("first_ms")
    )
    others = reports.join(last, "name").where(f.col("broker") != f.col("owner"))
    before = others.groupBy("name").agg(f.max("at_ms").alias("other_ms"))
    known = last.join(before, "name", "left").withColumn("since_ms", f.coalesce("other_ms", "first_ms"))
    return busy.join(known.drop("first_ms", "other_ms"), "name")


def _shape(tables: AdviceTables, settings: PlannerSettings) -> DataFrame:
    bundles = busy_bundles(tables.bundle_windows, tables.bundle_reports)
    ends = tables.bundle_reports.agg(f.max("at_ms").alias("until_ms"))
    recent = bundles.crossJoin(f.broadcast(ends)).where(f.col("last_ms") > f.col("until_ms") - _DAY_MS)

    def advise(rows: pd.DataFrame) -> pd.DataFrame:
        namespace, until_ms = rows["namespace"].iloc[0], int(rows["until_ms"].iloc[0])
        if is_self_test_namespace(namespace):
            return _frame([])
        return _frame(advise_namespace(current(map(_busy, rows.to_dict("records"))), settings, until_ms))

    return recent.groupBy("namespace").applyInPandas(advise, ADVICE)


def _busy(row: Mapping[Any, Any]) -> BusyBundle:
    return BusyBundle(
        name=row["name"],
        owner=row["owner"],
        hours=int(row["hours"]),
        since_ms=int(row["since_ms"]),
        last_ms=int(row["last_ms"]),
        topics=round(row["topics"]),
        sessions=round(row["sessions"]),
        msg_rate=float(row["msg_rate"]),
        throughput=float(row["throughput"]),
    )


def _bundle_hours(bundle_windows: DataFrame) -> DataFrame:
    """Of each hour the most of what limits of bundles limit."""
    return (
        hourly(bundle_windows)
        .groupBy("start_ms")
        .agg(
            f.max("topics").alias("topics"),
            f.max("sessions").alias("sessions"),
            f.max(_both("mean_msg_rate")).alias("msg_rate"),
            f.max(_both("mean_msg_throughput")).alias("throughput"),
        )
    )


def _broker_hours(broker_windows: DataFrame) -> DataFrame:
    """Of each hour what thresholds of brokers are compared with."""
    usage = f.col("mean_usage")
    return (
        hourly(broker_windows)
        .where(usage.isNotNull())
        .groupBy("start_ms")
        .agg(
            (100 * f.max(usage)).alias("usage"),
            (100 * (f.max(usage) - f.mean(usage))).alias("above_mean"),
            f.stddev_pop(usage).alias("deviation"),
        )
    )


def _silences(broker_reports: DataFrame, settings: PlannerSettings) -> DataFrame:
    """The brokers that were silent for too long between two reports of one life."""
    life = Window.partitionBy("broker", "incarnation").orderBy("at_ms")
    silent_s = (f.col("at_ms") - f.lag("at_ms").over(life)) / 1000
    is_quiet = f.col("silent_s") > settings.broker_load_data_ttl_in_seconds
    return (
        broker_reports.select("broker", silent_s.alias("silent_s"))
        .groupBy("broker")
        .agg(
            f.count_if(is_quiet).alias("gaps"),
            f.max("silent_s").alias("longest_s"),
            f.count("*").alias("reports"),
        )
        .where(f.col("gaps") > 0)
    )


def _limits(broker_reports: DataFrame) -> DataFrame:
    """The limits in the last report of each broker, 0 where there is none."""
    return broker_reports.groupBy("broker").agg(
        *(f.max_by(f.coalesce(name, f.lit(0.0)), "at_ms").alias(name) for name in _LIMIT_COLUMNS)
    )


def _both(metric: str) -> Column:
    return f.col(f"{metric}_in") + f.col(f"{metric}_out")


def _extents(hours: Sequence[Mapping[str, float]]) -> dict[str, Extent]:
    """Of every column."""
    return {name: Extent(max(hour[name] for hour in hours), min(hour[name] for hour in hours)) for name in hours[0]}


def _frame(found: Iterable[Advice]) -> pd.DataFrame:
    rows = [(each.kind, each.subject, each.text, orjson.dumps(dict(each.evidence)).decode()) for each in found]
    return pd.DataFrame(rows, columns=ADVICE.names)
