"""Thresholds in proportion to the load of the fleet, so that a small fleet is balanced as a large one.

Pulsar's thresholds are amounts: points of usage, messages/s, bytes/s. In a fleet that is used to 2 % no broker is ever
ten points above the mean. Here a threshold that no configuration sets keeps its proportion to the mean load per broker.
It is at most Pulsar's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmanager.core.domain.setting_declaration import declared_in
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker

_LEAST = 1e-4
"""The smallest part of a default: a fleet that does next to nothing is not balanced."""
_DECLARED = declared_in(PlannerSettings)


def fit_thresholds(settings: PlannerSettings, snapshot: Snapshot) -> PlannerSettings:
    """Return the settings with a value for each threshold in `fitted`."""
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
    """The mean of the figures that are amounts; 0 for none."""
    amounts = figures[np.isfinite(figures)]
    return float(amounts.mean()) if len(amounts) else 0.0
