"""What a shedding strategy is, and the rule that all of them share for taking bundles off a broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loadmanager.core.load import THROUGHPUT_IN, THROUGHPUT_OUT, BoolArray, FloatArray
from loadmanager.core.plan import Figure, Reason, Verdict
from loadmanager.core.snapshot import Snapshot

State = dict[str, Any]
"""What a strategy remembers between rounds: a JSON object that goes in and comes out. A new one starts empty."""

MIB = 1024 * 1024

MARGIN = 0.05
"""How far below its threshold a broker is brought, as a fraction of its usage: 5 points."""

_SYSTEM_NAMESPACE = re.compile(r"(pulsar|sla-monitor)/[^:]+:\d+")
"""The namespaces in which Pulsar's brokers test themselves. They belong to one broker and never move."""


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """The bundle rows that leave one broker, in the order they were selected."""

    broker: int
    bundles: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Shed:
    """What should leave which broker, a verdict per broker (or one for the cluster), and the state for next time."""

    bundles: tuple[Pick, ...]
    verdicts: tuple[Verdict, ...]
    state: State


class SheddingStrategy(Protocol):
    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        """Choose what leaves which broker; where it goes is decided later, by placement."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Hot:
    """A broker to be relieved of `need` bytes/s, and the numbers that say so."""

    broker: int
    need: float
    why: dict[str, Figure]


def throughput_per_broker(snapshot: Snapshot) -> FloatArray:
    """Each broker's reported bytes/s, in and out together."""
    load = snapshot.brokers.load
    with np.errstate(over="ignore"):
        return np.asarray(load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT])


def relieve(snapshot: Snapshot, hot: Sequence[Hot], reason: Reason) -> tuple[list[Pick], list[Verdict]]:
    """Take bundles off each hot broker until its need is met: the largest short-term throughput first, at least one if
    any is eligible, and the last one taken may exceed the need. A broker's only bundle stays: it would take the load
    along. One verdict per hot broker.
    """
    candidates = _by_throughput(snapshot, hot)
    picks, verdicts = [], []
    for broker in hot:
        refusal = _refusal(snapshot, broker)
        bundles = () if refusal else _take(*candidates[broker.broker], broker.need)
        if bundles:
            picks.append(Pick(broker.broker, bundles, reason))
        elif not refusal:
            refusal = Reason.NO_ELIGIBLE_BUNDLE
        why = {**broker.why, "bundles": int(snapshot.brokers.bundle_count[broker.broker])}
        if refusal is Reason.NO_ELIGIBLE_BUNDLE:
            why["recently_unloaded"] = int(
                np.count_nonzero(snapshot.bundles.recently_unloaded & (snapshot.bundles.broker == broker.broker))
            )
        why["bundles_taken"] = len(bundles)
        verdicts.append(Verdict(snapshot.brokers.ids[broker.broker], refusal or reason, bool(bundles), why))
    return picks, verdicts


def _refusal(snapshot: Snapshot, hot: Hot) -> Reason | None:
    """Why nothing may leave this broker whatever its bundles are, None when something may."""
    brokers = snapshot.brokers
    if not brokers.settled[hot.broker]:
        return Reason.AWAITING_REPORT
    if brokers.bundle_count[hot.broker] == 0:
        return Reason.NO_BUNDLES
    if brokers.bundle_count[hot.broker] == 1:
        return Reason.SINGLE_BUNDLE
    return None


def _by_throughput(snapshot: Snapshot, hot: Sequence[Hot]) -> dict[int, tuple[list[int], FloatArray]]:
    """Per hot broker its eligible bundle rows and their throughputs, the largest first, equals by name."""
    bundles = snapshot.bundles
    is_hot = np.zeros(len(snapshot.brokers), dtype=bool)
    is_hot[[broker.broker for broker in hot]] = True
    rows = np.flatnonzero(eligible(snapshot))
    rows = rows[is_hot[bundles.broker[rows]]]
    throughput = bundles.short[rows, THROUGHPUT_IN] + bundles.short[rows, THROUGHPUT_OUT]
    order = np.lexsort((-throughput, bundles.broker[rows]))
    rows, throughput = rows[order], throughput[order]
    brokers = [broker.broker for broker in hot]
    first = np.searchsorted(bundles.broker[rows], brokers, side="left").tolist()
    last = np.searchsorted(bundles.broker[rows], brokers, side="right").tolist()
    return {broker: (rows[i:j].tolist(), throughput[i:j]) for broker, i, j in zip(brokers, first, last, strict=True)}


def _take(bundles: list[int], throughput: FloatArray, need: float) -> tuple[int, ...]:
    """The first of `bundles`, and those after it while what was taken before is less than the need."""
    taken_before = np.cumsum(throughput)[:-1]
    return tuple(bundles[: 1 + int(np.count_nonzero(taken_before < need))])


def eligible(snapshot: Snapshot) -> BoolArray:
    """The bundles that a strategy may move, (N,)."""
    return snapshot.derive("eligible", lambda: _eligible(snapshot))


def _eligible(snapshot: Snapshot) -> BoolArray:
    bundles = snapshot.bundles
    system = np.array([_SYSTEM_NAMESPACE.fullmatch(name) is not None for name in bundles.namespaces], dtype=bool)
    return np.asarray(bundles.movable & ~bundles.recently_unloaded & ~system[bundles.namespace])
