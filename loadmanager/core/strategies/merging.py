"""Automatic merges of cold neighbours. Pulsar has no such rule, so its number of bundles only grows.

Two neighbours of one owner are merged when their total load is at most a limit, and at most half of each split limit,
so that a merged bundle has to double before it is split again. Owner and boundaries must not have changed for a while,
and a namespace keeps a minimum number of bundles. Each round merges at most one pair per namespace: the coldest, by
bytes, then by messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.ownership import NamespaceState, OwnershipState, Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import MergeReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.splitting import MIB
from loadmanager.core.strategies.splitting.split_round import long_term

MIN_BUNDLES = 4
"""Minimum bundles per namespace: as many as Pulsar creates by default; fewer could not be spread over brokers."""
MIN_AGE_S = 3_600.0
"""Minimum time since the last change of owner or boundaries, so that merges do not follow splits at once."""
_MAX_TOPICS, _MAX_SESSIONS, _MAX_MSG_RATE, _MAX_MIB = 100, 100, 1_000, 5
"""Limits of a merged bundle: at most a tenth of Pulsar's default limits for splits."""


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    """A bundle and its load by the latest report, with long-term rates, in and out together.

    `owner` is None unless a registered broker owns and keeps it; `age_s` counts from the last change of owner or shape;
    `is_held`: pinned or frozen by an operator.
    """

    name: str
    owner: Registration | None
    topics: int
    sessions: int
    msg_rate: float
    throughput: float
    age_s: float
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of two neighbours, the lower and the upper one."""

    lower: str
    upper: str
    why: Verdict


def _limits_of(settings: PlannerSettings) -> dict[str, float]:
    """Return the limits of a merged bundle, by figure."""
    max_sessions = settings.namespace_bundle_max_sessions
    return {
        "topics": min(_MAX_TOPICS, settings.namespace_bundle_max_topics / 2),
        "sessions": min(_MAX_SESSIONS, max_sessions / 2 if max_sessions > 0 else float("inf")),
        "msg_rate_per_s": min(_MAX_MSG_RATE, settings.namespace_bundle_max_msg_rate / 2),
        "mib_per_s": min(_MAX_MIB, settings.namespace_bundle_max_bandwidth_mbytes / 2),
    }


def _sum(lower: MergeCandidate, upper: MergeCandidate) -> dict[str, float]:
    """Return the figures of both bundles together."""
    return {
        "topics": lower.topics + upper.topics,
        "sessions": lower.sessions + upper.sessions,
        "msg_rate_per_s": lower.msg_rate + upper.msg_rate,
        "mib_per_s": (lower.throughput + upper.throughput) / MIB,
    }


def find_candidates(
    reports: Mapping[Registration, BrokerReport],
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    controls: Controls,
    now_s: float,
) -> dict[str, list[MergeCandidate]]:
    """Return all bundles by namespace; `reports` are accepted ones of registered brokers.

    A bundle that its owner does not report has no load. `now_s` is in seconds since 1970.
    """
    counted = {owner: _counts_in(report) for owner, report in reports.items()}
    found = {}
    for namespace, state in namespaces.items():
        candidates = found[namespace] = list[MergeCandidate]()
        for name, ownership in zip(state.bundle_names(), state.ownerships, strict=True):
            keeps = ownership.state is OwnershipState.OWNED and ownership.owner in counted
            owner = ownership.owner if keeps else None
            counts = None if owner is None else counted[owner].get(name)
            topics, sessions = counts or (0, 0)
            msg_rate, throughput = (0.0, 0.0) if counts is None else long_term(snapshot, name)
            age_s, is_held = now_s - ownership.since_ms / 1000, controls.find_control(name) is not None
            candidates.append(MergeCandidate(name, owner, topics, sessions, msg_rate, throughput, age_s, is_held))
    return found


def _counts_in(report: BrokerReport) -> dict[str, tuple[int, int]]:
    counts = zip(report.bundle_topics.tolist(), report.bundle_sessions.tolist(), strict=True)
    return dict(zip(report.bundle_names, counts, strict=True))


def find_merges(
    namespaces: Mapping[str, Sequence[MergeCandidate]], settings: PlannerSettings
) -> tuple[list[Merge], list[Verdict]]:
    """Find at most one merge per namespace, and a verdict for each namespace without one; bundles in range order."""
    merges, verdicts = [], []
    for namespace, bundles in sorted(namespaces.items()):
        found = _find_merge(namespace, bundles, settings)
        if isinstance(found, Merge):
            merges.append(found)
        else:
            verdicts.append(found)
    return merges, verdicts


def _find_merge(namespace: str, bundles: Sequence[MergeCandidate], settings: PlannerSettings) -> Merge | Verdict:
    if len(bundles) <= MIN_BUNDLES:
        why: dict[str, Figure] = {"bundles": len(bundles)}
        return Verdict(namespace, MergeReason.NAMESPACE_HAS_MINIMUM_BUNDLES, acted=False, why=why)
    limits = _limits_of(settings)
    most = {f"most_{name}": limit for name, limit in limits.items()}
    apart = young = held = warm = 0
    cold = []
    for lower, upper in pairwise(bundles):
        if lower.owner is None or lower.owner != upper.owner:
            apart += 1
        elif min(lower.age_s, upper.age_s) < MIN_AGE_S:
            young += 1
        elif lower.is_held or upper.is_held:
            held += 1
        elif not all(figure <= limits[name] for name, figure in _sum(lower, upper).items()):
            warm += 1
        else:
            cold.append((lower, upper))
    if not cold:
        counts = {"pairs": len(bundles) - 1, "apart": apart, "young": young, "held": held, "warm": warm}
        why = {**counts, **most}
        return Verdict(namespace, MergeReason.NO_COLD_NEIGHBOURS, acted=False, why=why)
    lower, upper = min(cold, key=_heat)
    why = {"with": upper.name, **_sum(lower, upper), **most}
    return Merge(lower.name, upper.name, Verdict(lower.name, MergeReason.COLD_NEIGHBOURS, acted=True, why=why))


def _heat(pair: tuple[MergeCandidate, MergeCandidate]) -> tuple[float, float, float]:
    figures = _sum(*pair)
    return figures["mib_per_s"], figures["msg_rate_per_s"], figures["topics"]
