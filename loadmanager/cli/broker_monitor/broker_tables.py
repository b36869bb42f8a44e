"""The columns of Pulsar's broker monitor, as numbers: one table for a broker, and one for all of them.

Source: the tables of `pulsar-perf monitor-brokers`. Differs from it: long-term rate and throughput stand under their
own headings in the table of all brokers; MAX % is in per cent; and what is not known is None instead of an error, such
as the averages of a broker for which the leader has not written any yet.

A broker under SimpleLoadManagerImpl has a table of its own, with Pulsar's figures: KB/S of RAW MSG are kbit/s of its
network by 1,024, and the bandwidth of ALLOC SYSTEM is 125 times too high, bytes/s as a share of kbit/s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loadmanager.cli.broker_monitor.broker_readings import Reading
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    max_resource_usage,
    percent_usage,
)
from loadmanager.wire.average_records import TimeAverageBrokerData
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.load_report import LoadReport

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
