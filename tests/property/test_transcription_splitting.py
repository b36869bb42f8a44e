"""Split algorithms and both split rules compared with a literal transcription of Pulsar's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support import transcription_splitting as literal
from support.transcription_splitting import MAX_UINT, MIB, Bundle, Extensible, Rule, Topic

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting import SPLIT_ALGORITHMS
from loadmanager.core.strategies.splitting.split_finder import (
    Divide,
    Split,
    SplitCandidate,
    find_for_extensible,
    find_for_modular,
)

CYCLES = 8
rules = st.builds(
    Rule,
    max_topics=st.sampled_from([2, 3, 5]),
    max_sessions=st.sampled_from([-1, 0, 3, 6]),
    max_rate=st.sampled_from([0, 10, 30]),
    max_mbytes=st.sampled_from([0, 1, 4096]),
    max_bundles=st.sampled_from([1, 3, 4, 5, 100]),
    hit_threshold=st.sampled_from([0, 1, 3]),
    per_cycle=st.sampled_from([1, 2, 10]),
    difference_percent=st.sampled_from([0, 10, 50]),
)
ends = st.integers(0, 40) | st.integers(MAX_UINT - 40, MAX_UINT) | st.integers(0, MAX_UINT)
ranges = st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: (min(pair), max(pair)))
figures = st.sampled_from([0, 1, 5, 9, 10, 11, 20, 30, 31, 40])


@st.composite
def ranges_with_topics(draw: st.DrawFn) -> tuple[int, int, list[Topic]]:
    """Draw a range and topics in it, some with equal or neighbouring hashes."""
    lower, upper = draw(ranges)
    last = upper if upper == MAX_UINT else upper - 1
    near = st.integers(lower, min(last, lower + 6)) | st.integers(max(lower, last - 6), last) | st.integers(lower, last)
    bytes_per_s = figures.map(lambda figure: figure * MIB // 10)
    return lower, upper, draw(st.lists(st.tuples(near, figures, bytes_per_s), max_size=12))


def settings_of(rule: Rule) -> PlannerSettings:
    return PlannerSettings(
        namespace_bundle_max_topics=rule.max_topics,
        namespace_bundle_max_sessions=rule.max_sessions,
        namespace_bundle_max_msg_rate=rule.max_rate,
        namespace_bundle_max_bandwidth_mbytes=rule.max_mbytes,
        namespace_maximum_bundles=rule.max_bundles,
        namespace_bundle_split_condition_hit_count_threshold=rule.hit_threshold,
        max_number_of_bundles_to_split_per_cycle=rule.per_cycle,
        flow_or_qps_difference_threshold_percentage=rule.difference_percent,
    )


def ask(name: str, lower: int, upper: int, topics: Sequence[Topic], rule: Rule, positions: Sequence[int]) -> object:
    loads = [TopicLoad(topic_hash, float(rate), float(throughput)) for topic_hash, rate, throughput in topics]
    return SPLIT_ALGORITHMS[name](BundleRange(lower, upper), loads, positions, settings_of(rule))


@given(case=ranges_with_topics(), rule=rules, positions=st.lists(ends | st.just(-1), min_size=1, max_size=8))
def test_algorithms_equal_pulsars(case: tuple[int, int, list[Topic]], rule: Rule, positions: list[int]) -> None:
    lower, upper, topics = case
    hashes = [topic_hash for topic_hash, _, _ in topics]
    expected = {
        "range_equally_divide": literal.range_equally_divide(lower, upper),
        "topic_count_equally_divide": literal.topic_count_equally_divide(hashes),
        "specified_positions_divide": literal.specified_positions_divide(lower, upper, hashes, positions),
        "flow_or_qps_equally_divide": literal.flow_or_qps_equally_divide(topics, rule),
    }
    assert expected.keys() == SPLIT_ALGORITHMS.keys()
    for name, boundaries in expected.items():
        assert ask(name, lower, upper, topics, rule, positions) == boundaries, name


class LoadedNamespaces:
    """A few namespaces with bundles of changing load on a few brokers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.topics: dict[str, list[Topic]] = {}
        self.brokers: list[list[Bundle]] = [[] for _ in range(int(rng.integers(1, 4)))]
        for number in range(int(rng.integers(1, 4))):
            inner = rng.choice([3, 4, 5, 1000, 2**20, 2**31], int(rng.integers(0, 5)), replace=False).tolist()
            boundaries = [0, *sorted(inner), MAX_UINT]
            self.counts[f"t/ns{number}"] = len(boundaries) - 1
            for lower, upper in pairwise(boundaries):
                bundle = Bundle(f"t/ns{number}", lower, upper, 0, 0, 0, 0, 0)
                self.brokers[int(rng.integers(len(self.brokers)))].append(bundle)
        self.change()

    @property
    def bundles(self) -> list[Bundle]:
        return [bundle for bundles in self.brokers for bundle in bundles]

    def change(self) -> None:
        """Change the loads of most bundles."""
        rng = self.rng
        for bundles in self.brokers:
            bundles.sort(key=lambda bundle: bundle.name)
            for bundle in bundles:
                if rng.random() < 0.3 and bundle.name in self.topics:
                    continue
                bundle.topics, bundle.consumers, bundle.producers = rng.choice([0, 1, 2, 3, 5, 6], 3).tolist()
                bundle.rate = int(rng.choice([0, 10, 11, 30, 31]))
                bundle.throughput = int(rng.choice([0, MIB, MIB + 1, 5000 * MIB]))
                bundle.owned = bool(rng.random() < 0.9)
                hashes = rng.integers(bundle.lower, bundle.upper, bundle.topics).tolist()
                self.topics[bundle.name] = [(each, int(rng.integers(0, 30)), 0) for each in hashes]

    def literally(self, name: str, rule: Rule) -> literal.Algorithm:
        def divide(bundle: Bundle) -> list[int] | None:
            topics = self.topics[bundle.name]
            if name == "range_equally_divide":
                return literal.range_equally_divide(bundle.lower, bundle.upper)
            if name == "topic_count_equally_divide":
                return literal.topic_count_equally_divide([topic_hash for topic_hash, _, _ in topics])
            return literal.flow_or_qps_equally_divide(topics, rule)

        return divide

    def divide(self, name: str, rule: Rule) -> Divide:
        def ask_algorithm(bundle: str, own: BundleRange) -> list[int] | None:
            loads = [TopicLoad(topic_hash, float(rate), float(each)) for topic_hash, rate, each in self.topics[bundle]]
            return SPLIT_ALGORITHMS[name](own, loads, [], settings_of(rule))

        return ask_algorithm


def candidates(bundles: Sequence[Bundle]) -> list[SplitCandidate]:
    return [
        SplitCandidate(
            each.name,
            BundleRange(each.lower, each.upper),
            each.topics,
            each.consumers + each.producers,
            float(each.rate),
            float(each.throughput),
            each.owned,
        )
        for each in bundles
    ]


def children(split: Split) -> list[tuple[int, int]]:
    own = BundleRange.parse(split.bundle.rpartition("/")[2])
    return list(pairwise([own.lower, *split.boundaries, own.upper]))


loaded_namespaces = st.integers(0, 2**32 - 1).map(lambda seed: LoadedNamespaces(np.random.default_rng(seed)))
one_boundary = st.sampled_from(["range_equally_divide", "topic_count_equally_divide"])


@given(loaded=loaded_namespaces, rule=rules, name=one_boundary)
def test_modular_splits_equal_pulsars(loaded: LoadedNamespaces, rule: Rule, name: str) -> None:
    expected = literal.modular(loaded.brokers, loaded.counts, rule, loaded.literally(name, rule))
    found = find_for_modular(candidates(loaded.bundles), loaded.counts, loaded.divide(name, rule), settings_of(rule))
    assert {split.bundle: children(split) for split in found.splits} == expected
    assert [verdict.subject for verdict in found.verdicts] == [bundle.name for bundle in loaded.bundles]


@given(loaded=loaded_namespaces, rule=rules, name=one_boundary, seed=st.integers(0, 99))
def test_extensible_rule_equals_pulsars_over_cycles(loaded: LoadedNamespaces, rule: Rule, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow, hits = [Extensible(rule) for _ in loaded.brokers], [dict[str, int]() for _ in loaded.brokers]
    for _ in range(CYCLES):
        splitting = [bundle for bundle in loaded.bundles if rng.random() < 0.1]
        in_progress = [(each.namespace, BundleRange(each.lower, each.upper)) for each in splitting]
        for number, bundles in enumerate(loaded.brokers):
            present = [bundle for bundle in bundles if rng.random() < 0.95]
            expected = slow[number].cycle(present, loaded.counts, splitting, loaded.literally(name, rule))
            divide = loaded.divide(name, rule)
            found = find_for_extensible(
                candidates(present), hits[number], loaded.counts, divide, settings_of(rule), in_progress
            )
            hits[number] = dict(found.hits)
            assert [(split.bundle, split.reason, children(split)) for split in found.splits] == expected
            assert hits[number] == slow[number].hits
        loaded.change()


@given(loaded=loaded_namespaces, rule=rules)
def test_parts_by_load_equal_pulsars_where_its_split_succeeds(loaded: LoadedNamespaces, rule: Rule) -> None:
    rule.max_bundles = 10_000
    name = "flow_or_qps_equally_divide"
    algorithm = loaded.literally(name, rule)
    expected = literal.modular(loaded.brokers, loaded.counts, rule, algorithm)
    divide = loaded.divide(name, rule)
    found = find_for_modular(candidates(loaded.bundles), loaded.counts, divide, settings_of(rule)).splits
    cut = {split.bundle: children(split) for split in found}
    assert {bundle: cut.get(bundle) for bundle in expected} == expected
    for bundle in loaded.bundles:
        if bundle.name in cut.keys() - expected.keys():
            boundaries = algorithm(bundle)
            assert boundaries
            inside = {boundary for boundary in boundaries if bundle.lower < boundary < bundle.upper}
            assert len(inside) < len(boundaries), "a boundary at an end or repeated: Pulsar's split fails"
            assert [upper for _, upper in cut[bundle.name][:-1]] == sorted(inside)


@given(
    loaded=loaded_namespaces,
    rule=rules,
    name=st.sampled_from(sorted(SPLIT_ALGORITHMS.keys() - {"specified_positions_divide"})),
)
def test_parts_cover_the_bundle_within_the_maximum(loaded: LoadedNamespaces, rule: Rule, name: str) -> None:
    divide, settings = loaded.divide(name, rule), settings_of(rule)

    def find() -> list[Split]:
        own = find_for_modular(candidates(loaded.bundles), loaded.counts, divide, settings).splits
        for bundles in loaded.brokers:
            hits = {bundle.name: rule.hit_threshold for bundle in bundles}
            own += find_for_extensible(candidates(bundles), hits, loaded.counts, divide, settings).splits
        return list(own)

    for split in find():
        own = BundleRange.parse(split.bundle.rpartition("/")[2])
        parts = [BundleRange(lower, upper) for lower, upper in children(split)]
        assert (parts[0].lower, parts[-1].upper) == (own.lower, own.upper)
        assert len(parts) == len(split.boundaries) + 1 > 1
        for topic_hash, _, _ in loaded.topics[split.bundle]:
            assert [topic_hash in part for part in parts].count(True) == 1
    assert find() == find()
    added: Counter[str] = Counter()
    for split in find_for_modular(candidates(loaded.bundles), loaded.counts, divide, settings).splits:
        added[split.bundle.rpartition("/")[0]] += len(split.boundaries)
    assert all(loaded.counts[namespace] + more <= rule.max_bundles for namespace, more in added.items())
