"""Load that the bundles of registered brokers carry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot

_IDLE_PART = 0.1
"""A namespace that carries less than this part of what it did is idle."""


def carried_load(snapshot: Snapshot) -> FloatArray:
    """The load (N,) of each bundle that a registered broker has or is about to have, 0 for the others."""
    bundles = snapshot.bundles
    return snapshot.derive(
        "carried load", lambda: np.where(bundles.assigned >= 0, throughput_of(bundles.short), 0.0).astype(np.float64)
    )


def total_load(snapshot: Snapshot) -> float:
    """The load of all brokers."""
    return snapshot.derive("total load", lambda: float(carried_load(snapshot).sum()))


def share_of(snapshot: Snapshot, bundle: str) -> float:
    """The part of all load that the bundle carries, a fraction; 0 for one that is unknown or has no broker."""
    row, total = snapshot.bundles.find_row(bundle), total_load(snapshot)
    return 0.0 if row is None or total <= 0 else float(carried_load(snapshot)[row]) / total


def is_idle(snapshot: Snapshot, namespace: str, share: float) -> bool:
    """Return whether a namespace that carried this share of all load is gone, or carries next to nothing of it now."""
    return _present_share(snapshot).get(namespace, 0.0) < _IDLE_PART * share


def _present_share(snapshot: Snapshot) -> Mapping[str, float]:
    """The part of all load that each namespace carries at present."""

    def shares() -> Mapping[str, float]:
        bundles = snapshot.bundles
        carried = np.where(bundles.assigned >= 0, throughput_of(bundles.present), 0.0).astype(np.float64)
        load = np.bincount(bundles.namespace, carried, len(bundles.namespaces))
        total = float(load.sum())
        return dict(zip(bundles.namespaces, (load / total).tolist(), strict=True)) if total > 0 else {}

    return snapshot.derive("present share by namespace", shares)
