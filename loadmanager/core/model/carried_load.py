"""Load of the bundles that registered brokers own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot

_IDLE_PART = 0.1
"""Part of its former load below which a namespace is idle."""


def carried_load(snapshot: Snapshot) -> FloatArray:
    """Return the load (N,) of bundles that a registered broker has or is about to have, 0 for others."""
    bundles = snapshot.bundles
    return snapshot.derive(
        "carried load", lambda: np.where(bundles.assigned >= 0, throughput_of(bundles.short), 0.0).astype(np.float64)
    )


def total_load(snapshot: Snapshot) -> float:
    """Return the load of all brokers."""
    return snapshot.derive("total load", lambda: float(carried_load(snapshot).sum()))


def share_of(snapshot: Snapshot, bundle: str) -> float:
    """Return the bundle's share of all load, a fraction; 0 if it is unknown or unowned."""
    row, total = snapshot.bundles.find_row(bundle), total_load(snapshot)
    return 0.0 if row is None or total <= 0 else float(carried_load(snapshot)[row]) / total


def is_idle(snapshot: Snapshot, namespace: str, share: float) -> bool:
    """Return True if a namespace with this former share of all load is gone or nearly idle now."""
    return _present_share(snapshot).get(namespace, 0.0) < _IDLE_PART * share


def _present_share(snapshot: Snapshot) -> Mapping[str, float]:
    """Return the current share of all load by namespace."""

    def shares() -> Mapping[str, float]:
        bundles = snapshot.bundles
        carried = np.where(bundles.assigned >= 0, throughput_of(bundles.present), 0.0).astype(np.float64)
        load = np.bincount(bundles.namespace, carried, len(bundles.namespaces))
        total = float(load.sum())
        return dict(zip(bundles.namespaces, (load / total).tolist(), strict=True)) if total > 0 else {}

    return snapshot.derive("present share by namespace", shares)
