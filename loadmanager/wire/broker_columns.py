"""Conversion of a broker's record to columns, without an object per bundle: the hottest path of the intake."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BundleName, InvalidNameError
from loadmanager.core.model.load import METRICS, BrokerReport
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.broker_data import NO_STATS, LocalBrokerData, NamespaceBundleStats, health_of, load_and_usage_of
from loadmanager.wire.validation import MAX_TOPICS

_COLUMNS = itemgetter(*NO_STATS)


def report_of(
    record: LocalBrokerData,
    where: str,
    known_bundles: Container[str] = (),
    read_at_ms: int = 0,
    parse: Callable[[str], BundleName] = BundleName.parse,
) -> BrokerReport:
    """Convert a record's load into columns, in the order of its `lastStats`; names outside `known_bundles` are checked
    by `parse`.

    A record without `lastUpdate` gets the time at which it was read, as in Pulsar.
    """
    stats = record.get("lastStats") or {}
    check_bundle_names(stats, known_bundles, where, parse)
    matrix = _matrix(stats.values())
    sums = load_and_usage_of(record)
    return BrokerReport(
        usage=np.array(sums.usage, dtype=np.float64),
        load=np.array(sums.load, dtype=np.float64),
        num_topics=record.get("numTopics", 0),
        num_bundles=sums.num_bundles,
        num_consumers=record.get("numConsumers", 0),
        num_producers=record.get("numProducers", 0),
        bundle_names=tuple(stats),
        bundle_load=np.ascontiguousarray(matrix[:, :METRICS]),
        bundle_topics=np.minimum(matrix[:, METRICS], MAX_TOPICS).astype(np.int64),
        bundle_sessions=matrix[:, METRICS + 1 : -1].sum(axis=1).astype(np.int64),
        bundle_cache_bytes=matrix[:, -1].astype(np.int64),
        last_update_ms=record.get("lastUpdate", read_at_ms),
        start_timestamp_ms=record.get("startTimestamp", 0),
        version=record.get("brokerVersionString", ""),
        load_manager_class=record.get("loadManagerClassName", ""),
        persistent_enabled=record.get("persistentTopicsEnabled", True),
        non_persistent_enabled=record.get("nonPersistentTopicsEnabled", True),
        health=health_of(record),
        stuck=record.get("stuck", ""),
    )


def check_bundle_names(
    names: Iterable[str], known: Container[str], where: str, parse: Callable[[str], BundleName]
) -> None:
    """Raise `InvalidRecordError` for the first name that is not a bundle's.

    Names in `known` were parsed before and are skipped: reports repeat the same names for hours, and parsing them would
    cost more than the rest of the report.
    """
    for name in names:
        if name not in known:
            try:
                parse(name)
            except InvalidNameError as error:
                raise InvalidRecordError(f"{where}: lastStats: {error}") from None


def _matrix(stats: Iterable[NamespaceBundleStats]) -> npt.NDArray[np.float64]:
    rows = [_COLUMNS(NO_STATS | entry) for entry in stats]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NO_STATS))
