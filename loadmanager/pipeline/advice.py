"""Step `advice`: what the history suggests to change, each finding with its numbers.

The rules are those of the leader. They are applied to the 90th percentile of what each bundle carried in its known
hours, so a bundle above a limit is above it again and again. Single topics are unknown, so splits are taken to be
halves. Bundles without a report are idle and unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.domain.names import (
    HASH_SPACE_END,
    BrokerId,
    BundleName,
    BundleRange,
    NamespaceName,
    is_self_test_namespace,
    namespace_of,
)
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SplitReason, ValidationReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.load import RATED
from loadmanager.core.model.report_validation import weighted_resources
from loadmanager.core.strategies.merging import MergeCandidate, find_merges
from loadmanager.core.strategies.splitting import SPLIT_ALGORITHMS
from loadmanager.core.strategies.splitting.split_finder import SplitCandidate, find_for_modular
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.costs import LIMITS, last_limits
from loadmanager.pipeline.datasets import frame_of, schema_of
from loadmanager.pipeline.minimum_history import known_hours
from loadmanager.pipeline.step import Step

if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun

SPLIT, SPLIT_BLOCKED, UNSPLITTABLE, MERGE = "split", "split_blocked", "unsplittable", "merge"
QUIET, UNKNOWN_LIMITS = "quiet_reports", "unknown_limits"
FEWEST_HOURS = 10
"""Known hours that a 90th percentile needs."""

_QUANTILE = 0.9
_WHY_NOT: dict[Reason, str] = {
    SplitReason.TOO_FEW_TOPICS: UNSPLITTABLE,
    SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES: SPLIT_BLOCKED,
    SplitReason.RANGE_NOT_SPLITTABLE: SPLIT_BLOCKED,
}
_ADVICE = schema_of("advice")


class Advice(NamedTuple):
    """A row of the table `advice`, its evidence not yet encoded."""

    kind: str
    subject: str
    text: str
    evidence: Mapping[str, Figure]

    def row(self) -> tuple[str, str, str, str]:
        return (*self[:3], orjson.dumps(dict(self.evidence)).decode())


@dataclass(frozen=True, slots=True)
class BusyBundle:
    """The 90th percentile of a bundle's load in its known `hours`, rates in and out together.

    `owner` is the last broker that reported it, at `last_ms`; no other broker did since `since_ms`.
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

    @property
    def carried(self) -> tuple[int, int, float, float]:
        return self.topics, self.sessions, self.msg_rate, self.throughput


def _write_advice(run: JobRun) -> None:
    run.require_days()
    bundles, reported_by, reports = (
        run.read(name) for name in ("bundle_windows", "reported_by", "clean_broker_reports")
    )
    young = known_hours(bundles).groupBy("bundle").count().where(f.col("count") < FEWEST_HOURS).count()
    if young:
        run.done.note(f"not judged: bundles with fewer than {FEWEST_HOURS} known hours: {young}")
    run.write("advice", advice(run.recorded.settings.planner_settings(), bundles, reported_by, reports))


STEP = Step(
    "advice",
    _write_advice,
    reads=("broker_windows", "bundle_windows", "reported_by", "clean_broker_reports"),
    writes=("advice",),
)


def advice(
    settings: PlannerSettings, bundle_windows: DataFrame, reported_by: DataFrame, broker_reports: DataFrame
) -> DataFrame:
    last = last_limits(broker_reports).orderBy("broker")
    limits = {row["broker"]: [row[name] or 0.0 for name in LIMITS] for row in _rows(last)}
    found = [
        *(advise_on_silence(**row, settings=settings) for row in _rows(_silences(broker_reports, settings))),
        *advise_on_limits_of_brokers(limits, settings.resource_weights),
    ]
    shapes = _advise_on_namespaces(busy_bundles(bundle_windows, reported_by), reported_by, settings)
    return shapes.unionByName(frame_of(shapes.sparkSession, _ADVICE, [each.row() for each in found]))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _silences(broker_reports: DataFrame, settings: PlannerSettings) -> DataFrame:
    """Find brokers that were silent for too long between two reports of one incarnation."""
    order = Window.partitionBy("broker", "incarnation").orderBy("at_ms")
    silent_s = (f.col("at_ms") - f.lag("at_ms").over(order)) / 1000
    gaps = f.count_if(f.col("silent_s") > settings.broker_load_data_ttl_in_seconds).alias("gaps")
    found = broker_reports.select("broker", silent_s.alias("silent_s")).groupBy("broker")
    intervals = found.agg(gaps, f.max("silent_s").alias("longest_s"), f.count("silent_s").alias("intervals"))
    return intervals.where(f.col("gaps") > 0).orderBy("broker")


def busy_bundles(bundle_windows: DataFrame, reported_by: DataFrame) -> DataFrame:
    """Return the namespace and the columns of `BusyBundle` of each bundle with enough known hours."""
    both = {"msg_rate": "msg_rate", "throughput": "msg_throughput"}
    figures = {name: f.col(f"mean_{metric}_in") + f.col(f"mean_{metric}_out") for name, metric in both.items()}
    figures |= {name: f.col(name) for name in ("topics", "sessions")}
    quantiles = [f.percentile(value, f.lit(_QUANTILE)).alias(name) for name, value in figures.items()]
    carried = known_hours(bundle_windows).groupBy("namespace", f.col("bundle").alias("name"))
    busy = carried.agg(f.count("*").cast("int").alias("hours"), *quantiles).where(f.col("hours") >= FEWEST_HOURS)
    by_broker = reported_by.groupBy(f.col("bundle").alias("name"), "broker").agg(
        f.min("first_ms").alias("first_ms"), f.max("last_ms").alias("last_ms")
    )
    latest_first = Window.partitionBy("name").orderBy(f.desc("last_ms"), "broker")
    first_ms = f.min("first_ms").over(Window.partitionBy("name"))
    known = by_broker.select(
        *("name", f.col("broker").alias("owner"), "last_ms"),
        f.coalesce(f.lead("last_ms").over(latest_first), first_ms).alias("since_ms"),
        f.row_number().over(latest_first).alias("place"),
    )
    return busy.join(known.where(f.col("place") == 1).drop("place"), "name")


def _advise_on_namespaces(bundles: DataFrame, reported_by: DataFrame, settings: PlannerSettings) -> DataFrame:
    """Advise on the bundles that were reported in the last day."""
    ends = reported_by.agg(f.max("last_ms").alias("until_ms"))
    recent = bundles.crossJoin(f.broadcast(ends)).where(f.col("last_ms") > f.col("until_ms") - DAY_MS)

    def advise(rows: pd.DataFrame) -> pd.DataFrame:
        until_ms, found = int(rows["until_ms"].iloc[0]), list[Advice]()
        if not is_self_test_namespace(rows["namespace"].iloc[0]):
            columns = rows.drop(columns=["namespace", "until_ms"]).round({"topics": 0, "sessions": 0})
            columns = columns.astype({"topics": int, "sessions": int})
            shape = current(BusyBundle(**row) for row in columns.to_dict("records"))
            found = advise_namespace(shape, settings, until_ms)
        return pd.DataFrame([each.row() for each in found], columns=_ADVICE.names)

    return recent.groupBy("namespace").applyInPandas(advise, _ADVICE)


def current(bundles: Iterable[BusyBundle]) -> list[BusyBundle]:
    """Return the present bundles of a namespace by range: of two that overlap, the one that was reported later."""
    kept: list[tuple[BundleRange, BusyBundle]] = []
    for bundle in sorted(bundles, key=lambda each: (-each.last_ms, each.name)):
        own = BundleName.parse_any(bundle.name).range
        if all(own.upper <= other.lower or other.upper <= own.lower for other, _ in kept):
            kept.append((own, bundle))
    return [bundle for _, bundle in sorted(kept, key=lambda each: each[0])]


def advise_namespace(bundles: Sequence[BusyBundle], settings: PlannerSettings, until_ms: int) -> list[Advice]:
    """Advise on the present bundles of a namespace, by range; the history ends at `until_ms`."""
    namespace = namespace_of(bundles[0].name)
    hours = {bundle.name: bundle.hours for bundle in bundles}
    whole = _with_gaps([_merge_candidate(bundle, until_ms) for bundle in bundles])
    candidates = [SplitCandidate(each.name, BundleName.parse_any(each.name).range, *each.carried) for each in bundles]
    halves = SPLIT_ALGORITHMS["range_equally_divide"]
    splits = find_for_modular(
        candidates, {namespace: len(whole)}, lambda _, own: halves(own, (), (), settings), settings
    )
    found = []
    for verdict in splits.verdicts:
        kind = SPLIT if verdict.acted else _WHY_NOT.get(verdict.verdict)
        if kind is not None and (kind != UNSPLITTABLE or "above" in verdict.why):
            found.append(_advise_bundle(kind, verdict, hours[verdict.subject]))
    merges, _ = find_merges({namespace: whole}, settings)
    found += [_advise_bundle(MERGE, merge.why, min(hours[merge.lower], hours[merge.upper])) for merge in merges]
    return found


def _advise_bundle(kind: str, verdict: Verdict, hours: int) -> Advice:
    text = f"{verdict.sentence()} (90th percentile of {hours} hours)"
    return Advice(kind, verdict.subject, text, {"reason": str(verdict.verdict), "hours": hours, **verdict.why})


def _merge_candidate(bundle: BusyBundle, until_ms: int) -> MergeCandidate:
    owner, age_s = Registration(BrokerId(bundle.owner), 0), (until_ms - bundle.since_ms) / 1000
    return MergeCandidate(bundle.name, owner, *bundle.carried, age_s=age_s)


def _with_gaps(bundles: Sequence[MergeCandidate]) -> list[MergeCandidate]:
    """Fill ranges of hashes that are in no bundle with unknown bundles without an owner."""
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


def advise_on_silence(broker: str, gaps: int, longest_s: float, intervals: int, settings: PlannerSettings) -> Advice:
    """Advise on a broker that was silent for longer than a report counts, and then reported again."""
    key, most_s = KEYS["broker_load_data_ttl_in_seconds"], settings.broker_load_data_ttl_in_seconds
    text = (
        f"Silent for up to {longest_s:.0f} s: {gaps} of {intervals} intervals between reports exceeded {most_s} s"
        f" ({key}). Meanwhile it neither gave nor got bundles"
    )
    return Advice(QUIET, broker, text, {"gaps": gaps, "longest_s": longest_s, "intervals": intervals, key: most_s})


def advise_on_limits_of_brokers(limits: Mapping[str, Sequence[float]], weights: ResourceWeights) -> list[Advice]:
    """Advise on brokers whose last report has no limit (0) of a resource with a weight; `limits` (5,) by broker."""
    found, rated = [], sorted(weighted_resources(weights))
    for broker, own in limits.items():
        unknown = ", ".join(RATED[resource] for resource in rated if own[resource] <= 0)
        if unknown:
            verdict = Verdict(broker, ValidationReason.LIMIT_UNKNOWN, acted=False, why={"unknown": unknown})
            found.append(Advice(UNKNOWN_LIMITS, broker, verdict.sentence(), verdict.why))
    return found
