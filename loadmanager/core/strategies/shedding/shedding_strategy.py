"""Interface of shedding strategies, and their common rule for taking bundles off a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import is_self_test_namespace
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import THROUGHPUT_IN, THROUGHPUT_OUT, BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot, order_by_broker

State = dict[str, Any]
"""Memory of a strategy between rounds: a JSON object, passed in and returned. A new one starts empty."""

_Positions = npt.NDArray[np.intp]

MIB = 1024 * 1024

MARGIN = 0.05
"""Distance below its threshold to which a broker is brought, as a fraction: 5 points."""

_MOST_POINTS = 1000.0
"""Limit of the margin; if a broker would need more usage than this, its usage never causes shedding."""
_POINTS_RESOLUTION = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """Bundle rows that leave one broker, in the order they were selected.

    `destination` is the broker row fixed with the decision, None if placement is to choose. With `is_final` it has
    passed the filters already; otherwise it is used only if they allow it.
    """

    broker: int
    bundles: tuple[int, ...]
    reason: Reason
    destination: int | None = None
    is_final: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Shed:
    """Result of a shedding strategy: picks, a verdict per broker (or one for the cluster), and the next state.

    `metrics` are the strategy's own figures and counters, by name.
    """

    bundles: tuple[Pick, ...]
    verdicts: tuple[Verdict, ...]
    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)


class SheddingStrategy(Protocol):
    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        """Choose bundles to unload; placement chooses destinations later, unless a pick has one."""
        ...

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        """Return the distance of the broker (a row) from its shedding threshold, all other brokers unchanged.

        It is `usage_points` more usage, or `msg_rate_per_s` or `mib_per_s` more load, for a number of `rounds`. Empty
        if the broker has reached its threshold or never would. The state is that before the round.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Hot:
    """A broker to be relieved of `need` bytes/s, with the figures behind it."""

    broker: int
    need: float
    why: dict[str, Figure]


def least_points(is_reached: Callable[[float], bool]) -> dict[str, Figure]:
    """Return the smallest usage points, to a thousandth, at which the monotonic `is_reached` is true."""
    if is_reached(0.0) or not is_reached(_MOST_POINTS):
        return {}
    low, high = 0.0, _MOST_POINTS
    while high - low > _POINTS_RESOLUTION:
        middle = (low + high) / 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return {"usage_points": high}


def throughput_per_broker(snapshot: Snapshot) -> FloatArray:
    """Return each broker's reported bytes/s, in and out together."""
    load = snapshot.brokers.load
    with np.errstate(over="ignore"):
        return np.asarray(load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT])


def relieve(snapshot: Snapshot, hot: Sequence[Hot], reason: Reason) -> tuple[list[Pick], list[Verdict]]:
    """Take bundles off each hot broker until its need is met: largest short-term throughput first, at least one if any
    is eligible; the last one may exceed the need. A broker's only bundle stays, as it would take the load along. One
    verdict per hot broker.
    """
    candidates = _by_throughput(snapshot, hot)
    picks, verdicts = [], []
    for broker in hot:
        refusal = find_refusal(snapshot, broker.broker)
        bundles = () if refusal else _take(*candidates[broker.broker], broker.need)
        if bundles:
            picks.append(Pick(broker.broker, bundles, reason))
        elif not refusal:
            refusal = SheddingReason.NO_ELIGIBLE_BUNDLE
        why = {**broker.why, "bundles": int(snapshot.brokers.bundle_count[broker.broker])}
        if refusal is SheddingReason.NO_ELIGIBLE_BUNDLE:
            why["recently_unloaded"] = count_recently_unloaded(snapshot, broker.broker)
        why["bundles_taken"] = len(bundles)
        verdicts.append(Verdict(snapshot.brokers.ids[broker.broker], refusal or reason, bool(bundles), why))
    return picks, verdicts


def find_refusal(snapshot: Snapshot, broker: int) -> Reason | None:
    """Return the reason why no bundle may leave this broker, None if one may."""
    brokers = snapshot.brokers
    if not brokers.settled[broker]:
        return SheddingReason.AWAITING_REPORT
    if brokers.bundle_count[broker] == 0:
        return SheddingReason.NO_BUNDLES
    if brokers.bundle_count[broker] == 1:
        return SheddingReason.SINGLE_BUNDLE
    return None


def count_recently_unloaded(snapshot: Snapshot, broker: int) -> int:
    """Count the broker's bundles that may not move because they moved recently."""
    return int(np.count_nonzero(snapshot.bundles.recently_unloaded & (snapshot.bundles.broker == broker)))


def _by_throughput(snapshot: Snapshot, hot: Sequence[Hot]) -> dict[int, tuple[list[int], FloatArray]]:
    """Return eligible bundle rows and throughputs per hot broker, largest first, equals by name."""
    bundles = snapshot.bundles
    is_hot = np.zeros(len(snapshot.brokers), dtype=bool)
    is_hot[[broker.broker for broker in hot]] = True
    rows = np.flatnonzero(eligible(snapshot))
    rows = rows[is_hot[bundles.broker[rows]]]
    throughput = throughput_of(bundles.short)[rows]
    order = np.lexsort((-throughput, bundles.broker[rows]))
    rows, throughput = rows[order], throughput[order]
    brokers = [broker.broker for broker in hot]
    first = np.searchsorted(bundles.broker[rows], brokers, side="left").tolist()
    last = np.searchsorted(bundles.broker[rows], brokers, side="right").tolist()
    return {broker: (rows[i:j].tolist(), throughput[i:j]) for broker, i, j in zip(brokers, first, last, strict=True)}


def _take(bundles: list[int], throughput: FloatArray, need: float) -> tuple[int, ...]:
    """Take bundles in order until the need is met, at least one."""
    taken_before = np.cumsum(throughput)[:-1]
    return tuple(bundles[: 1 + int(np.count_nonzero(taken_before < need))])


def largest_first(snapshot: Snapshot, broker: int, columns: tuple[int, int]) -> tuple[list[int], list[float]]:
    """Return a broker's eligible bundle rows, and the sums of these two columns of short-term load, largest first,
    equals by name.
    """
    rows, first = snapshot.derive("eligible_by_broker", lambda: group_by_broker(snapshot, eligible(snapshot)))
    rows = rows[first[broker] : first[broker + 1]]
    carried = snapshot.bundles.short[rows, columns[0]] + snapshot.bundles.short[rows, columns[1]]
    order = np.argsort(-carried, kind="stable")
    return rows[order].tolist(), carried[order].tolist()


def group_by_broker(snapshot: Snapshot, which: BoolArray) -> tuple[_Positions, _Positions]:
    """Return the rows of these reported bundles (N,) grouped by broker, and the start of each group (M + 1,)."""
    rows = np.flatnonzero(which)
    brokers = snapshot.bundles.broker[rows]
    order = order_by_broker(brokers, len(snapshot.brokers))
    return rows[order], np.searchsorted(brokers[order], np.arange(len(snapshot.brokers) + 1))


def eligible(snapshot: Snapshot) -> BoolArray:
    """Return a mask (N,) of bundles that a strategy may move."""
    return snapshot.derive("eligible", lambda: _eligible(snapshot))


def _eligible(snapshot: Snapshot) -> BoolArray:
    bundles = snapshot.bundles
    fixed = np.array([is_self_test_namespace(name) for name in bundles.namespaces], dtype=bool)
    return np.asarray(bundles.movable & ~bundles.recently_unloaded & ~fixed[bundles.namespace])


def find_hold(snapshot: Snapshot, bundle: int) -> Verdict | None:
    """Return the first rule that forbids strategies to move the bundle (a row), None if it is eligible."""
    bundles, ids = snapshot.bundles, snapshot.brokers.ids
    name, namespace = bundles.names[bundle], bundles.namespaces[bundles.namespace[bundle]]
    broker, assigned = int(bundles.broker[bundle]), int(bundles.assigned[bundle])
    why: dict[str, Figure] = {}
    if bundles.movable[bundle]:
        if bundles.recently_unloaded[bundle]:
            return Verdict(name, SheddingReason.RECENTLY_UNLOADED, acted=False)
        if is_self_test_namespace(namespace):
            return Verdict(name, SheddingReason.SELF_TEST_BUNDLE, acted=False, why={"namespace": namespace})
        return None
    if bundles.free[bundle]:
        reason = SheddingReason.NO_OWNER
    elif broker < 0 <= assigned:
        reason, why = SheddingReason.NOT_REPORTED, {"broker": ids[assigned]}
    else:
        reason = SheddingReason.MOVE_IN_PROGRESS
        why = {"source": ids[broker], "broker": ids[assigned]} if assigned >= 0 else {}
    return Verdict(name, reason, acted=False, why=why)
