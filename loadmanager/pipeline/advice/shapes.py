"""On the shape of a namespace: what the leader's rules would split and merge, and how many bundles it has in the end.

The history knows no single topics, so splits are taken to be halves. Bundles that nobody reports are idle and not
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loadmanager.core.merging import MergeCandidate, find_merges
from loadmanager.core.names import (
    HASH_SPACE_END,
    BrokerId,
    BundleName,
    BundleRange,
    NamespaceName,
    namespace_of,
)
from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Figure, Verdict
from loadmanager.core.reasons import Reason, SplitReason
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.splitting import SPLIT_ALGORITHMS
from loadmanager.core.splitting.base import MIB
from loadmanager.core.splitting.finder import Split, SplitCandidate, find_for_modular
from loadmanager.pipeline.advice.pieces import BUNDLES, MERGE, SPLIT, SPLIT_BLOCKED, UNSPLITTABLE, Advice

_MOST_ROUNDS = 500
"""Merges of one namespace that are thought through, one after the other."""
_WHY_NOT: dict[Reason, str] = {
    SplitReason.TOO_FEW_TOPICS: UNSPLITTABLE,
    SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES: SPLIT_BLOCKED,
    SplitReason.RANGE_NOT_SPLITTABLE: SPLIT_BLOCKED,
}
_NOBODY = Registration(BrokerId(""), 0)


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
