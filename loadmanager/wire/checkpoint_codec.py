"""Exact JSON of the history: checkpoints, steps of decisions, and inputs of split and merge rounds.

A checkpoint has all inputs of decisions, in a head and in parts small enough for one entry each. Encoding is exact:
decoding gives equal values. Contents are computed by the writer, not when the checkpoint is taken; until then only
references are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BrokerId, BundleRange
from loadmanager.core.domain.ownership import FREE, Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.core.model.extensible_load import LoadAverage
from loadmanager.core.model.load import METRICS, BrokerReport
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults
from loadmanager.core.model.reporters import ReportingBroker
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.model.snapshot_builder import ModelCheckpoint
from loadmanager.core.model.time_means import TimeMeans
from loadmanager.core.strategies.merging import Merge, MergeCandidate
from loadmanager.core.strategies.splitting.split_finder import Split, SplitCandidate
from loadmanager.core.strategies.splitting.split_round import SplitQuestion
from loadmanager.wire.dump_line import NON_FINITE

BUNDLES, BROKERS, NAMESPACES = "bundles", "brokers", "namespaces"
"""Kinds of parts."""

_BUNDLES_PER_PART = 500
_BROKERS_PER_PART = 50
_COLUMNS: dict[str, Any] = {
    "short": np.float64,
    "long": np.float64,
    "short_samples": np.int8,
    "long_samples": np.int16,
    "topics": np.int32,
    "reporter": np.int32,
    "owner": np.int32,
    "destination": np.int32,
    "recorded": np.int8,
    "by_range": np.bool_,
}
"""Columns of a checkpoint per bundle, besides its name."""
_TIME_MEANS: dict[str, Any] = {
    "mean": np.float32,
    "last": np.float32,
    "reported_s": np.uint32,
    "sigma": np.float32,
}
"""Columns of means over time."""
_BY_METRIC = ("short", "long", "mean", "last")

_REPORT_COLUMNS = ("bundle_load", "bundle_topics", "bundle_sessions", "bundle_cache_bytes")

Record = tuple[Sequence[str], Sequence[Ownership]]
"""Bundles of a namespace, and their ownerships in the same order."""


@dataclass(frozen=True, slots=True)
class Later:
    """JSON value that is computed when it is written; see `core.planning.decision_kinds.InColumns`."""

    work_out: Callable[[], Any]

    def as_json(self) -> Any:  # noqa: ANN401 - whatever JSON can hold
        return self.work_out()


def head_of(checkpoint: ModelCheckpoint) -> dict[str, Any]:
    """Return the head of a checkpoint. The writer adds `parts`, the number of parts."""
    return {
        "revision": checkpoint.revision,
        "bundles": len(checkpoint.names),
        "registrations": [[each.broker, each.incarnation] for each in checkpoint.registrations],
        "withRecord": list(checkpoint.with_record),
        "unloaded": checkpoint.unloaded,
        "unloadedFrom": checkpoint.unloaded_from,
    }


def parts_of(checkpoint: ModelCheckpoint, records: Mapping[str, Record]) -> Iterator[tuple[str, Later]]:
    """Yield the parts in order, each with its kind."""
    for first in range(0, len(checkpoint.names), _BUNDLES_PER_PART):
        yield BUNDLES, Later(lambda own=slice(first, first + _BUNDLES_PER_PART): _bundles(checkpoint, own))  # type: ignore[misc]
    for first in range(0, len(checkpoint.brokers), _BROKERS_PER_PART):
        brokers = checkpoint.brokers[first : first + _BROKERS_PER_PART]
        yield BROKERS, Later(lambda own=brokers: [_broker(each) for each in own])  # type: ignore[misc]
    for own in _batches(records):
        yield NAMESPACES, Later(lambda own=own: {name: record_as_json(record) for name, record in own.items()})  # type: ignore[misc]


def read_checkpoint(
    head: Mapping[str, Any], parts: Iterable[tuple[str, Any]]
) -> tuple[ModelCheckpoint, dict[str, Record]]:
    """Rebuild the checkpoint and the records from `head_of` and `parts_of`."""
    bundles: dict[str, list[Any]] = {name: [] for name in ("names", *_COLUMNS, *_TIME_MEANS)}
    brokers: list[ReportingBroker] = []
    records: dict[str, Record] = {}
    for kind, content in parts:
        if kind == BUNDLES:
            for name in bundles:
                bundles[name] += content[name]
        elif kind == BROKERS:
            brokers += [_broker_of(each) for each in content]
        else:
            records |= {name: record_of(name, each) for name, each in content.items()}
    names = tuple(bundles.pop("names"))
    dtypes = {**_COLUMNS, **_TIME_MEANS}
    columns: dict[str, Any] = {
        name: np.array(values, dtype=dtypes[name]).reshape((-1, METRICS) if name in _BY_METRIC else -1)
        for name, values in bundles.items()
    }
    means = TimeMeans(**{name: columns.pop(name) for name in _TIME_MEANS})
    checkpoint = ModelCheckpoint(
        revision=head["revision"],
        names=names,
        registrations=tuple(Registration(BrokerId(broker), life) for broker, life in head["registrations"]),
        brokers=tuple(brokers),
        with_record=tuple(head["withRecord"]),
        unloaded=head["unloaded"],
        unloaded_from={BrokerId(broker): at_s for broker, at_s in head["unloadedFrom"].items()},
        time_means=means,
        **columns,
    )
    return checkpoint, records


def record_as_json(record: Record) -> dict[str, Any]:
    """Encode a namespace's record: the ranges of its bundles, and the ownership of each."""
    names, ownerships = record
    return {"ranges": [name.rpartition("/")[2] for name in names], "ownerships": [*map(owned_as_json, ownerships)]}


def record_of(namespace: str, content: Mapping[str, Any]) -> Record:
    return [f"{namespace}/{each}" for each in content["ranges"]], [*map(owned_of, content["ownerships"])]


def owned_as_json(ownership: Ownership) -> list[Any]:
    """Encode an ownership: state, owner and its incarnation, destination and its incarnation, version, epoch, since
    (ms), reason.
    """
    if ownership == FREE:
        return []
    owner, destination = ownership.owner, ownership.destination
    return [
        str(ownership.state),
        *((owner.broker, owner.incarnation) if owner else (None, None)),
        *((destination.broker, destination.incarnation) if destination else (None, None)),
        ownership.version,
        ownership.epoch,
        ownership.since_ms,
        ownership.reason,
    ]


def owned_of(content: Sequence[Any]) -> Ownership:
    if not content:
        return FREE
    state, owner, life, destination, next_life, *rest = content
    return Ownership(
        OwnershipState(state),
        None if owner is None else Registration(BrokerId(owner), life),
        None if destination is None else Registration(BrokerId(destination), next_life),
        *rest,
    )


def faults_as_json(faults: ReportFaults) -> dict[str, Any]:
    """Encode the verdicts on brokers by report validation: subject, reason and figures of each."""
    return {
        "rejected": [[each.subject, each.verdict.value, each.why] for each in faults.rejected.values()],
        "remarks": [[each.subject, each.verdict.value, each.why] for each in faults.remarks],
        "sick": [[each.subject, each.verdict.value, each.why] for each in faults.sick.values()],
    }


def faults_of(content: Mapping[str, Any]) -> ReportFaults:
    rejected, remarks, sick = (
        [Verdict(subject, reason_of(reason), acted=False, why=why) for subject, reason, why in content.get(key, ())]
        for key in ("rejected", "remarks", "sick")
    )
    if not (rejected or remarks or sick):
        return NO_FAULTS
    return ReportFaults(
        {BrokerId(each.subject): each for each in rejected},
        tuple(remarks),
        {BrokerId(each.subject): each for each in sick},
    )


def unquoted(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value with its quoted non-finite numbers as numbers: see `wire.dump_line.quoted`."""
    if isinstance(value, dict):
        return {key: unquoted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unquoted(each) for each in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def report_as_json(report: BrokerReport) -> dict[str, Any]:
    """Encode a report with its bundles, by field name."""
    values = {each.name: getattr(report, each.name) for each in fields(report)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def report_of(content: Mapping[str, Any]) -> BrokerReport:
    values = dict(content)
    values["usage"] = np.array(content["usage"], dtype=np.float64).reshape(-1, 2)
    values["load"] = np.array(content["load"], dtype=np.float64)
    values["bundle_names"] = tuple(content["bundle_names"])
    values["health"] = None if content.get("health") is None else HealthFigures(*content["health"])
    load, *counts = _REPORT_COLUMNS
    values[load] = np.array(content[load], dtype=np.float64).reshape(-1, METRICS)
    for name in counts:
        values[name] = np.array(content[name], dtype=np.int64)
    return BrokerReport(**values)


def _bundles(checkpoint: ModelCheckpoint, own: slice) -> dict[str, Any]:
    columns = [(checkpoint, _COLUMNS), (checkpoint.time_means, _TIME_MEANS)]
    values = {name: getattr(holder, name)[own].tolist() for holder, names in columns for name in names}
    return {"names": checkpoint.names[own], **values}


def _broker(broker: ReportingBroker) -> dict[str, Any]:
    average = broker.average
    top, throughput = broker.busiest()
    return {
        "registration": [broker.registration.broker, broker.registration.incarnation],
        "report": report_as_json(broker.report),
        "bundles": broker.rows.tolist(),
        "top": top.tolist(),
        "topThroughput": throughput.tolist(),
        "average": {each.name: getattr(average, each.name) for each in fields(average)},
        "overtaken": bool(broker.overtaken),
        "unknown": None if broker.unknown is None else report_as_json(broker.unknown),
    }


def _broker_of(content: Mapping[str, Any]) -> ReportingBroker:
    broker, life = content["registration"]
    unknown = content["unknown"]
    top, throughput = np.array(content["top"], dtype=np.int32), np.array(content["topThroughput"], dtype=np.float64)
    return ReportingBroker(
        registration=Registration(BrokerId(broker), life),
        row=NOBODY,
        report=report_of(content["report"]),
        rows=np.array(content["bundles"], dtype=np.int32),
        busiest=lambda: (top, throughput),
        average=LoadAverage(**content["average"]),
        overtaken=content["overtaken"],
        unknown=None if unknown is None else report_of(unknown),
    )


def _batches(records: Mapping[str, Record]) -> Iterator[dict[str, Record]]:
    batch: dict[str, Record] = {}
    bundles = 0
    for name, record in sorted(records.items()):
        batch[name] = record
        bundles += len(record[0])
        if bundles >= _BUNDLES_PER_PART:
            yield batch
            batch, bundles = {}, 0
    if batch:
        yield batch


def step_as_json(step: Assign | Unload) -> dict[str, Any]:
    source = step.source if isinstance(step, Unload) else None
    destination = step.destination
    return {
        "kind": "unload" if isinstance(step, Unload) else "assign",
        "bundle": step.bundle,
        "source": source.broker if source else None,
        "source_incarnation": source.incarnation if source else None,
        "destination": destination.broker if destination else None,
        "destination_incarnation": destination.incarnation if destination else None,
        "reason": step.reason.value,
    }


def split_as_json(split: Split) -> dict[str, Any]:
    detail = {"boundaries": list(split.boundaries)}
    return {"kind": "split", "bundle": split.bundle, "reason": split.reason.value, "detail": detail}


def merge_as_json(merge: Merge) -> dict[str, Any]:
    return {"kind": "merge", "bundle": merge.lower, "detail": {"with": merge.upper}}


def question_as_json(question: SplitQuestion) -> dict[str, Any]:
    return {
        "lookedAt": [[broker, [*map(_split_as_json, own)]] for broker, own in question.looked_at],
        "counts": question.counts,
        "topics": {bundle: [topic[:4] for topic in topics] for bundle, topics in question.topics.items()},
        "inProgress": sorted([namespace, str(own)] for namespace, own in question.in_progress),
        "before": question.before,
    }


def question_of(content: Mapping[str, Any]) -> SplitQuestion:
    return SplitQuestion(
        tuple((Registration(*broker), tuple(map(_split_of, own))) for broker, own in content["lookedAt"]),
        content["counts"],
        {bundle: [TopicLoad(*topic) for topic in topics] for bundle, topics in content["topics"].items()},
        frozenset((namespace, BundleRange.parse(own)) for namespace, own in content["inProgress"]),
        content["before"],
    )


def _split_as_json(candidate: SplitCandidate) -> list[Any]:
    own = candidate.range
    return [candidate.name, None if own is None else str(own), *astuple(candidate)[2:]]


def _split_of(content: Sequence[Any]) -> SplitCandidate:
    name, own, *rest = content
    return SplitCandidate(name, None if own is None else BundleRange.parse(own), *rest)


def merging_as_json(namespaces: Mapping[str, Sequence[MergeCandidate]]) -> dict[str, Any]:
    return {name: [*map(astuple, own)] for name, own in namespaces.items()}


def merging_of(content: Mapping[str, Any]) -> dict[str, list[MergeCandidate]]:
    return {name: [*map(_merge_of, own)] for name, own in content.items()}


def _merge_of(content: Sequence[Any]) -> MergeCandidate:
    name, owner, *rest = content
    return MergeCandidate(name, None if owner is None else Registration(*owner), *rest)
