"""Taking a checkpoint of a model, and restoring one.

Bundle columns of last reports (`latest_reports.py`) are not included: no snapshot has them, and the next report brings
them again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmanager.core.model.broker_report import Busiest, ReportingBroker
from loadmanager.core.model.bundle_columns import Rows
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.checkpoint import BrokerCheckpoint, ModelCheckpoint
from loadmanager.core.model.extensible_load import Listed
from loadmanager.core.model.load import RowArray
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.recent_unloads import UnloadTimes
from loadmanager.core.model.reporters import Reporters
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.model.time_means import TimeMeans

_COPIED = ("short", "long", "short_samples", "long_samples", "topics", "recorded")


def image_of(table: NamedRows, owners: RecordedOwners, reporters: Reporters, unloads: UnloadTimes) -> ModelCheckpoint:
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
    image: ModelCheckpoint, table: NamedRows, owners: RecordedOwners, reporters: Reporters, unloads: UnloadTimes
) -> None:
    """Restore the parts of an empty model from a checkpoint."""
    assert not table.names, "only an empty model is made into another"
    rows = table.of(image.names)
    columns, row_of = table.columns, owners.registrations.of
    registered = np.array([*map(row_of, image.registrations), NOBODY], dtype=np.int32)
    for name in _COPIED:
        getattr(columns, name)[rows] = getattr(image, name)
    columns.put_time_means(rows, image.time_means or TimeMeans.steady(image.short))
    columns.reporter[rows], columns.owner[rows] = registered[image.reporter], registered[image.owner]
    for at in np.flatnonzero(image.destination >= 0).tolist():
        owners.destinations[int(rows[at])] = int(registered[image.destination[at]])
    table.divided_by_range = {image.names[at] for at in np.flatnonzero(image.by_range).tolist()}
    for broker in image.brokers:
        reporters.brokers[broker.registration.broker] = ReportingBroker(
            broker.registration,
            row_of(broker.registration),
            broker.report,
            rows=rows[broker.bundles].astype(np.int32),
            busiest=_busiest_of(broker, rows),
            average=broker.average,
            overtaken=broker.overtaken,
            unknown=broker.unknown,
        )
    for name in image.with_record:
        table.set_record(name, there=True)
    unloads.of_bundles, unloads.from_brokers = dict(image.unloaded), dict(image.unloaded_from)
    table.revision = image.revision


def _busiest_of(broker: BrokerCheckpoint, rows: Rows) -> Busiest:
    """Return the busiest bundles of the checkpoint, by row."""
    positions, throughput = broker.find_busiest()
    return Busiest.already(rows[positions].astype(np.int32), throughput)


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
