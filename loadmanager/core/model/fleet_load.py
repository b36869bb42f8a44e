"""Load of the fleet: load of its bundles, shares of the total, and thresholds scaled with the load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from loadmanager.core.domain.setting_declaration import declared_in
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker

_IDLE_PART = 0.1
"""Part of its former load below which a namespace is idle."""


def carried_load(snapshot: Snapshot) -> FloatArray:
    """Return the load (N,) of bundles that are assigned to a registered broker, 0 for others."""
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
    def shares() -> Mapping[str, float]:
        bundles = snapshot.bundles
        carried = np.where(bundles.assigned >= 0, throughput_of(bundles.present), 0.0).astype(np.float64)
        load = np.bincount(bundles.namespace, carried, len(bundles.namespaces))
        total = float(load.sum())
        return dict(zip(bundles.namespaces, (load / total).tolist(), strict=True)) if total > 0 else {}

    return snapshot.derive("present share by namespace", shares)


_LEAST = 1e-4
"""Lower limit of a scaled threshold, as a part of its default, so that an idle fleet is not balanced."""
_DECLARED = declared_in(PlannerSettings)


def fit_thresholds(settings: PlannerSettings, snapshot: Snapshot) -> PlannerSettings:
    """Return the settings with a value for each threshold in `fitted`.

    Pulsar's thresholds are absolute: points of usage, messages/s, bytes/s. In a fleet with a usage of 2 % no broker is
    ever ten points above the mean. So a threshold without a configured value scales with the mean load per broker. It
    is at most Pulsar's default.
    """
    if not settings.fitted:
        return settings
    load = snapshot.brokers.load
    means = {
        "usage": _mean(usage_per_broker(snapshot, settings.resource_weights)),
        "messages/s": _mean(load[:, [MSG_RATE_IN, MSG_RATE_OUT]].sum(axis=1)),
        "bytes/s": _mean(load[:, [THROUGHPUT_IN, THROUGHPUT_OUT]].sum(axis=1)),
    }
    values = {}
    for name in settings.fitted:
        declared = _DECLARED[name]
        assert declared.fits is not None, "only such a setting may be left open"
        part = means[declared.fits.measure] / declared.fits.reference
        values[name] = declared.default * min(max(part, _LEAST), 1.0)
    return replace(settings, **values, fitted=frozenset())


def _mean(figures: FloatArray) -> float:
    """Return the mean of the valid figures; 0 if there are none."""
    amounts = figures[np.isfinite(figures)]
    return float(amounts.mean()) if len(amounts) else 0.0
