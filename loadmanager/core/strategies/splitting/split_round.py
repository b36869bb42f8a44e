"""A round of automatic splits: the configured rule applied to all candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.settings import PlannerSettings, is_extensible, is_simple
from loadmanager.core.strategies.splitting import split_algorithm
from loadmanager.core.strategies.splitting.split_finder import (
    Divide,
    FindTopics,
    Split,
    SplitCandidate,
    Splits,
    find_for_extensible,
    find_for_modular,
)

State = dict[str, Any]

SPLIT_STRATEGY = "DefaultNamespaceBundleSplitStrategyImpl"
"""Pulsar's name of the extensible rule, the only one with a memory: its key in the state."""


@dataclass(frozen=True, slots=True)
class SplitQuestion:
    """Input of a round besides the settings.

    `looked_at` are each broker's candidates, `counts` the number of bundles per namespace, `topics` the known topics of
    a bundle, `under_way` the pending splits, by namespace and range. `before` is the memory: by broker its incarnation,
    and the consecutive rounds of each bundle above a limit.
    """

    looked_at: tuple[tuple[Registration, tuple[SplitCandidate, ...]], ...]
    counts: Mapping[str, int]
    topics: Mapping[str, Sequence[TopicLoad]]
    under_way: frozenset[tuple[str, BundleRange]]
    before: State


def find_splits(question: SplitQuestion, settings: PlannerSettings) -> tuple[Splits, State | None]:
    """Find the splits and the next memory (None if the rule has none). Raises `UnknownStrategyError`."""
    _, algorithm = split_algorithm(settings)

    def topics_of(name: str) -> Sequence[TopicLoad]:
        return question.topics.get(name, ())

    def divide(name: str, own: BundleRange) -> list[int] | None:
        return algorithm(own, topics_of(name), (), settings)

    return find_splits_by(divide, topics_of, question, settings)


def find_splits_by(
    divide: Divide, find_topics: FindTopics, question: SplitQuestion, settings: PlannerSettings
) -> tuple[Splits, State | None]:
    """Find splits as `find_splits` does, with any algorithm; `find_topics` replaces the topics of the question.

    Under the extensible rule brokers are processed in order, each after the splits of those before.
    """
    counts = Counter(question.counts)
    if not is_extensible(settings):
        candidates = [candidate for _, own in question.looked_at for candidate in own]
        counted = not is_simple(settings)
        return find_for_modular(candidates, counts, divide, settings, find_topics, counts_splits=counted), None
    hits: State = {}
    splits: list[Split] = []
    verdicts: list[Verdict] = []
    for registration, own in question.looked_at:
        before = read_hits(question.before, registration)
        found = find_for_extensible(own, before, counts, divide, settings, question.under_way, find_topics)
        for split in found.splits:
            counts[namespace_of(split.bundle)] += len(split.boundaries)
        splits += found.splits
        verdicts += found.verdicts
        if found.hits:
            hits[registration.broker] = [registration.incarnation, dict(found.hits)]
    return Splits(tuple(splits), tuple(verdicts), {}), {"hits": hits}


def goes_by_latest_rates(settings: PlannerSettings) -> bool:
    """Return True if the configured rule compares latest rates, not long-term averages."""
    return is_extensible(settings) or is_simple(settings)


def read_hits(remembered: State, registration: Registration) -> Mapping[str, int]:
    """Return the hits of this registration; a new one has none."""
    incarnation, hits = remembered.get(registration.broker, (registration.incarnation, {}))
    return hits if incarnation == registration.incarnation else {}
