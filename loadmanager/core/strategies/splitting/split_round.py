"""A round of automatic splits: its candidates, and the configured rule applied to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleName, BundleRange, namespace_of
from loadmanager.core.domain.ownership import NamespaceState, OwnershipState, Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.settings import PlannerSettings, is_extensible, is_simple
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, BoolArray, BrokerReport, FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.splitting import MIB, SplitAlgorithm, split_algorithm
from loadmanager.core.strategies.splitting.split_finder import (
    Split,
    SplitCandidate,
    Splits,
    find_for_extensible,
    find_for_modular,
    find_reason,
)

State = dict[str, Any]

SPLIT_STRATEGY = "DefaultNamespaceBundleSplitStrategyImpl"
"""Pulsar's name of the extensible rule, the only one with a memory: its key in the state."""


@dataclass(frozen=True, slots=True)
class SplitQuestion:
    """Input of a round besides the settings.

    `looked_at` are each broker's candidates, `counts` the number of bundles per namespace, `topics` the known topics of
    a bundle, `in_progress` the pending splits, by namespace and range. `before` is the memory: by broker its
    incarnation, and the consecutive rounds of each bundle above a limit.
    """

    looked_at: tuple[tuple[Registration, tuple[SplitCandidate, ...]], ...]
    counts: Mapping[str, int]
    topics: Mapping[str, Sequence[TopicLoad]]
    in_progress: frozenset[tuple[str, BundleRange]]
    before: State


def find_splits(
    question: SplitQuestion,
    settings: PlannerSettings,
    algorithm: SplitAlgorithm | None = None,
    positions: Sequence[int] = (),
) -> tuple[Splits, State | None]:
    """Find the splits, by the configured algorithm or another one, and the next memory (None if the rule has none).

    Under the extensible rule brokers are processed in order, each after the splits of those before. Raises
    `UnknownStrategyError`.
    """
    topics, cut = question.topics, algorithm or split_algorithm(settings)[1]

    def divide(name: str, own: BundleRange) -> list[int] | None:
        return cut(own, topics.get(name, ()), positions, settings)

    counts = Counter(question.counts)
    if not is_extensible(settings):
        candidates = [candidate for _, own in question.looked_at for candidate in own]
        counted = not is_simple(settings)
        return find_for_modular(candidates, counts, divide, settings, topics, counts_splits=counted), None
    hits: State = {}
    splits: list[Split] = []
    verdicts: list[Verdict] = []
    for registration, own in question.looked_at:
        before = read_hits(question.before, registration)
        found = find_for_extensible(own, before, counts, divide, settings, question.in_progress, topics)
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


@dataclass(frozen=True, slots=True)
class ScannedReport:
    """Candidates of one broker's report by name, and the number of bundles in it."""

    registration: Registration
    candidates: tuple[SplitCandidate, ...]
    bundles: int

    def without(self, names: Container[str]) -> ScannedReport:
        """Return the same without these candidates."""
        return replace(self, candidates=tuple(each for each in self.candidates if each.name not in names))


def find_candidates(
    reports: Iterable[tuple[Registration, BrokerReport]],
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    settings: PlannerSettings,
    remembered: State,
) -> list[ScannedReport]:
    """Find existing bundles that each broker reports above a limit, or that were in the last round.

    `namespaces` are their records, `remembered` is the rule's memory: see `SplitQuestion.before`.
    """
    is_latest = goes_by_latest_rates(settings)
    hot = frozenset() if is_latest else _hot_in(snapshot, settings)
    found = []
    for registration, report in reports:
        before = read_hits(remembered, registration)
        # Check all as columns first: hardly any of a hundred thousand is above a limit.
        above = (report.bundle_topics > settings.namespace_bundle_max_topics) | _has_many_sessions(report, settings)
        if is_latest:
            above |= _carries_much(report.bundle_load, settings)
        candidates = [
            candidate
            for row, (name, is_above) in enumerate(zip(report.bundle_names, above.tolist(), strict=True))
            if is_above or name in hot or name in before
            if (candidate := _candidate(registration, report, row, namespaces, snapshot, is_latest=is_latest))
            if name in before or find_reason(candidate, settings) is not None
        ]
        by_name = tuple(sorted(candidates, key=lambda candidate: candidate.name))
        found.append(ScannedReport(registration, by_name, len(report.bundle_names)))
    return found


def long_term(snapshot: Snapshot, bundle: str) -> tuple[float, float]:
    """Return long-term messages/s and bytes/s of a bundle, in and out together; 0 for an unknown one."""
    row = snapshot.bundles.find_row(bundle)
    return (0.0, 0.0) if row is None else sum_rates(snapshot.bundles.long[row])


def sum_rates(load: FloatArray) -> tuple[float, float]:
    """Return messages/s and bytes/s of a load (4,), in and out together."""
    msg_in, msg_out, bytes_in, bytes_out = load.tolist()
    return msg_in + msg_out, bytes_in + bytes_out


def _candidate(
    reporter: Registration,
    report: BrokerReport,
    row: int,
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    *,
    is_latest: bool,
) -> SplitCandidate | None:
    """Build a candidate as its broker reports it, with latest or long-term rates; None for a nonexistent bundle."""
    name = report.bundle_names[row]
    state, own = namespaces.get(namespace_of(name)), BundleName.parse_any(name).range
    index = state.bundles.find_index(own) if state is not None else None
    if state is None or index is None:
        return None
    ownership = state.ownerships[index]
    rates = sum_rates(report.bundle_load[row]) if is_latest else long_term(snapshot, name)
    is_owned = ownership.state is OwnershipState.OWNED and ownership.owner == reporter
    return SplitCandidate(name, own, int(report.bundle_topics[row]), int(report.bundle_sessions[row]), *rates, is_owned)


def _hot_in(snapshot: Snapshot, settings: PlannerSettings) -> frozenset[str]:
    rows = np.flatnonzero(_carries_much(snapshot.bundles.long, settings)).tolist()
    return frozenset(snapshot.bundles.names[row] for row in rows)


def _has_many_sessions(report: BrokerReport, settings: PlannerSettings) -> BoolArray:
    most = settings.namespace_bundle_max_sessions
    return np.asarray((report.bundle_sessions > most) & (most > 0))


def _carries_much(load: FloatArray, settings: PlannerSettings) -> BoolArray:
    """Return a mask of loads (k, 4) above a limit."""
    msg_rate = load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]
    most_bytes = settings.namespace_bundle_max_bandwidth_mbytes * MIB
    return np.asarray((msg_rate > settings.namespace_bundle_max_msg_rate) | (throughput_of(load) > most_bytes))
