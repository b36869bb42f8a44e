"""Split rules: that of Pulsar's modular load manager, and that of its extensible one.

Sources: BundleSplitterTask and DefaultNamespaceBundleSplitStrategyImpl. Both skip a bundle with fewer than two topics,
and split one above a limit if its namespace may have more bundles. Topics and sessions are those of the latest report.
The modular rule compares long-term rates and splits at once; the extensible one compares latest rates, and a bundle has
to be above a limit for more consecutive rounds than a threshold.

Differs from Pulsar: a bandwidth limit of 2048 MiB/s or more does not overflow; a bundle reported by two brokers counts
once, as its owner reports it; a pending split blocks neighbours in the same namespace only, not in one whose name
begins with the same characters; the extensible rule too may cut a bundle at several boundaries. If the maximum number
of bundles does not allow all boundaries, some are used, at even intervals. If topic loads are known and one topic has
nearly all load of a bundle, the bundle is not cut: the part with that topic would be as hot, and be cut again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange, namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import SplitReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.strategies.splitting import MIB, MIN_TOPICS, is_splittable, usable

HOT_TOPIC_SHARE = 0.9
"""Share of its bundle's load from which a single topic makes a split useless."""

LIMIT_KEYS = {
    SplitReason.TOPICS: KEYS["namespace_bundle_max_topics"],
    SplitReason.SESSIONS: KEYS["namespace_bundle_max_sessions"],
    SplitReason.MSG_RATE: KEYS["namespace_bundle_max_msg_rate"],
    SplitReason.BANDWIDTH: KEYS["namespace_bundle_max_bandwidth_mbytes"],
}
"""Limit that the bundle exceeds, by split reason."""

_SHARES = {SplitReason.MSG_RATE: "msg_rate_share_percent", SplitReason.BANDWIDTH: "throughput_share_percent"}
"""Share of the hottest topic in its bundle's load, by split reason."""

_MAXIMUM = KEYS["namespace_maximum_bundles"]
_HITS = KEYS["namespace_bundle_split_condition_hit_count_threshold"]
_PER_CYCLE = KEYS["max_number_of_bundles_to_split_per_cycle"]


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
    """A split at these boundaries: inside the range, ascending, distinct."""

    bundle: str
    boundaries: tuple[int, ...]
    reason: SplitReason


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Splits, a verdict for each bundle considered, and the consecutive rounds of each bundle above a limit."""

    splits: tuple[Split, ...]
    verdicts: tuple[Verdict, ...]
    hits: Mapping[str, int]


Divide = Callable[[str, BundleRange], list[int] | None]
"""Function from a bundle's name and range to boundaries."""

Topics = Mapping[str, Sequence[TopicLoad]]
"""Known topics of bundles, by name."""

_NO_TOPICS: Topics = {}


def find_for_modular(
    candidates: Iterable[SplitCandidate],
    bundle_counts: Mapping[str, int],
    divide: Divide,
    settings: PlannerSettings,
    topics: Topics = _NO_TOPICS,
    *,
    counts_splits: bool = True,
) -> Splits:
    """Apply the modular rule to bundles in report order; `bundle_counts` by namespace.

    Bundles above a limit count against the maximum even if they are not cut. In Pulsar's simple load manager they do
    not (`counts_splits` is False); its rule is the same otherwise, on latest rates.
    """
    judge = _Judge(settings, divide, topics, bundle_counts)
    splits, verdicts = [], []
    for candidate in _one_of_each(candidates):
        reason = find_reason(candidate, settings)
        split = None
        if candidate.topics < MIN_TOPICS:
            verdict = judge.too_few_topics(candidate, reason)
        elif reason is None:
            verdict = judge.refused(candidate, SplitReason.BELOW_SPLIT_LIMITS)
        elif judge.room(candidate) < 1:
            verdict = judge.no_room(candidate, reason)
        else:
            split, verdict = judge.cut(candidate, reason)
            if counts_splits:
                judge.extra[namespace_of(candidate.name)] += len(split.boundaries) if split else 1
        verdicts.append(verdict)
        splits += [split] if split else []
    return Splits(tuple(sorted(splits, key=lambda split: split.bundle)), tuple(verdicts), {})


def find_for_extensible(
    candidates: Iterable[SplitCandidate],
    hits: Mapping[str, int],
    bundle_counts: Mapping[str, int],
    divide: Divide,
    settings: PlannerSettings,
    splitting: Collection[tuple[str, BundleRange]] = (),
    topics: Topics = _NO_TOPICS,
) -> Splits:
    """Apply the extensible rule to the bundles of one broker. `splitting` are namespaces and ranges of pending splits.

    A bundle after the last split of a full round keeps its hits, whatever its load.
    """
    judge = _Judge(settings, divide, topics, bundle_counts)
    after: dict[str, int] = {}
    splits: list[Split] = []
    verdicts = []
    for candidate in candidates:
        before = hits.get(candidate.name, 0)
        is_full = len(splits) >= settings.max_number_of_bundles_to_split_per_cycle
        split, verdict, count = judge.look_at(candidate, before, splitting, is_full=is_full)
        verdicts.append(verdict)
        if count:
            after[candidate.name] = count
        if split is not None:
            splits.append(split)
            judge.extra[namespace_of(candidate.name)] += len(split.boundaries)
    return Splits(tuple(splits), tuple(verdicts), after)


def divide_bundle(
    candidate: SplitCandidate, reason: SplitReason, divide: Divide, settings: PlannerSettings
) -> tuple[Split | None, Verdict]:
    """Divide a bundle on request, regardless of its load and the number of bundles."""
    return _Judge(settings, divide, _NO_TOPICS, {}).divided(candidate, reason, most_boundaries=None)


def find_reason(candidate: SplitCandidate, settings: PlannerSettings) -> SplitReason | None:
    """Return the first limit that the bundle exceeds, None if there is none. At a limit is not above it."""
    if candidate.topics > settings.namespace_bundle_max_topics:
        return SplitReason.TOPICS
    if 0 < settings.namespace_bundle_max_sessions < candidate.sessions:
        return SplitReason.SESSIONS
    if candidate.msg_rate > settings.namespace_bundle_max_msg_rate:
        return SplitReason.MSG_RATE
    if candidate.throughput > settings.namespace_bundle_max_bandwidth_mbytes * MIB:
        return SplitReason.BANDWIDTH
    return None


def _one_of_each(candidates: Iterable[SplitCandidate]) -> Iterable[SplitCandidate]:
    """Deduplicate bundles at their first position, preferring the owner's report."""
    chosen: dict[str, SplitCandidate] = {}
    for candidate in candidates:
        known = chosen.get(candidate.name)
        if known is None or (candidate.is_owned and not known.is_owned):
            chosen[candidate.name] = candidate
    return chosen.values()


@dataclass(slots=True)
class _Judge:
    """Context of one round. `extra` counts the bundles added to each namespace so far."""

    settings: PlannerSettings
    divide: Divide
    topics: Topics
    bundle_counts: Mapping[str, int]
    extra: Counter[str] = field(default_factory=Counter)
    limits: Mapping[str, Figure] = field(init=False)

    def __post_init__(self) -> None:
        self.limits = _limits(self.settings)

    def look_at(
        self, candidate: SplitCandidate, hits: int, splitting: Collection[tuple[str, BundleRange]], *, is_full: bool
    ) -> tuple[Split | None, Verdict, int]:
        """Apply the extensible rule; returns the new hits too. `is_full`: the round has all its splits."""
        reason = find_reason(candidate, self.settings)
        not_counted = self._find_not_counted(candidate, reason)
        if not_counted is not None:
            return None, not_counted, hits
        if reason is None:
            return None, self.refused(candidate, SplitReason.BELOW_SPLIT_LIMITS), hits if is_full else 0
        if is_full:
            most = {_PER_CYCLE: self.settings.max_number_of_bundles_to_split_per_cycle}
            return None, self.refused(candidate, SplitReason.SPLIT_ROUND_FULL, above=LIMIT_KEYS[reason], **most), hits
        count = hits + 1
        not_yet = self._find_not_yet(candidate, reason, count, splitting)
        if not_yet is not None:
            return None, not_yet, count
        split, verdict = self.cut(candidate, reason)
        return split, verdict, 0 if split else count

    def _find_not_counted(self, candidate: SplitCandidate, reason: SplitReason | None) -> Verdict | None:
        """Return the reason why the extensible rule leaves the hits unchanged, None if it does not."""
        if candidate.topics < MIN_TOPICS:
            return self.too_few_topics(candidate, reason)
        if not candidate.is_owned:
            return self.refused(candidate, SplitReason.NOT_OWNED)
        if candidate.range is None or not is_splittable(candidate.range):
            return self.refused(candidate, SplitReason.RANGE_NOT_SPLITTABLE)
        return None

    def _find_not_yet(
        self, candidate: SplitCandidate, reason: SplitReason, hits: int, splitting: Collection[tuple[str, BundleRange]]
    ) -> Verdict | None:
        """Return the reason why the extensible rule only counts a hit, None if it splits."""
        threshold = self.settings.namespace_bundle_split_condition_hit_count_threshold
        if hits <= threshold:
            return self.refused(candidate, SplitReason.TOO_FEW_SPLIT_HITS, hits=hits, **{_HITS: threshold})
        if self.room(candidate) < 1:
            return self.no_room(candidate, reason)
        if _shares_an_end(candidate, splitting):
            return self.refused(candidate, SplitReason.SPLIT_IN_PROGRESS, hits=hits)
        return None

    def cut(self, candidate: SplitCandidate, reason: SplitReason) -> tuple[Split | None, Verdict]:
        """Split a bundle above a limit, unless that could not help."""
        hot = self._find_hot_topic(candidate, reason)
        if hot is not None:
            return None, hot
        return self.divided(candidate, reason, most_boundaries=self.room(candidate))

    def divided(
        self, candidate: SplitCandidate, reason: SplitReason, most_boundaries: int | None
    ) -> tuple[Split | None, Verdict]:
        """Split the bundle for this reason, if the algorithm finds boundaries; `most_boundaries` None: any number."""
        if candidate.range is None or not is_splittable(candidate.range):
            return None, self.refused(candidate, SplitReason.RANGE_NOT_SPLITTABLE)
        found = self.divide(candidate.name, candidate.range)
        if not found:
            return None, self.refused(candidate, SplitReason.NO_SPLIT_BOUNDARY)
        boundaries = usable(candidate.range, found)
        if not boundaries:
            return None, self.refused(candidate, SplitReason.SPLIT_BOUNDARY_AT_END, boundary=f"0x{found[0]:08x}")
        used = boundaries if most_boundaries is None else _some_of(boundaries, most_boundaries)
        why = {**candidate.why(), **self.limits, "parts": len(used) + 1}
        if len(used) < len(boundaries):
            why |= {"parts_wanted": len(boundaries) + 1, _MAXIMUM: self.settings.namespace_maximum_bundles}
        return Split(candidate.name, tuple(used), reason), Verdict(candidate.name, reason, acted=True, why=why)

    def room(self, candidate: SplitCandidate) -> int:
        """Return the number of bundles that its namespace may still add."""
        return self.settings.namespace_maximum_bundles - self._bundles(candidate)

    def no_room(self, candidate: SplitCandidate, reason: SplitReason) -> Verdict:
        why = {"bundles": self._bundles(candidate), _MAXIMUM: self.settings.namespace_maximum_bundles}
        return self.refused(candidate, SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES, above=LIMIT_KEYS[reason], **why)

    def too_few_topics(self, candidate: SplitCandidate, reason: SplitReason | None) -> Verdict:
        """Return the verdict on a bundle with too few topics; `above` is the limit that it exceeds, if any."""
        if reason is None or candidate.topics == 0:
            return self.refused(candidate, SplitReason.TOO_FEW_TOPICS)
        return self.refused(candidate, SplitReason.TOO_FEW_TOPICS, above=LIMIT_KEYS[reason])

    def refused(self, candidate: SplitCandidate, reason: SplitReason, **more: Figure) -> Verdict:
        return Verdict(candidate.name, reason, acted=False, why={**candidate.why(), **self.limits, **more})

    def _bundles(self, candidate: SplitCandidate) -> int:
        namespace = namespace_of(candidate.name)
        return self.bundle_counts.get(namespace, 1) + self.extra[namespace]

    def _find_hot_topic(self, candidate: SplitCandidate, reason: SplitReason) -> Verdict | None:
        """Refuse a split that cannot divide the load because it is that of one topic."""
        topics = self.topics.get(candidate.name, ()) if reason in _SHARES else ()
        if not topics:
            return None
        if reason is SplitReason.MSG_RATE:
            limit, whole = float(self.settings.namespace_bundle_max_msg_rate), candidate.msg_rate
            loads = [topic.msg_rate for topic in topics]
        else:
            limit, whole = float(self.settings.namespace_bundle_max_bandwidth_mbytes * MIB), candidate.throughput
            loads = [topic.throughput for topic in topics]
        highest, whole = max(loads), max(whole, sum(loads))
        if highest <= limit or highest < HOT_TOPIC_SHARE * whole:
            return None
        share = {_SHARES[reason]: 100 * highest / whole}
        return self.refused(candidate, SplitReason.ONE_HOT_TOPIC, topic=topics[loads.index(highest)].name, **share)


def _shares_an_end(candidate: SplitCandidate, splitting: Collection[tuple[str, BundleRange]]) -> bool:
    own, namespace = candidate.range, namespace_of(candidate.name)
    assert own is not None, "only bundles with a range are counted"
    return any(
        namespace == other and (own.lower == in_progress.lower or own.upper == in_progress.upper)
        for other, in_progress in splitting
    )


def _some_of(boundaries: Sequence[int], most: int) -> Sequence[int]:
    if len(boundaries) <= most:
        return boundaries
    return [boundaries[step * len(boundaries) // (most + 1)] for step in range(1, most + 1)]


def _limits(settings: PlannerSettings) -> dict[str, Figure]:
    return settings.as_figures(
        "namespace_bundle_max_topics",
        "namespace_bundle_max_sessions",
        "namespace_bundle_max_msg_rate",
        "namespace_bundle_max_bandwidth_mbytes",
    )
