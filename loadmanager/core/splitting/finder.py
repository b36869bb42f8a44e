"""Which bundles are split: the rule of Pulsar's modular load manager, and that of its extensible one.

Sources: BundleSplitterTask and DefaultNamespaceBundleSplitStrategyImpl. Both pass over a bundle with fewer than two
topics, and take one that is above a limit, if its namespace may have more bundles. Topics and sessions are those of
the latest report. The modular rule compares long-term rates, at once; the extensible one the latest rates, and a bundle
has to be above a limit more often in succession than a threshold.

Differs from Pulsar: a bandwidth limit of 2048 MiB/s or more does not overflow; a bundle reported by two brokers counts
once; a split under way blocks its neighbours of the same namespace, not of one whose name begins alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from loadmanager.core.names import BundleRange, namespace_of
from loadmanager.core.plan import Figure, Reason, Verdict
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.splitting.base import MIB, MIN_TOPICS, are_inside, is_splittable


@dataclass(frozen=True, slots=True)
class SplitCandidate:
    """A bundle as its broker reports it. Rates are those that the rule compares, in and out together.

    `range` is None for a bundle known by a label, `is_owned` False for one that its reporter does not own.
    """

    name: str
    range: BundleRange | None
    topics: int
    sessions: int
    msg_rate: float
    throughput: float
    is_owned: bool = True

    def why(self) -> dict[str, Figure]:
        return {
            "topics": self.topics,
            "sessions": self.sessions,
            "msg_rate_per_s": self.msg_rate,
            "mib_per_s": self.throughput / MIB,
        }


@dataclass(frozen=True, slots=True)
class Split:
    """Cut the bundle at these boundaries."""

    bundle: str
    boundaries: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """What to split, a verdict for each bundle looked at, and how often bundles were above a limit in succession."""

    splits: tuple[Split, ...]
    verdicts: tuple[Verdict, ...]
    hits: Mapping[str, int]


Divide = Callable[[str, BundleRange], list[int] | None]
"""The algorithm asked about a bundle by its name and range."""


def find_for_modular(
    candidates: Sequence[SplitCandidate], bundle_counts: Mapping[str, int], divide: Divide, settings: PlannerSettings
) -> Splits:
    """Bundles in the order of their reports; `bundle_counts` by namespace. One above a limit counts, cut or not."""
    extra: Counter[str] = Counter()
    splits, verdicts, seen = [], [], set()
    for candidate in candidates:
        if candidate.name in seen:
            continue
        seen.add(candidate.name)
        namespace = namespace_of(candidate.name)
        reason = find_reason(candidate, settings)
        if candidate.topics < MIN_TOPICS:
            refusal: Reason | None = Reason.TOO_FEW_TOPICS
        elif reason is None:
            refusal = Reason.BELOW_SPLIT_LIMITS
        else:
            refusal = _full(bundle_counts, extra, namespace, settings)
        if reason is None or refusal is not None:
            verdicts.append(_refused(candidate, refusal or Reason.BELOW_SPLIT_LIMITS, settings))
            continue
        extra[namespace] += 1
        split, verdict = divide_bundle(candidate, reason, divide, settings)
        verdicts.append(verdict)
        splits += [split] if split else []
    return Splits(tuple(sorted(splits, key=lambda split: split.bundle)), tuple(verdicts), {})


def find_for_extensible(
    candidates: Sequence[SplitCandidate],
    hits: Mapping[str, int],
    bundle_counts: Mapping[str, int],
    divide: Divide,
    settings: PlannerSettings,
    splitting: Collection[tuple[str, BundleRange]] = (),
) -> Splits:
    """The bundles of one broker, one cycle. `splitting` are the namespaces and ranges with a split under way."""
    names = {candidate.name for candidate in candidates}
    after = {name: count for name, count in hits.items() if name in names}
    extra: Counter[str] = Counter()
    splits: list[Split] = []
    verdicts = []
    for candidate in candidates:
        if len(splits) == settings.max_number_of_bundles_to_split_per_cycle:
            verdicts.append(_refused(candidate, Reason.SPLIT_CYCLE_FULL, settings))
            continue
        not_counted = _refusal_of_count(candidate)
        if not_counted is not None:
            verdicts.append(_refused(candidate, not_counted, settings))
            continue
        reason = find_reason(candidate, settings)
        if reason is None:
            after.pop(candidate.name, None)
            verdicts.append(_refused(candidate, Reason.BELOW_SPLIT_LIMITS, settings))
            continue
        count = after[candidate.name] = after.get(candidate.name, 0) + 1
        namespace = namespace_of(candidate.name)
        refusal = (
            _too_few_hits(count, settings)
            or _full(bundle_counts, extra, namespace, settings)
            or _blocked(candidate, splitting)
        )
        if refusal is not None:
            verdicts.append(_refused(candidate, refusal, settings, hits=count))
            continue
        split, verdict = divide_bundle(candidate, reason, divide, settings, max_boundaries=1)
        verdicts.append(verdict)
        if split is not None:
            splits.append(split)
            extra[namespace] += 1
            del after[candidate.name]
    return Splits(tuple(splits), tuple(verdicts), after)


def divide_bundle(
    candidate: SplitCandidate,
    reason: Reason,
    divide: Divide,
    settings: PlannerSettings,
    max_boundaries: int | None = None,
) -> tuple[Split | None, Verdict]:
    """The split of this bundle for this reason; None if it has no place to cut, or more than may be used."""
    if candidate.range is None or not is_splittable(candidate.range):
        return None, _refused(candidate, Reason.RANGE_NOT_SPLITTABLE, settings)
    boundaries = divide(candidate.name, candidate.range)
    if not boundaries:
        return None, _refused(candidate, Reason.NO_SPLIT_BOUNDARY, settings)
    if not are_inside(candidate.range, boundaries):
        return None, _refused(candidate, Reason.SPLIT_BOUNDARY_AT_END, settings, boundary=f"0x{boundaries[0]:08x}")
    if max_boundaries is not None and len(boundaries) > max_boundaries:
        return None, _refused(candidate, Reason.TOO_MANY_SPLIT_BOUNDARIES, settings, boundaries=len(boundaries))
    why = {**candidate.why(), **_limits(settings), "parts": len(boundaries) + 1}
    return Split(candidate.name, tuple(boundaries), reason), Verdict(candidate.name, reason, acted=True, why=why)


def find_reason(candidate: SplitCandidate, settings: PlannerSettings) -> Reason | None:
    """The first limit that the bundle is above, None for none. At a limit is not above it."""
    if candidate.topics > settings.namespace_bundle_max_topics:
        return Reason.TOPICS
    if 0 < settings.namespace_bundle_max_sessions < candidate.sessions:
        return Reason.SESSIONS
    if candidate.msg_rate > settings.namespace_bundle_max_msg_rate:
        return Reason.MSG_RATE
    if candidate.throughput > settings.namespace_bundle_max_bandwidth_mbytes * MIB:
        return Reason.BANDWIDTH
    return None


def _refusal_of_count(candidate: SplitCandidate) -> Reason | None:
    """Why the extensible rule does not even count the bundle."""
    if candidate.topics < MIN_TOPICS:
        return Reason.TOO_FEW_TOPICS
    if not candidate.is_owned:
        return Reason.NOT_OWNED
    if candidate.range is None or not is_splittable(candidate.range):
        return Reason.RANGE_NOT_SPLITTABLE
    return None


def _too_few_hits(count: int, settings: PlannerSettings) -> Reason | None:
    is_enough = count > settings.namespace_bundle_split_condition_hit_count_threshold
    return None if is_enough else Reason.TOO_FEW_SPLIT_HITS


def _full(
    bundle_counts: Mapping[str, int], extra: Mapping[str, int], namespace: str, settings: PlannerSettings
) -> Reason | None:
    bundles = bundle_counts.get(namespace, 1) + extra.get(namespace, 0)
    return Reason.NAMESPACE_HAS_MAXIMUM_BUNDLES if bundles >= settings.namespace_maximum_bundles else None


def _blocked(candidate: SplitCandidate, splitting: Collection[tuple[str, BundleRange]]) -> Reason | None:
    own, namespace = candidate.range, namespace_of(candidate.name)
    assert own is not None, "only bundles with a range are counted"
    blocked = any(
        namespace == other and (own.lower == under_way.lower or own.upper == under_way.upper)
        for other, under_way in splitting
    )
    return Reason.SPLIT_UNDER_WAY if blocked else None


def _refused(candidate: SplitCandidate, reason: Reason, settings: PlannerSettings, **more: Figure) -> Verdict:
    return Verdict(candidate.name, reason, acted=False, why={**candidate.why(), **_limits(settings), **more})


def _limits(settings: PlannerSettings) -> dict[str, Figure]:
    return {
        "loadBalancerNamespaceBundleMaxTopics": settings.namespace_bundle_max_topics,
        "loadBalancerNamespaceBundleMaxSessions": settings.namespace_bundle_max_sessions,
        "loadBalancerNamespaceBundleMaxMsgRate": settings.namespace_bundle_max_msg_rate,
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": settings.namespace_bundle_max_bandwidth_mbytes,
        "loadBalancerNamespaceMaximumBundles": settings.namespace_maximum_bundles,
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": (
            settings.namespace_bundle_split_condition_hit_count_threshold
        ),
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle": settings.max_number_of_bundles_to_split_per_cycle,
    }
