"""Predicted effect of a plan: the imbalance before and after, and the moved load.

The load of a bundle is its bytes/s, in and out together, by short-term averages; that of a broker is the sum over the
bundles that it owns or is about to own. The imbalance is the highest load over the mean: 1 is perfect balance, and that
of an idle cluster.
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
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import NOBODY, Snapshot

Rows = npt.NDArray[np.integer]


UNEVEN = 1.2
"""Imbalance above which load counts as uneven, where no other measure is configured."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Predicted effect of a plan; load in bytes/s, `share_moved` as a fraction of the load of all brokers.

    `clients_disturbed` are the producers and consumers of moved bundles. `by_broker` is the load of each broker before
    and after, `by_bundle` the load and clients of each moved bundle.
    """

    imbalance_before: float
    imbalance_after: float
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


def owners_after(snapshot: Snapshot, steps: Sequence[Assign | Unload]) -> Rows:
    """Return the owner of each bundle (N,) after these steps; (0,) without brokers."""
    after = snapshot.bundles.assigned.astype(np.int64)[: None if len(snapshot.brokers) else 0]
    brokers = {broker: row for row, broker in enumerate(snapshot.brokers.ids)}
    for step in steps:
        row = snapshot.bundles.find_row(step.bundle)
        if row is not None and row < len(after):
            after[row] = NOBODY if step.destination is None else brokers.get(step.destination.broker, NOBODY)
    return after


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

    `emptied` brokers are to own nothing afterwards; they do not count for the mean.
    """
    before, after = owners_after(snapshot, ()), owners_after(snapshot, steps)
    load, moved = carried_load(snapshot)[: len(after)], np.flatnonzero(before != after)
    ids = snapshot.brokers.ids
    before_load, after_load = _by_broker(before, load, len(ids)), _by_broker(after, load, len(ids))
    mean = float(load.sum()) / max(sum(broker not in emptied for broker in ids), 1)
    moved_load = float(load[moved].sum())
    names = [snapshot.bundles.names[row] for row in moved.tolist()]
    disturbed = [(clients or {}).get(name, 0) for name in names]
    return Effect(
        imbalance_before=_imbalance(before_load, mean),
        imbalance_after=_imbalance(after_load, mean),
        load_moved=moved_load,
        share_moved=moved_load / total_load(snapshot) if total_load(snapshot) > 0 else 0.0,
        bundles_moved=len(moved),
        clients_disturbed=sum(disturbed),
        by_broker=dict(zip(ids, zip(before_load.tolist(), after_load.tolist(), strict=True), strict=True)),
        by_bundle=dict(zip(names, zip(load[moved].tolist(), disturbed, strict=True), strict=True)),
    )


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
    return float(load.max(initial=0.0)) / mean if mean > 0 else 1.0
