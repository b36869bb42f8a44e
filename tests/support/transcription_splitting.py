"""Pulsar's split algorithms and the two rules that find what to split, word by word: slow, and nothing but the rules.

Integers are as wide as they have to be: the thresholds that overflow in Pulsar do not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MIB = 1024 * 1024
MAX_UINT = 2**32 - 1

Topic = tuple[int, int, int]
"""Its hash, messages/s and bytes/s."""


@dataclass
class Rule:
    max_topics: int = 1000
    max_sessions: int = 1000
    max_rate: int = 30_000
    max_mbytes: int = 100
    max_bundles: int = 128
    hit_threshold: int = 3
    per_cycle: int = 10
    difference_percent: int = 10


@dataclass
class Bundle:
    """`rate` and `throughput` are what the rule compares: long-term ones for the modular rule, else the latest."""

    namespace: str
    lower: int
    upper: int
    topics: int
    consumers: int
    producers: int
    rate: int
    throughput: int
    owned: bool = True

    @property
    def name(self) -> str:
        return f"{self.namespace}/0x{self.lower:08x}_0x{self.upper:08x}"


def range_equally_divide(lower: int, upper: int) -> list[int]:
    return [lower + (upper - lower) // 2]


def topic_count_equally_divide(hashes: Sequence[int]) -> list[int] | None:
    if len(hashes) <= 1:
        return None
    ordered = sorted(hashes)
    start = ordered[max(len(ordered) // 2 - 1, 0)]
    end = ordered[len(ordered) // 2]
    return [start + (end - start) // 2]


def specified_positions_divide(
    lower: int, upper: int, hashes: Sequence[int], positions: Sequence[int]
) -> list[int] | None:
    if len(positions) == 0:
        raise ValueError("no positions")
    if len(hashes) <= 1:
        return None
    inside = [position for position in sorted(positions) if lower < position < upper]
    return inside or None


def flow_or_qps_equally_divide(topics: Sequence[Topic], rule: Rule) -> list[int] | None:
    if len(topics) <= 1:
        return None
    info: dict[int, tuple[int, int]] = {}
    hashes = []
    total_rate = total_bytes = 0
    for topic_hash, rate, throughput in topics:
        if rate > 0 or throughput > 0:
            info[topic_hash] = (rate, throughput)
            hashes.append(topic_hash)
            total_rate += rate
            total_bytes += throughput
    max_bytes = rule.max_mbytes * MIB
    slack = 1 + rule.difference_percent / 100
    if len(info) < 2 or (total_rate < rule.max_rate * slack and total_bytes < max_bytes * slack):
        return None
    hashes.sort()
    rate, throughput = info[hashes[0]]
    boundaries = []
    for i in range(1, len(hashes)):
        more_rate, more_bytes = info[hashes[i]]
        if rate + more_rate > rule.max_rate or throughput + more_bytes > max_bytes:
            boundaries.append(hashes[i - 1] + (hashes[i] - hashes[i - 1]) // 2 + 1)
            rate, throughput = more_rate, more_bytes
        else:
            rate += more_rate
            throughput += more_bytes
    return boundaries


Algorithm = Callable[[Bundle], list[int] | None]


def split_bundles(bundle: Bundle, boundaries: Sequence[int] | None) -> list[tuple[int, int]] | None:
    """The ranges of the children; None when nothing is split, or the split fails."""
    if not boundaries:
        return None
    ordered = sorted(boundaries)
    if not (bundle.lower < ordered[0] and ordered[-1] < bundle.upper):
        return None
    ends = [bundle.lower, *ordered, bundle.upper]
    children = [(ends[i], ends[i + 1]) for i in range(len(ends) - 1)]
    return None if any(lower == upper for lower, upper in children) else children


def modular(
    brokers: Sequence[Sequence[Bundle]], counts: Mapping[str, int], rule: Rule, algorithm: Algorithm
) -> dict[str, list[tuple[int, int]]]:
    """The children of each bundle that is split."""
    hot: dict[str, Bundle] = {}
    extra: dict[str, int] = {}
    for bundles in brokers:
        for bundle in bundles:
            if bundle.topics < 2:
                continue
            sessions = bundle.consumers + bundle.producers
            if (
                bundle.topics > rule.max_topics
                or (rule.max_sessions > 0 and sessions > rule.max_sessions)
                or bundle.rate > rule.max_rate
                or bundle.throughput > rule.max_mbytes * MIB
            ) and counts[bundle.namespace] + extra.get(bundle.namespace, 0) < rule.max_bundles:
                hot[bundle.name] = bundle
                extra[bundle.namespace] = extra.get(bundle.namespace, 0) + 1
    children = {}
    for name, bundle in hot.items():
        if bundle.upper - bundle.lower <= 1:
            continue
        found = split_bundles(bundle, algorithm(bundle))
        if found is not None:
            children[name] = found
    return children


@dataclass
class Extensible:
    """The rule of one broker over its cycles."""

    rule: Rule
    hits: dict[str, int] = field(default_factory=dict)

    def cycle(
        self,
        bundles: Sequence[Bundle],
        counts: Mapping[str, int],
        splitting: Sequence[Bundle],
        algorithm: Algorithm,
    ) -> list[tuple[str, str, list[tuple[int, int]]]]:
        """Each bundle that is split, why, and its children."""
        names = [bundle.name for bundle in bundles]
        self.hits = {name: hits for name, hits in self.hits.items() if name in names}
        extra: dict[str, int] = {}
        decisions: list[tuple[str, str, list[tuple[int, int]]]] = []
        for bundle in bundles:
            if bundle.topics < 2 or not bundle.owned or bundle.upper - bundle.lower <= 1:
                continue
            reason = self.reason(bundle)
            if reason is None:
                self.hits.pop(bundle.name, None)
            else:
                self.hits[bundle.name] = self.hits.get(bundle.name, 0) + 1
            if reason is None or self.hits[bundle.name] <= self.rule.hit_threshold:
                continue
            if counts[bundle.namespace] + extra.get(bundle.namespace, 0) >= self.rule.max_bundles:
                continue
            if any(
                other.namespace == bundle.namespace and (other.lower == bundle.lower or other.upper == bundle.upper)
                for other in splitting
            ):
                continue
            children = split_bundles(bundle, algorithm(bundle))
            if children is None:
                continue
            decisions.append((bundle.name, reason, children))
            extra[bundle.namespace] = extra.get(bundle.namespace, 0) + 1
            del self.hits[bundle.name]
            if len(decisions) == self.rule.per_cycle:
                break
        return decisions

    def reason(self, bundle: Bundle) -> str | None:
        if bundle.topics > self.rule.max_topics:
            return "topics"
        if self.rule.max_sessions > 0 and bundle.consumers + bundle.producers > self.rule.max_sessions:
            return "sessions"
        if bundle.rate > self.rule.max_rate:
            return "msg_rate"
        if bundle.throughput > self.rule.max_mbytes * MIB:
            return "bandwidth"
        return None
