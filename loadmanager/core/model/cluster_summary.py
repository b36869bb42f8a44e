"""Summary of the cluster for frequent display, at a small part of a snapshot's cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.broker_report import ReportingBroker
from loadmanager.core.model.bundle_columns import RecordedState
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.load import METRICS, RESOURCES, Float32Array, FloatArray, IntArray, percent_usage
from loadmanager.core.model.owner_columns import RecordedOwners


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSummary:
    """Brokers that have reported, sorted by name, with their last accepted reports: `usage_percent` (M, 5), `load` (M,
    4), and `reported_ms` (M,), since 1970; usage of a resource without a limit is NaN. `owned` (M,) counts the bundles
    each owns in the records, including those to release. `releasing` are the names of those, `bundles` is the number of
    all, `unowned` the number of recorded bundles without a reporting owner.
    """

    brokers: tuple[BrokerId, ...]
    usage_percent: Float32Array
    load: FloatArray
    reported_ms: IntArray
    owned: IntArray
    releasing: tuple[str, ...]
    bundles: int
    unowned: int


def summarize(table: NamedRows, owners: RecordedOwners, brokers: Sequence[ReportingBroker]) -> ClusterSummary:
    """Summarize; `brokers` in the order of their names."""
    used, columns = len(table.names), table.columns
    reports = [broker.report for broker in brokers]
    usage = np.array([report.usage for report in reports]).reshape(-1, RESOURCES, 2)
    recorded = columns.recorded[:used]
    owner = owners.registrations.places(broker.row for broker in brokers)[columns.owner[:used]]
    counts = np.bincount(owner[recorded != RecordedState.NO] + 1, minlength=len(brokers) + 1)
    releasing = np.flatnonzero(recorded == RecordedState.RELEASING)
    return ClusterSummary(
        brokers=tuple(broker.registration.broker for broker in brokers),
        usage_percent=np.where(usage[:, :, 1] > 0, percent_usage(usage[:, :, 0], usage[:, :, 1]), np.float32(np.nan)),
        load=np.array([report.load for report in reports]).reshape(-1, METRICS),
        reported_ms=np.array([report.last_update_ms for report in reports], dtype=np.int64),
        owned=counts[1:],
        releasing=tuple(sorted(table.names[row] for row in releasing.tolist())),
        bundles=len(table.by_name),
        unowned=int(counts[0]),
    )
