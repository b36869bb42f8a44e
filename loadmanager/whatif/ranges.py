"""What was recorded in a range of a history, for worlds to replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.core.load import IntArray
from loadmanager.history.columns import columns_of
from loadmanager.history.reader import History, OnFault
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.sim.recorded import BrokerRows, BundleRows, RecordedRange, recorded_range

_LIMITS = RESOURCE_COLUMNS[1::2]
_MOST_SEQUENCES = 10**12
"""Of an epoch: the names of files have twelve digits."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the range without gaps."""

    number: int
    from_ms: int
    to_ms: int

    @property
    def duration_s(self) -> float:
        return (self.to_ms - self.from_ms) / 1000


def read_range(history: History, stretch: Stretch, on_fault: OnFault | None = None) -> RecordedRange:
    """What was recorded in a stretch. Raises `ValueError` when nothing was."""
    names = ["epoch", "sequence", "at_ms", "broker", *_LIMITS, "version", "load_manager_class"]
    brokers = columns_of(history, BROKER_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    names = ["epoch", "sequence", "namespace", "range_lower", "range_upper", *LOAD_COLUMNS, "topics", "sessions"]
    bundles = columns_of(history, BUNDLE_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    report = _reports_of(brokers, bundles)
    load = np.column_stack([bundles[name] for name in LOAD_COLUMNS]).astype(np.float64)
    kept = (report >= 0) & (load >= 0).all(axis=1)
    return recorded_range(
        BrokerRows(
            (brokers["at_ms"] - stretch.from_ms) / 1000,
            brokers["broker"],
            np.column_stack([brokers[name] for name in _LIMITS]),
            brokers["version"],
            brokers["load_manager_class"],
        ),
        BundleRows(
            report[kept],
            bundles["namespace"][kept],
            bundles["range_lower"][kept],
            bundles["range_upper"][kept],
            load[kept],
            bundles["topics"][kept],
            bundles["sessions"][kept],
        ),
        stretch.duration_s,
    )


def _reports_of(brokers: Mapping[str, Any], bundles: Mapping[str, Any]) -> IntArray:
    """For each row of a bundle the row of its broker's report; -1 where that is missing. Both are in their order."""
    epochs = np.unique(np.concatenate([brokers["epoch"], bundles["epoch"]]))
    own, other = (
        np.searchsorted(epochs, rows["epoch"]).astype(np.int64) * _MOST_SEQUENCES + rows["sequence"]
        for rows in (brokers, bundles)
    )
    if not len(own):
        return np.full(len(other), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(own, other), len(own) - 1)
    return np.where(own[found] == other, found, -1).astype(np.int64)
