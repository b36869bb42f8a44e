"""What a plan would make of the cluster: the imbalance before and after it, what it moves, and what no plan can beat.

The load of a bundle is its bytes/s, in and out together, by its short-term averages; that of a broker is what the
bundles add up to that it owns, or is about to own. The imbalance is the load of the busiest broker divided by the mean
over all brokers: 1 is perfect balance, and what an idle cluster has.

The bound holds for every way of giving the movable bundles to the brokers, whatever filters and limits say, so a plan
that keeps to those may not reach it. It is the highest of: the level at which the movable load would stand if it could
be poured over what cannot move; the most that one broker keeps in any case; and for each k, what a broker has at the
least that gets k of the heaviest bundles, as one of m brokers gets k of any (k - 1) * m + 1 bundles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.model.carried_load import carried_load, total_load
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot

Rows = npt.NDArray[np.integer]


UNEVEN = 1.2
"""With a higher imbalance load counts as uneven, where nobody has asked for another measure."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a plan is predicted to do; load in bytes/s, `share_moved` as a fraction of the load of all brokers.

    `lower_bound` is the imbalance that no plan can beat. `clients_disturbed` are the producers and consumers of the
    bundles that move. `by_broker` is the load of each broker before and after, `by_bundle` the load and the clients of
    each bundle that moves.
    """

    imbalance_before: float
    imbalance_after: float
    lower_bound: float
    load_moved: float
    share_moved: float
    bundles_moved: int
    clients_disturbed: int
    by_broker: Mapping[BrokerId, tuple[float, float]] = field(default_factory=dict)
    by_bundle: Mapping[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class MoveEffect:
    """What one move was predicted to bring, and what it has brought: imbalances before and after it.

    `load` is what the bundle carried, in bytes/s; `source` and `destination` are what these brokers reported before it
    and afterwards, in bytes/s, None while that is not known. What is `measured` has in it whatever else happened.
    """

    predicted: tuple[float, float]
    load: float
    measured: tuple[float, float] | None = None
    measured_at_ms: int | None = None
    source: tuple[float, float] | None = None
    destination: tuple[float, float] | None = None


def imbalance_of_move(
    snapshot: Snapshot, bundle: str, source: BrokerId | None, destination: BrokerId | None
) -> tuple[float, float]:
    """The imbalance with this bundle at one broker, and with it at the other, or at nobody; all else is as it is."""
    brokers, assigned = len(snapshot.brokers), snapshot.bundles.assigned
    load = snapshot.derive(
        "load by broker", lambda: _by_broker(assigned.astype(np.int64), carried_load(snapshot), brokers)
    )
    mean = total_load(snapshot) / max(brokers, 1)
    row = snapshot.bundles.find_row(bundle)
    if row is None:
        return _imbalance(load, mean), _imbalance(load, mean)
    others, moved = load.copy(), float(throughput_of(snapshot.bundles.short[row : row + 1])[0])
    if assigned[row] >= 0:
        others[assigned[row]] -= moved
    before, after = (_with(others, snapshot, broker, moved) for broker in (source, destination))
    return _imbalance(before, mean), _imbalance(after, mean)


def effect_of(
    snapshot: Snapshot,
    steps: Sequence[Assign | Unload],
    clients: Mapping[str, int] | None = None,
    emptied: Collection[str] = (),
) -> Effect:
    """The effect of the steps. `clients` are the producers and consumers of bundles by name.

    `emptied` are brokers that are to own nothing afterwards: they count neither for the mean nor for the bound.
    """
    load, bundles = carried_load(snapshot), snapshot.bundles
    before = bundles.assigned.astype(np.int64)
    after = before.copy()
    for step in steps:
        row = bundles.find_row(step.bundle)
        if row is not None:
            broker = None if step.destination is None else snapshot.brokers.find_row(step.destination.broker)
            after[row] = -1 if broker is None else broker
    moved = np.flatnonzero(before != after)
    kept = np.array([broker not in emptied for broker in snapshot.brokers.ids], dtype=bool)
    before_load, after_load = _by_broker(before, load, len(kept)), _by_broker(after, load, len(kept))
    mean = float(load.sum()) / max(int(kept.sum()), 1)
    bound = highest_load_at_least(load[before >= 0], before[before >= 0], _movable(snapshot)[before >= 0], kept)
    moved_load = float(load[moved].sum())
    names = [bundles.names[row] for row in moved.tolist()]
    disturbed = [(clients or {}).get(name, 0) for name in names]
    return Effect(
        imbalance_before=_imbalance(before_load, mean),
        imbalance_after=_imbalance(after_load, mean),
        lower_bound=_ratio(bound, mean),
        load_moved=moved_load,
        share_moved=moved_load / total_load(snapshot) if total_load(snapshot) > 0 else 0.0,
        bundles_moved=len(moved),
        clients_disturbed=sum(disturbed),
        by_broker=dict(
            zip(snapshot.brokers.ids, zip(before_load.tolist(), after_load.tolist(), strict=True), strict=True)
        ),
        by_bundle=dict(zip(names, zip(load[moved].tolist(), disturbed, strict=True), strict=True)),
    )


def highest_load_at_least(load: FloatArray, broker: Rows, movable: BoolArray, kept: BoolArray) -> float:
    """The load that the busiest broker has at the least, however the movable bundles are given to the brokers (M,) that
    are `kept`; the others end up without any. `load`, `broker` and `movable` (n,) belong to the bundles.
    """
    stays = ~movable & kept[broker]
    base = _by_broker(broker[stays], load[stays], len(kept))[kept]
    loose = np.sort(load[~stays])[::-1]
    if not len(base):
        return 0.0
    return max(_poured(base, float(loose.sum())), float(base.max()), float(base.min()) + _pairing(loose, len(base)))


def _movable(snapshot: Snapshot) -> BoolArray:
    """Which bundles (N,) a plan may take from their brokers: all but those that are pinned where they are."""
    movable = np.ones(len(snapshot.bundles), dtype=bool)
    for name, broker in snapshot.controls.pinned.items():
        row, at = snapshot.bundles.find_row(name), snapshot.brokers.find_row(broker)
        if row is not None and at is not None and snapshot.bundles.assigned[row] == at:
            movable[row] = False
    return movable


def _poured(base: FloatArray, amount: float) -> float:
    """The level at which `amount` stands when it is poured over the base."""
    heights = np.sort(base)
    levels = (np.cumsum(heights) + amount) / np.arange(1, len(heights) + 1)
    return float(levels.min())


def _pairing(heaviest_first: FloatArray, brokers: int) -> float:
    """Of any k * m + 1 bundles one of m brokers gets k + 1: at the least the lightest of the heaviest so many."""
    most = (len(heaviest_first) - 1) // brokers if len(heaviest_first) else -1
    sums = np.concatenate([[0.0], np.cumsum(heaviest_first)])
    last = np.arange(most + 1) * brokers + 1
    return float((sums[last] - sums[last - np.arange(1, most + 2)]).max(initial=0.0))


def _with(load: FloatArray, snapshot: Snapshot, broker: BrokerId | None, more: float) -> FloatArray:
    """The load of each broker (M,), with more at one of them, if that is one."""
    row = None if broker is None else snapshot.brokers.find_row(broker)
    if row is None:
        return load
    loaded = load.copy()
    loaded[row] += more
    return loaded


def _by_broker(broker: Rows, load: FloatArray, brokers: int) -> FloatArray:
    """The load of each broker (M,); bundles of nobody do not count."""
    return np.bincount(broker + 1, weights=load, minlength=brokers + 1)[1:].astype(np.float64)


def _imbalance(load: FloatArray, mean: float) -> float:
    return _ratio(float(load.max(initial=0.0)), mean)


def _ratio(highest: float, mean: float) -> float:
    return highest / mean if mean > 0 else 1.0
