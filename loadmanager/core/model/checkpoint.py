"""Checkpoint of a `ClusterModel`: all of its state at one moment, as serializable values.

It holds everything that later reports, records and snapshots depend on, except settings, policies and controls, which
are set separately. Bundle columns of last reports are not included: snapshots do not need them, and the next report has
them again. Bundles are numbered: position i is `names[i]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.extensible_load import Listed, LoadAverage
from loadmanager.core.model.load import BoolArray, BrokerReport, FloatArray, RowArray
from loadmanager.core.model.owner_columns import RecordedOwners, UnloadTimes
from loadmanager.core.model.reporters import Busiest, Reporters, ReportingBroker
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.model.time_means import TimeMeans


@dataclass(frozen=True, slots=True, eq=False)
class BrokerCheckpoint:
    """A broker that has reported: its last report without bundles, and their positions in the report's order.

    `find_busiest` returns the busiest of them; `unknown` is the part of the report on bundles that are in no record,
    None if there is none.
    """

    registration: Registration
    report: BrokerReport
    bundles: RowArray
    find_busiest: Callable[[], Listed]
    average: LoadAverage
    overtaken: bool
    unknown: BrokerReport | None


@dataclass(frozen=True, slots=True, eq=False)
class ModelCheckpoint:
    """All bundles (N,), sorted by name, all brokers in order of arrival, and the times of recent unloads.

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
    brokers: tuple[BrokerCheckpoint, ...] = ()
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
        brokers=tuple(_broker_image(broker, order.names, places) for broker in reporters.brokers.values()),
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
    for broker in checkpoint.brokers:
        busiest, throughput = broker.find_busiest()
        reporters.brokers[broker.registration.broker] = ReportingBroker(
            broker.registration,
            row_of(broker.registration),
            broker.report,
            rows=rows[broker.bundles].astype(np.int32),
            busiest=Busiest.already(rows[busiest].astype(np.int32), throughput),
            average=broker.average,
            overtaken=broker.overtaken,
            unknown=broker.unknown,
        )
    for name in checkpoint.with_record:
        table.set_record(name, there=True)
    unloads.of_bundles, unloads.from_brokers = dict(checkpoint.unloaded), dict(checkpoint.unloaded_from)
    table.revision = checkpoint.revision


def _broker_image(broker: ReportingBroker, names: Sequence[str], places: RowArray) -> BrokerCheckpoint:
    """Build the broker's checkpoint with bundle positions from `places`, by row; omit bundles that no longer exist."""
    bundles, busiest = places[broker.rows], broker.busiest

    def find_busiest() -> Listed:
        rows, throughput = busiest.find(names, places)
        top = places[rows]
        return top[top >= 0], throughput[top >= 0]

    return BrokerCheckpoint(
        registration=broker.registration,
        report=broker.report,
        bundles=bundles[bundles >= 0],
        find_busiest=find_busiest,
        average=broker.average,
        overtaken=broker.overtaken,
        unknown=broker.unknown,
    )
