"""Predicted effect of a plan: the imbalance before and after, the moved load, and the lower bound.

The load of a bundle is its bytes/s, in and out together, by short-term averages; that of a broker is the sum over the
bundles that it owns or is about to own. The imbalance is the highest load over the mean: 1 is perfect balance, and that
of an idle cluster.

The lower bound ignores filters and limits, so a plan may not reach it. It is the highest of: the level if the movable
load were divisible; the most that one broker keeps in any case; and for each k, the least load of a broker with k of
the heaviest bundles, as one of m brokers gets k of any (k - 1) * m + 1 bundles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.fleet_load import carried_load, total_load
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot

Rows = npt.NDArray[np.integer]


UNEVEN = 1.2
"""Imbalance above which load counts as uneven, where no other measure is configured."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Predicted effect of a plan; load in bytes/s, `share_moved` as a fraction of the load of all brokers.

    `lower_bound` is the best possible imbalance. `clients_disturbed` are the producers and consumers of moved bundles.
    `by_broker` is the load of each broker before and after, `by_bundle` the load and clients of each moved bundle.
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
    """Predicted and measured effect of one move: imbalances before and after.

    `load` is the bundle's bytes/s; `source` and `destination` are the reported bytes/s of these brokers before and
    after, None if unknown. `measured` includes all other changes of the load.
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
    """Return the imbalance with this bundle at one broker and at the other (None: unowned), all else unchanged."""
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


def compute_effect(
    snapshot: Snapshot,
    steps: Sequence[Assign | Unload],
    clients: Mapping[str, int] | None = None,
    emptied: Collection[str] = (),
) -> Effect:
    """Compute the effect of the steps. `clients` are the producers and consumers by bundle.

    `emptied` brokers are to own nothing afterwards; they count neither for the mean nor for the bound.
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
    """Return the lower bound of the highest load, for any distribution of the movable bundles over the brokers (M,)
    that are `kept`; the others end up empty. `load`, `broker` and `movable` (n,) are of the bundles.
    """
    stays = ~movable & kept[broker]
    base = _by_broker(broker[stays], load[stays], len(kept))[kept]
    loose = np.sort(load[~stays])[::-1]
    if not len(base):
        return 0.0
    return max(_poured(base, float(loose.sum())), float(base.max()), float(base.min()) + _pairing(loose, len(base)))


def _movable(snapshot: Snapshot) -> BoolArray:
    """Return a mask (N,) of the bundles that a plan may move: all but those pinned to their current broker."""
    movable = np.ones(len(snapshot.bundles), dtype=bool)
    for name, broker in snapshot.controls.pinned.items():
        row, at = snapshot.bundles.find_row(name), snapshot.brokers.find_row(broker)
        if row is not None and at is not None and snapshot.bundles.assigned[row] == at:
            movable[row] = False
    return movable


def _poured(base: FloatArray, amount: float) -> float:
    """Return the level at which a divisible `amount` stands on top of the base."""
    heights = np.sort(base)
    levels = (np.cumsum(heights) + amount) / np.arange(1, len(heights) + 1)
    return float(levels.min())


def _pairing(heaviest_first: FloatArray, brokers: int) -> float:
    """Return the pigeonhole bound: of any k * m + 1 bundles one of m brokers gets k + 1."""
    most = (len(heaviest_first) - 1) // brokers if len(heaviest_first) else -1
    sums = np.concatenate([[0.0], np.cumsum(heaviest_first)])
    last = np.arange(most + 1) * brokers + 1
    return float((sums[last] - sums[last - np.arange(1, most + 2)]).max(initial=0.0))


def _with(load: FloatArray, snapshot: Snapshot, broker: BrokerId | None, more: float) -> FloatArray:
    """Return the load of each broker (M,), with more at one of them, if given."""
    row = None if broker is None else snapshot.brokers.find_row(broker)
    if row is None:
        return load
    loaded = load.copy()
    loaded[row] += more
    return loaded


def _by_broker(broker: Rows, load: FloatArray, brokers: int) -> FloatArray:
    """Return the load of each broker (M,) without unowned bundles."""
    return np.bincount(broker + 1, weights=load, minlength=brokers + 1)[1:].astype(np.float64)


def _imbalance(load: FloatArray, mean: float) -> float:
    return _ratio(float(load.max(initial=0.0)), mean)


def _ratio(highest: float, mean: float) -> float:
    return highest / mean if mean > 0 else 1.0
