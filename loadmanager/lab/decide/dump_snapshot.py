"""Conversion of a line of a dump to the snapshot that strategies use.

A broker's incarnation is its `startTimestamp`. A bundle belongs to the broker that reports it, in `bundles` or in
`lastStats`, unless the line has its owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.core.domain.policies import InvalidPolicyError, Policies
from loadmanager.core.model.extensible_load import Published, PublishedLoad
from loadmanager.core.model.learned_loads import LearnedLoads
from loadmanager.core.model.load import METRICS, BrokerReport, BundleAverages, FloatArray, TimeMean
from loadmanager.core.model.snapshot import NOBODY, Snapshot, build_snapshot
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.average_records import AverageLoad, BundleData, TimeAverageBrokerData
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats
from loadmanager.wire.control_records import controls_of
from loadmanager.wire.dump_line import DumpLine, OwnedBundle, PublishedBrokerLoad
from loadmanager.wire.learned_records import learned_of
from loadmanager.wire.policy_records import policies_of
from loadmanager.wire.validation import MAX_TOPICS


def snapshot_of(line: DumpLine, grace_period_ms: float, where: str) -> Snapshot:
    """Return the cluster of the line. A bundle unloaded within the grace period before `takenAt` may not move.

    Raises `InvalidRecordError` for invalid policies.
    """
    taken_at_ms = line.get("takenAt", 0)
    unloaded = line.get("recentlyUnloaded", {})
    owned = dict(_ownership(line))
    given = dict(_find_assignments(line, owned))
    learned = learned_of(line.get("learned"))
    snapshot = build_snapshot(
        taken_at_ms / 1000,
        {
            registration_of(broker, data): _report(data, taken_at_ms, where)
            for broker, data in line.get("brokers", {}).items()
        },
        _averages(line, learned),
        frozenset(name for name, ms in unloaded.get("bundles", {}).items() if ms >= taken_at_ms - grace_period_ms),
        _policies(line, where),
        given,
        Published(
            broker_load=_broker_load(line),
            top_bundles=_top_bundles(line),
            last_unloaded_s={BrokerId(broker): ms / 1000 for broker, ms in unloaded.get("brokers", {}).items()},
        ),
        learned,
    )
    snapshot = replace(snapshot, controls=controls_of(line.get("controls", {})))
    snapshot = _with_ownership(snapshot, owned)
    snapshot = _without_unknown(snapshot, line)
    return _with_time_averages(snapshot, line.get("timeAverages", {}))


def registration_of(broker: str, data: LocalBrokerData) -> Registration:
    return Registration(BrokerId(broker), data.get("startTimestamp", 0))


def load_of(stats: NamespaceBundleStats | AverageLoad) -> FloatArray:
    """Return the rates and throughputs (4,); 0 for absent ones."""
    rates = stats.get("msgRateIn", 0.0), stats.get("msgRateOut", 0.0)
    return np.array([*rates, stats.get("msgThroughputIn", 0.0), stats.get("msgThroughputOut", 0.0)])


def _report(data: LocalBrokerData, taken_at_ms: int, where: str) -> BrokerReport:
    """Return the report with all bundles that it names; those without figures have load 0."""
    stats = data.get("lastStats") or {}
    report = report_of(data, where, known_bundles=stats, read_at_ms=taken_at_ms)
    unknown = {name: np.zeros(METRICS) for name in data.get("bundles") or () if name not in stats}
    report = report.with_bundles(unknown) if unknown else report
    return replace(report, num_bundles=len(report.bundle_names) or report.num_bundles)


def _averages(line: DumpLine, learned: LearnedLoads) -> dict[str, BundleAverages]:
    """Return the recorded averages of bundles; a bundle without figures gets the default history."""
    averages = {name: _history(history) for name, history in line.get("bundleData", {}).items()}
    for data in line.get("brokers", {}).values():
        stats = data.get("lastStats") or {}
        for name in data.get("bundles") or ():
            if name not in stats:
                averages.setdefault(name, learned.no_history(namespace_of(name)))
    return averages


def _history(history: BundleData) -> BundleAverages:
    short, long = history.get("shortTermData", {}), history.get("longTermData", {})
    samples = short.get("numSamples", 0), long.get("numSamples", 0)
    by_time = history.get("timeMean")
    return BundleAverages(
        load_of(short),
        load_of(long),
        *samples,
        topics=min(history.get("topics", 0), MAX_TOPICS),
        time_mean=None if by_time is None else TimeMean(load_of(by_time), by_time.get("sigma", 0.0)),
    )


def _without_unknown(snapshot: Snapshot, line: DumpLine) -> Snapshot:
    """Mark bundles as not movable that have no figures and are not in `bundleData`, as in Pulsar."""
    if "bundleData" not in line:
        return snapshot
    known = set(line["bundleData"])
    known |= {each["bundle"] for listed in line.get("topBundles", {}).values() for each in listed}
    for data in line.get("brokers", {}).values():
        known |= (data.get("lastStats") or {}).keys()
    is_known = np.array([name in known for name in snapshot.bundles.names], dtype=bool)
    return replace(snapshot, bundles=replace(snapshot.bundles, movable=snapshot.bundles.movable & is_known))


def _ownership(line: DumpLine) -> Iterator[tuple[str, OwnedBundle]]:
    """Yield the ownership entries of the line, by bundle name."""
    for namespace, content in line.get("namespaces", {}).items():
        for bundle_range, owned in content.get("ownership", {}).items():
            yield f"{namespace}/{bundle_range}", owned


def _find_assignments(line: DumpLine, owned: Mapping[str, OwnedBundle]) -> Iterator[tuple[str, BrokerId]]:
    """Yield the broker to which each bundle is assigned, whether it reports the bundle or not."""
    for broker, bundles in line.get("preallocated", {}).items():
        yield from ((bundle, BrokerId(broker)) for bundle in bundles)
    for name, entry in owned.items():
        is_owned = entry["state"] == OwnershipState.OWNED
        given = entry.get("owner") if is_owned else entry.get("destination")
        if given is not None:
            yield name, BrokerId(given)


def _with_ownership(snapshot: Snapshot, owned: Mapping[str, OwnedBundle]) -> Snapshot:
    """Assign bundles to the owners in the line. A broker that reports another's bundle has an outdated load."""
    if not owned:
        return snapshot
    bundles, brokers = snapshot.bundles, snapshot.brokers
    broker, assigned, free = bundles.broker.copy(), bundles.assigned.copy(), bundles.free.copy()
    movable, settled = bundles.movable.copy(), brokers.settled.copy()
    for row, name in enumerate(bundles.names):
        if name not in owned:
            continue
        entry, reporter = owned[name], int(bundles.broker[row])
        owner = _find_row(snapshot, entry.get("owner"))
        is_owned = entry["state"] == OwnershipState.OWNED and owner != NOBODY
        destination = NOBODY if is_owned else _find_row(snapshot, entry.get("destination"))
        assigned[row] = owner if is_owned else destination
        broker[row] = reporter if reporter == owner else NOBODY
        free[row] = owner == NOBODY and destination == NOBODY
        movable[row] = is_owned and reporter == owner
        if reporter != NOBODY and not movable[row]:
            settled[reporter] = False
    columns = replace(bundles, broker=broker, assigned=assigned, free=free, movable=movable)
    return replace(snapshot, bundles=columns, brokers=brokers.with_bundles(columns, settled))


def _find_row(snapshot: Snapshot, broker: str | None) -> int:
    row = None if broker is None else snapshot.brokers.find_row(BrokerId(broker))
    return NOBODY if row is None else row


def _with_time_averages(snapshot: Snapshot, averages: Mapping[str, TimeAverageBrokerData]) -> Snapshot:
    """Use the sums in the line for the brokers that have them; for others, the sums over their bundles."""
    if not averages:
        return snapshot
    sums = snapshot.brokers.time_average.astype(np.float64)  # a copy; integers if there are no bundles
    for row, broker in enumerate(snapshot.brokers.ids):
        if broker in averages:
            sums[row] = _sums(averages[broker])
    return replace(snapshot, brokers=snapshot.brokers.with_time_average(sums))


def _sums(averages: TimeAverageBrokerData) -> list[list[float]]:
    columns = ("MsgRateIn", "MsgRateOut", "MsgThroughputIn", "MsgThroughputOut")
    figures = cast("Mapping[str, float]", averages)
    return [[figures.get(f"{term}Term{column}", 0.0) for column in columns] for term in ("short", "long")]


def _broker_load(line: DumpLine) -> dict[BrokerId, PublishedLoad] | None:
    if "brokerLoad" not in line:
        return None
    taken_at_ms = line.get("takenAt", 0)
    return {BrokerId(broker): _parse_published(load, taken_at_ms) for broker, load in line["brokerLoad"].items()}


def _parse_published(load: PublishedBrokerLoad, taken_at_ms: int) -> PublishedLoad:
    return PublishedLoad(
        load.get("weightedMaxEMA", 1.0),
        load.get("msgThroughputEMA", 0.0),
        load.get("msgThroughputIn", 0.0),
        load.get("msgThroughputOut", 0.0),
        load.get("updatedAt", taken_at_ms),
    )


def _top_bundles(line: DumpLine) -> dict[BrokerId, dict[str, FloatArray]] | None:
    if "topBundles" not in line:
        return None
    return {
        BrokerId(broker): {each["bundle"]: load_of(each.get("stats") or NamespaceBundleStats()) for each in listed}
        for broker, listed in line["topBundles"].items()
    }


def _policies(line: DumpLine, where: str) -> Policies:
    groups = {
        name: namespace["antiAffinityGroup"]
        for name, namespace in line.get("namespaces", {}).items()
        if "antiAffinityGroup" in namespace
    }
    try:
        return policies_of(line.get("isolationPolicies", {}), line.get("failureDomains", {}), groups)
    except InvalidPolicyError as error:
        raise InvalidRecordError(f"{where}: isolationPolicies: {error}") from None
