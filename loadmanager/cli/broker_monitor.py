"""Broker monitor: reports of all brokers in the metadata store, and the columns of Pulsar's monitor computed from them.

Watches of the store only trigger a new read. No load-manager node has to run.

Source of the columns: the tables of `pulsar-perf monitor-brokers`. Differs from it: long-term rate and throughput have
their own headings in the table of all brokers; MAX % is in per cent; and an unknown figure is None instead of an error,
such as the averages of a broker for which the leader has not written any yet.

A broker under SimpleLoadManagerImpl has a table of its own, with Pulsar's figures: KB/S of RAW MSG are kbit/s of its
network by 1,024, and the bandwidth of ALLOC SYSTEM is 125 times too high, bytes/s as a share of kbit/s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    max_resource_usage,
    percent_usage,
)
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


Figure = float | int | None
"""A number of a table; None where it is not known."""

SYSTEM = ("CPU %", "MEMORY %", "DIRECT %", "BW IN %", "BW OUT %", "MAX %")
COUNT = ("TOPIC", "BUNDLE", "PRODUCER", "CONSUMER", "BUNDLE +", "BUNDLE -")
MESSAGES = ("MSG/S IN", "MSG/S OUT", "TOTAL", "KB/S IN", "KB/S OUT", "TOTAL")
CLUSTER = ("BROKER", "BUNDLE", "MSG/S", "LONG/S", "KB/S", "MAX %")

_BYTES_PER_KB = 1024
_SHOWN_RESOURCES = (CPU, MEMORY, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)
_UNKNOWN: tuple[Figure, ...] = (None,) * 6


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a broker's table: what it is about, its six headings, and a figure for each."""

    label: str
    headings: tuple[str, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One broker in the table of all of them, or their total; its figures belong to `CLUSTER` from `BUNDLE` on."""

    broker: str
    figures: tuple[Figure, ...]


def broker_rows(reading: Reading) -> tuple[TableRow, ...]:
    """A broker's table. MAX % leaves heap memory out, as Pulsar's balancer does: a full heap is how a JVM looks; but
    not for a broker under SimpleLoadManagerImpl.
    """
    record, averages = reading.record, reading.averages
    if reading.load_report is not None and record is not None:
        return _simple_rows(reading.load_report, record)
    return (
        TableRow("SYSTEM", SYSTEM, _system(record) if record is not None else _UNKNOWN),
        TableRow("COUNT", COUNT, _count(record) if record is not None else _UNKNOWN),
        TableRow("LATEST", MESSAGES, _latest(record) if record is not None else _UNKNOWN),
        TableRow("SHORT", MESSAGES, _short_term(averages) if averages is not None else _UNKNOWN),
        TableRow("LONG", MESSAGES, _long_term(averages) if averages is not None else _UNKNOWN),
    )


def cluster_rows(readings: Iterable[Reading]) -> tuple[ClusterRow, ...]:
    """A row for each broker, and TOTAL: the sums of what is known, and the highest MAX %."""
    rows = [ClusterRow(reading.broker_id, _cluster_figures(reading)) for reading in readings]
    columns = list(zip(*(row.figures for row in rows), strict=True)) or [()] * (len(CLUSTER) - 1)
    *summed, usage = ([figure for figure in column if figure is not None] for column in columns)
    totals: list[Figure] = [sum(column) if column else None for column in summed]
    return (*rows, ClusterRow("TOTAL", (*totals, max(usage, default=None))))


def _cluster_figures(reading: Reading) -> tuple[Figure, ...]:
    rows = {row.label: row.figures for row in broker_rows(reading)}
    if "RAW MSG" in rows:
        raw, allocated = rows["RAW MSG"], rows["ALLOC MSG"]
        return rows["COUNT"][1], raw[2], allocated[2], allocated[5], rows["RAW SYSTEM"][5]
    system, count, latest, long_term = (rows[label] for label in ("SYSTEM", "COUNT", "LATEST", "LONG"))
    return count[1], latest[2], long_term[2], latest[5], system[5]


def _system(record: LocalBrokerData) -> tuple[Figure, ...]:
    usage = report_of(record, "").usage
    percent = percent_usage(usage[:, 0], usage[:, 1])
    highest = float(max_resource_usage(percent)) * 100
    return (*(_known(float(percent[resource])) for resource in _SHOWN_RESOURCES), _known(highest))


def _simple_rows(report: LoadReport, record: LocalBrokerData) -> tuple[TableRow, ...]:
    """The table of a broker under SimpleLoadManagerImpl: what it uses, and what its bundles are expected to need."""
    usage = report_of(record, "").usage
    percent = percent_usage(usage[:, 0], usage[:, 1])[list(_SHOWN_RESOURCES)].tolist()
    rate_in, rate_out = record.get("msgRateIn", 0.0), record.get("msgRateOut", 0.0)
    allocated = [report.get("allocatedBandwidthIn", 0.0), report.get("allocatedBandwidthOut", 0.0)]
    rates = report.get("allocatedMsgRateIn", 0.0), report.get("allocatedMsgRateOut", 0.0)
    amounts = [report.get("allocatedCPU", 0.0), report.get("allocatedMemory", 0.0), *allocated]
    limits = usage[[CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT], 1].tolist()
    shares = [_share(amount, limit) for amount, limit in zip(amounts, limits, strict=True)]
    return (
        TableRow("COUNT", COUNT, _count(record)),
        TableRow("RAW SYSTEM", SYSTEM, tuple(_known(each) for each in (*percent, max(percent)))),
        TableRow("ALLOC SYSTEM", SYSTEM, (shares[0], shares[1], None, shares[2], shares[3], max(shares))),
        TableRow("RAW MSG", MESSAGES, _messages(rate_in, rate_out, usage[BANDWIDTH_IN, 0], usage[BANDWIDTH_OUT, 0])),
        TableRow("ALLOC MSG", MESSAGES, _messages(*rates, *allocated)),
    )


def _share(amount: float, limit: float) -> float:
    """The amount in percent of the limit, at most 100, 0 without a limit."""
    return 100 * min(1.0, amount / limit) if limit > 0 else 0.0


def _count(record: LocalBrokerData) -> tuple[Figure, ...]:
    return (
        record.get("numTopics", 0),
        record.get("numBundles", len(record.get("lastStats") or {})),
        record.get("numProducers", 0),
        record.get("numConsumers", 0),
        len(record.get("lastBundleGains") or ()),
        len(record.get("lastBundleLosses") or ()),
    )


def _latest(record: LocalBrokerData) -> tuple[Figure, ...]:
    return _messages(
        record.get("msgRateIn", 0.0),
        record.get("msgRateOut", 0.0),
        record.get("msgThroughputIn", 0.0),
        record.get("msgThroughputOut", 0.0),
    )


def _short_term(averages: TimeAverageBrokerData) -> tuple[Figure, ...]:
    return _messages(
        averages.short_term_msg_rate_in,
        averages.short_term_msg_rate_out,
        averages.short_term_msg_throughput_in,
        averages.short_term_msg_throughput_out,
    )


def _long_term(averages: TimeAverageBrokerData) -> tuple[Figure, ...]:
    return _messages(
        averages.long_term_msg_rate_in,
        averages.long_term_msg_rate_out,
        averages.long_term_msg_throughput_in,
        averages.long_term_msg_throughput_out,
    )


def _messages(rate_in: float, rate_out: float, bytes_in: float, bytes_out: float) -> tuple[Figure, ...]:
    """Messages/s and KB/s (of 1,024 bytes), in, out and together."""
    kb_in, kb_out = bytes_in / _BYTES_PER_KB, bytes_out / _BYTES_PER_KB
    return tuple(_known(figure) for figure in (rate_in, rate_out, rate_in + rate_out, kb_in, kb_out, kb_in + kb_out))


def _known(figure: float) -> Figure:
    """None for what overflowed, and for a usage of limits near 0: JSON has no word for it."""
    return figure if np.isfinite(figure) else None
