"""Snapshots, summaries and checkpoints of the model's parts.

In a snapshot, bundles and brokers are sorted by name, and registrations are broker positions.

A checkpoint is all of a `ClusterModel`'s state at one moment, as serializable values: everything that later reports,
records and snapshots depend on, except settings, policies and controls, which are set separately. Bundle columns of
last reports are not included: snapshots do not need them, and the next report has them again. Bundles are numbered:
position i is `names[i]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.bundle_rows import NamedRows, RecordedState
from loadmanager.core.model.extensible_load import Listed, TopBundles
from loadmanager.core.model.load import (
    METRICS,
    RESOURCES,
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    RowArray,
    percent_usage,
)
from loadmanager.core.model.owner_columns import RecordedOwners, UnloadTimes
from loadmanager.core.model.reporters import Reporters, ReportingBroker
from loadmanager.core.model.snapshot import NOBODY, Bundles
from loadmanager.core.model.time_means import TimeMeans


def _load_columns(table: NamedRows) -> dict[str, Any]:
    """Return the load columns in name order, as in `Bundles`, gathered with `take`, which is twice as fast as indexing
    for a single column.

    Unless a load was written or a name changed, they are those of the last snapshot while that is in use: nine tenths
    of its columns. This is the usual case between assignments.
    """
    order, columns = table.order(), table.columns
    last = None if table.last_taken is None else table.last_taken()
    if last is not None and last.names is order.names:
        return {name: getattr(last, name) for name in ("namespace", "short", "long", "time_means", "topics")}
    rows = order.rows
    return {
        "namespace": table.namespace_places()[columns.namespace.take(rows)],
        "short": columns.short.take(rows, axis=0),
        "long": columns.long.take(rows, axis=0),
        "time_means": columns.time_means(rows),
        "topics": columns.topics.take(rows),
    }


def sorted_bundles(
    table: NamedRows,
    owners: RecordedOwners,
    brokers: Sequence[ReportingBroker],
    unloads: UnloadTimes,
    taken_at_s: float,
) -> tuple[Bundles, BoolArray]:
    """Build the bundles in name order with broker positions, and a mask of settled brokers."""
    order, columns = table.order(), table.columns
    rows = order.rows
    # An ended registration maps to `NOBODY`: its bundles are free, and its reports do not count.
    position = owners.registrations.places(broker.row for broker in brokers)
    reporter, owner = position.take(columns.reporter.take(rows)), position.take(columns.owner.take(rows))
    recorded = columns.recorded.take(rows)
    owned = (recorded == RecordedState.OWNED) & (owner >= 0)
    reported = (reporter >= 0) & (reporter == owner)
    assigned = np.where(owned, owner, np.int32(NOBODY))
    if owners.destinations:
        assigned = np.maximum(assigned, owners.destination_places(position).take(rows))
    unloaded = np.zeros(len(columns.owner), dtype=bool)
    unloaded[[table.by_name[name] for name in unloads.of_bundles if name in table.by_name]] = True
    settled = np.array([not broker.overtaken for broker in brokers], dtype=bool)
    # While a broker releases a bundle that it reports, its totals include load that is about to leave.
    leaving = (reporter >= 0) & (recorded != RecordedState.NO) & ~(owned & reported)
    settled[reporter[leaving]] = False
    bundles = Bundles(
        names=order.names,
        namespaces=order.namespaces,
        broker=np.where(reported, owner, np.int32(NOBODY)),
        assigned=assigned,
        free=(owner < 0) & (assigned < 0),
        movable=owned & reported,
        recently_unloaded=unloaded.take(rows),
        taken_at_s=taken_at_s,
        **_load_columns(table),
    )
    table.last_taken = ref(bundles)
    return bundles, settled


def top_bundles(table: NamedRows, brokers: Sequence[ReportingBroker]) -> TopBundles:
    """Build the lazy busiest bundles of each broker, as rows. Later changes of the model do not affect them."""
    places, busiest = table.places(), [broker.busiest for broker in brokers]

    def find(broker: int) -> Listed:
        rows, throughput = busiest[broker]()
        return places[rows], throughput

    return TopBundles(find)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSummary:
    """Brokers that have reported, sorted by name, with figures of their last accepted reports.

    `usage_percent` is (M, 5), NaN for a resource without a limit; `load` is (M, 4), `reported_ms` (M,) since 1970.
    `owned` (M,) counts the bundles that each owns in the records, including those it is to release. `releasing` are the
    names of bundles being released, `bundles` is the number of all bundles, `unowned` the number of recorded bundles
    without a reporting owner.
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


# Checkpoints: exact copies of a model, from which it is restored


@dataclass(frozen=True, slots=True, eq=False)
class ModelCheckpoint:
    """All bundles (N,), sorted by name, all brokers in order of arrival, and the times of recent unloads. The brokers'
    reports are without bundles, and their rows are positions in `names`.

    `reporter`, `owner` and `destination` (N,) are positions in `registrations`, -1 for none; `recorded` (N,) is the
    state in the namespace's record (0: none). `by_range` (N,): the history is a share of another's by hash range.
    `with_record` are the namespaces that have a record.
    """

    revision: int
    names: tuple[str, ...]
    registrations: tuple[Registration, ...]
    short: FloatArray
    long: FloatArray
    short_samples: npt.NDArray[np.int8]
    long_samples: npt.NDArray[np.int16]
    topics: RowArray
    reporter: RowArray
    owner: RowArray
    destination: RowArray
    recorded: npt.NDArray[np.int8]
    by_range: BoolArray
    time_means: TimeMeans
    brokers: tuple[ReportingBroker, ...] = ()
    with_record: tuple[str, ...] = ()
    unloaded: Mapping[str, float] = field(default_factory=dict)
    unloaded_from: Mapping[BrokerId, float] = field(default_factory=dict)


_COPIED = ("short", "long", "short_samples", "long_samples", "topics", "recorded")


def take_checkpoint(
    table: NamedRows, owners: RecordedOwners, reporters: Reporters, unloads: UnloadTimes
) -> ModelCheckpoint:
    """Take a checkpoint; later changes of the model do not affect it."""
    order, columns, registrations = table.order(), table.columns, owners.registrations.by_registration
    rows, position, places = order.rows, owners.registrations.places(registrations.values()), table.places()
    by_range = np.zeros(len(columns.owner), dtype=bool)
    by_range[[table.by_name[name] for name in table.divided_by_range]] = True
    copied = {name: getattr(columns, name).take(rows, axis=0) for name in _COPIED}
    return ModelCheckpoint(
        revision=table.revision,
        names=order.names,
        registrations=tuple(registrations),
        **copied,
        reporter=position.take(columns.reporter.take(rows)),
        owner=position.take(columns.owner.take(rows)),
        destination=owners.destination_places(position).take(rows),
        by_range=by_range.take(rows),
        time_means=columns.time_means(rows),
        brokers=tuple(_renumber(broker, NOBODY, places) for broker in reporters.brokers.values()),
        with_record=tuple(table.with_record()),
        unloaded=dict(unloads.of_bundles),
        unloaded_from=dict(unloads.from_brokers),
    )


def restore(
    checkpoint: ModelCheckpoint, table: NamedRows, owners: RecordedOwners, reporters: Reporters, unloads: UnloadTimes
) -> None:
    """Restore the parts of an empty model from a checkpoint."""
    assert not table.names, "only an empty model is made into another"
    rows = table.of(checkpoint.names)
    columns, row_of = table.columns, owners.registrations.of
    registered = np.array([*map(row_of, checkpoint.registrations), NOBODY], dtype=np.int32)
    for name in _COPIED:
        getattr(columns, name)[rows] = getattr(checkpoint, name)
    columns.put_time_means(rows, checkpoint.time_means)
    columns.reporter[rows], columns.owner[rows] = registered[checkpoint.reporter], registered[checkpoint.owner]
    for at in np.flatnonzero(checkpoint.destination >= 0).tolist():
        owners.destinations[int(rows[at])] = int(registered[checkpoint.destination[at]])
    table.divided_by_range = {checkpoint.names[at] for at in np.flatnonzero(checkpoint.by_range).tolist()}
    places = rows.astype(np.int32)
    for broker in checkpoint.brokers:
        row = row_of(broker.registration)
        reporters.brokers[broker.registration.broker] = _renumber(broker, row, places)
    for name in checkpoint.with_record:
        table.set_record(name, there=True)
    unloads.of_bundles, unloads.from_brokers = dict(checkpoint.unloaded), dict(checkpoint.unloaded_from)
    table.revision = checkpoint.revision


def _renumber(broker: ReportingBroker, row: int, places: RowArray) -> ReportingBroker:
    """Copy a broker without its report's bundles, with new rows from `places`, by row; omit bundles that no longer
    exist, whose place is -1.
    """
    rows, find_busiest = places[broker.rows], broker.busiest

    def busiest() -> Listed:
        top, throughput = find_busiest()
        top = places[top]
        return top[top >= 0], throughput[top >= 0]

    report = broker.report.without_bundles()
    return replace(broker, row=row, report=report, rows=rows[rows >= 0], busiest=busiest)
