"""A recorded history of a small fleet that reports every minute, for replays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.recorded import NOON_MS, a_writer
from support.waiting import patience

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport, FloatArray
from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import HistoryEvent, Report
from loadmanager.history.files import Directory
from loadmanager.history.reader import History

MINUTE_MS = 60_000
BROKERS = 4
NAMESPACES = 2
BUNDLES = 8
_LIMITS = (800.0, 16_384.0, 8_192.0, 10_000_000.0, 10_000_000.0)

Loads = Callable[[int, int, int], float]
"""Factor of a bundle's usual load, by minute, namespace and bundle."""


def uneven(minute: int, namespace: int, bundle: int) -> float:
    """The bundles of broker 0 carry most, and all of them more as time goes on."""
    return (6.0 if bundle % BROKERS == 0 else 1.0) * (1 + minute / 60) * (1 + 0.01 * ((7 * minute + namespace) % 5))


def broker(number: int) -> BrokerId:
    return BrokerId(f"broker-{number}:8080")


def bundle_name(namespace: int, bundle: int) -> str:
    ranges = NamespaceBundles(equal_boundaries(BUNDLES)).ranges()
    return f"tenant/ns-{namespace}/{ranges[bundle]}"


def report_of(number: int, at_ms: int, bundles: dict[str, float]) -> Report:
    """Report of a broker with these bundles, each with so many times the usual load."""
    usual = np.array([800.0, 1200.0, 4e6, 6e6])
    load: FloatArray = np.array(list(bundles.values()), dtype=np.float64)[:, np.newaxis] * usual
    used = np.array([100.0, 2000.0, 100.0, 0.0, 0.0]) + load.sum() * np.array([2e-6, 0.0, 0.0, 8e-3, 8e-3])
    counts = np.full(len(bundles), 10, dtype=np.int64)
    report = BrokerReport(
        usage=np.column_stack([used, _LIMITS]),
        load=load.sum(axis=0),
        num_topics=10 * len(bundles),
        num_bundles=len(bundles),
        num_consumers=10 * len(bundles),
        num_producers=10 * len(bundles),
        bundle_names=tuple(bundles),
        bundle_load=load,
        bundle_topics=counts,
        bundle_sessions=2 * counts,
        bundle_cache_bytes=0 * counts,
        last_update_ms=at_ms,
        start_timestamp_ms=NOON_MS,
        version="4.0.1",
        load_manager_class="",
        persistent_enabled=True,
        non_persistent_enabled=True,
    )
    return Report(Registration(broker(number), number + 1), recordable(report))


def record_fleet(
    root: Path, minutes: int = 60, loads: Loads = uneven, is_silent: Callable[[int], bool] = lambda _: False
) -> History:
    """Record minutes from noon on, except silent ones; bundle i is at broker i modulo their number. What a
    leader records besides is no load.
    """
    directory = Directory.of(str(root))
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for minute in range(minutes):
            writer.put(
                NOON_MS + minute * MINUTE_MS,
                HistoryEvent("snapshot", "", {"atS": 60.0 * minute, "gracePeriodS": 60.0}),
            )
            for number in range(0 if is_silent(minute) else BROKERS):
                own = {
                    bundle_name(namespace, bundle): loads(minute, namespace, bundle)
                    for namespace in range(NAMESPACES)
                    for bundle in range(number, BUNDLES, BROKERS)
                }
                at_ms = NOON_MS + minute * MINUTE_MS + number * 1000
                writer.put(at_ms, report_of(number, at_ms, own))
        writer.end_term(NOON_MS + minutes * MINUTE_MS)
        assert writer.flush(patience()), writer.figures
    return History(directory)
