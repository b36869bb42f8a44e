"""Resource quotas of a Pulsar dump, as initial history for its two older load managers.

Source: Pulsar's ModularLoadManagerImpl, to which a quota of exactly this bundle is an ample history where it has stored
none, and SimpleLoadManagerImpl, which goes by all of them, and for other bundles by the default one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmanager.core.model.load import LONG_WINDOW, SHORT_WINDOW, BundleAverages, FloatArray, next_average
from loadmanager.wire.dump_line import DEFAULT_QUOTA_NAME, ResourceQuota


def ample_history(quota: ResourceQuota) -> BundleAverages:
    """Return the averages of a bundle that has carried exactly its quota for a full window."""
    load = _load_of(quota)
    return BundleAverages(load, load, SHORT_WINDOW, LONG_WINDOW, topics=0)


def after_sample(averages: BundleAverages, load: FloatArray, topics: int) -> BundleAverages:
    """The averages of a bundle after another sample (4,)."""

    def after(mean: FloatArray, samples: int, window: int) -> tuple[FloatArray, int]:
        means, counts = next_average(mean[np.newaxis], np.array([samples]), load[np.newaxis], window)
        return means[0], int(counts[0])

    short, short_samples = after(averages.short, averages.short_samples, SHORT_WINDOW)
    long, long_samples = after(averages.long, averages.long_samples, LONG_WINDOW)
    return BundleAverages(short, long, short_samples, long_samples, topics)


def quotas_model(quotas: Mapping[str, ResourceQuota]) -> dict[str, Any]:
    """Return the quotas in the form that the simple load manager remembers (see `core/model/quotas.py`)."""
    found = {name: [*_load_of(each).tolist(), each.get("memory", 0.0)] for name, each in quotas.items()}
    fixed = {name for name, each in quotas.items() if not each.get("dynamic", True)}
    default = found.pop(DEFAULT_QUOTA_NAME, None)
    model: dict[str, Any] = {"quotas": found, "fixed": sorted(fixed & found.keys())}
    return model if default is None else {**model, "default": default, "default_fixed": DEFAULT_QUOTA_NAME in fixed}


def _load_of(quota: ResourceQuota) -> FloatArray:
    rates = quota.get("msgRateIn", 0.0), quota.get("msgRateOut", 0.0)
    return np.array([*rates, quota.get("bandwidthIn", 0.0), quota.get("bandwidthOut", 0.0)])
