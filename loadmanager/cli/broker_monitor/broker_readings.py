"""Broker records of the metadata store, kept current by watches. A watch only triggers a new read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace

from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.average_records import TimeAverageBrokerData
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData, decode_local_broker_data
from loadmanager.wire.load_report import LoadReport, find_load_report, local_broker_data_of
from loadmanager.wire.validation import parse_model

_DEBOUNCE_S = 0.05
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One broker. `record` is None when it cannot be read, `averages` also when nobody has written any yet.

    `faults` says what is wrong with which znode. `load_report` is the record as a broker under SimpleLoadManagerImpl
    wrote it, None for any other.
    """

    broker_id: str
    record: LocalBrokerData | None = None
    averages: TimeAverageBrokerData | None = None
    faults: tuple[str, ...] = ()
    load_report: LoadReport | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """All readings by broker id, sorted; which of them are new or gone since the last update; and what is wrong.

    `problem` says why the readings are no longer current, None while they are.
    """

    readings: dict[str, Reading]
    changed: frozenset[str]
    problem: str | None = None


class BrokerReadings:
    """The readings of the registered brokers, or of those named in `only`."""

    def __init__(self, store: MetadataStore, only: Collection[str] = ()) -> None:
        self._store = store
        self._only = frozenset(only)
        self._readings: dict[str, Reading] = {}
        self._dirty: set[str] = {paths.BROKERS}
        self._wake = asyncio.Event()

    async def read(self) -> Update:
        """Read what may have changed since the last call: everything, at the first one. Raises `StoreError`."""
        dirty, self._dirty = self._dirty, set()
        self._wake.clear()
        try:
            changed = await self._read(dirty)
        except StoreError:
            self._dirty |= dirty
            raise
        return Update(dict(sorted(self._readings.items())), changed)

    async def updates(self, interval_s: float) -> AsyncGenerator[Update, None]:
        """The readings now, after each change, and at least every `interval_s`; all of them change at an interval.

        While the store cannot be read, the last readings come with the problem, and it is asked again.
        """
        unsubscribe = [
            self._store.watch(paths.BROKERS, self._mark),
            self._store.watch(paths.BROKER_TIME_AVERAGE, self._mark),
        ]
        last = Update({}, frozenset())
        try:
            while True:
                try:
                    last = await self.read()
                except StoreError as error:
                    yield replace(last, changed=frozenset(), problem=str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue
                yield last
                await self._changed_or_due(interval_s)
        finally:
            for stop in unsubscribe:
                stop()

    def _mark(self, path: str) -> None:
        self._dirty.add(path)
        self._wake.set()

    async def _changed_or_due(self, interval_s: float) -> None:
        """Wait for a change, and a little longer for those that come with it, or for the interval to be over."""
        try:
            async with asyncio.timeout(interval_s):
                await self._wake.wait()
        except TimeoutError:
            self._dirty.add(paths.BROKERS)
            return
        await asyncio.sleep(_DEBOUNCE_S)

    async def _read(self, dirty: set[str]) -> frozenset[str]:
        """Read the brokers that the dirty paths concern, and return those that are, or were, registered."""
        if dirty & {paths.ROOT, paths.BROKERS, paths.BROKER_TIME_AVERAGE}:
            concerned = set(await self._store.children(paths.BROKERS)) | self._readings.keys()
        else:
            concerned = {path.rpartition("/")[2] for path in dirty}
        names = sorted(concerned & self._only if self._only else concerned)
        known = set(self._readings)
        records = await self._store.get_many([paths.broker(name) for name in names])
        averages = await self._store.get_many([paths.broker_time_average(name) for name in names])
        for name, record, average in zip(names, records, averages, strict=True):
            if record is None:
                self._readings.pop(name, None)
            else:
                self._readings[name] = reading_of(name, record, average)
        return frozenset(names) & (known | self._readings.keys())


def reading_of(broker_id: str, record: Znode, averages: Znode | None) -> Reading:
    """Parse the two znodes of a broker; unreadable content becomes a fault of the reading."""
    faults: list[str] = []
    reading = Reading(broker_id)
    try:
        raw = decode(record.data, record.path)
        legacy = find_load_report(raw, record.path)
        data = local_broker_data_of(legacy) if legacy else decode_local_broker_data(raw, record.path)
        report_of(data, record.path)  # a record that the leader would refuse is not shown as if it counted
        reading = replace(reading, record=data, load_report=legacy)
    except InvalidRecordError as error:
        faults.append(str(error))
    if averages is not None:
        try:
            data_of_averages = decode(averages.data, averages.path)
            reading = replace(reading, averages=parse_model(TimeAverageBrokerData, data_of_averages, averages.path))
        except InvalidRecordError as error:
            faults.append(str(error))
    return replace(reading, faults=tuple(faults))
