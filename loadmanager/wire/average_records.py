"""Averages of bundles and brokers in the metadata store, for the next leader and for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NotRequired, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from loadmanager.core.domain.resources import ALL_DIGITS, rounded
from loadmanager.core.model.load import BundleAverages, TimeMean
from loadmanager.wire.broker_data import Count
from loadmanager.wire.validation import MAX_COUNT, MAX_TOPICS, Amount, parse_json

Samples = Annotated[int, Field(ge=0, le=MAX_COUNT), "of a running mean"]


class AverageLoad(TypedDict):
    """Rates in messages/s, throughput in bytes/s."""

    msgThroughputIn: Amount
    msgThroughputOut: Amount
    msgRateIn: Amount
    msgRateOut: Amount


class TimeMeanData(AverageLoad):
    """Mean load of one bundle over time, and its usual relative deviation `sigma`; not in Pulsar."""

    sigma: Amount


class TimeAverageMessageData(AverageLoad):
    """A running mean over at most `maxSamples` samples."""

    maxSamples: Samples
    numSamples: Samples


class BundleData(TypedDict):
    """Short-term and long-term running means of one bundle, and its number of topics at the last report.

    Records of older versions and of Pulsar have no `timeMean`.
    """

    shortTermData: TimeAverageMessageData
    longTermData: TimeAverageMessageData
    topics: NotRequired[Count]
    timeMean: NotRequired[TimeMeanData | None]


class TimeAverageBrokerData(TypedDict, total=False):
    """`/loadbalance/broker-time-average/<host:port>`: sums of the averages over the broker's bundles, Pulsar's JSON."""

    shortTermMsgThroughputIn: Amount
    shortTermMsgThroughputOut: Amount
    shortTermMsgRateIn: Amount
    shortTermMsgRateOut: Amount
    longTermMsgThroughputIn: Amount
    longTermMsgThroughputOut: Amount
    longTermMsgRateIn: Amount
    longTermMsgRateOut: Amount


_BUNDLE_DATA = TypeAdapter(dict[str, BundleData])
_BROKER_AVERAGES = TypeAdapter(TimeAverageBrokerData)
SHORT_TERM_SAMPLES = 10
LONG_TERM_SAMPLES = 1000


def encode_bundle_data(averages: Mapping[str, BundleAverages], digits: int = ALL_DIGITS) -> bytes:
    """Encode `/loadbalance/bundle-data/<tenant>/<namespace>`: by range, Pulsar's BundleData and our mean over time.

    Figures are rounded to `digits` significant digits.
    """
    records = {name.rpartition("/")[2]: bundle_data_of(value, digits) for name, value in averages.items()}
    return _BUNDLE_DATA.dump_json(records)


def decode_bundle_data(namespace: str, data: bytes, where: str) -> dict[str, BundleAverages]:
    """Decode averages by full bundle name."""
    records = parse_json(_BUNDLE_DATA, data, where)
    return {f"{namespace}/{text}": _averages_of(record) for text, record in records.items()}


def encode_broker_averages(sums: npt.NDArray[np.float64]) -> bytes:
    """Encode `sums` (2, 4): short and long term, by metric."""
    record = {
        f"{term}{name[0].upper()}{name[1:]}": figure
        for term, load in zip(("shortTerm", "longTerm"), sums, strict=True)
        for name, figure in _figures(load, ALL_DIGITS).items()
    }
    return _BROKER_AVERAGES.dump_json(cast("TimeAverageBrokerData", record))


def decode_broker_averages(data: bytes, where: str) -> TimeAverageBrokerData:
    return parse_json(_BROKER_AVERAGES, data, where)


def bundle_data_of(averages: BundleAverages, digits: int = ALL_DIGITS) -> BundleData:
    short, long = _figures(averages.short, digits), _figures(averages.long, digits)
    data = BundleData(
        shortTermData={"maxSamples": SHORT_TERM_SAMPLES, "numSamples": averages.short_samples, **short},
        longTermData={"maxSamples": LONG_TERM_SAMPLES, "numSamples": averages.long_samples, **long},
        topics=averages.topics,
    )
    if averages.time_mean is not None:
        by_time = averages.time_mean
        data["timeMean"] = {**_figures(by_time.load, digits), "sigma": rounded(by_time.sigma, digits)}
    return data


def _averages_of(record: BundleData) -> BundleAverages:
    """Return the averages of one bundle, with plausible counts of samples and topics."""
    short, long, by_time = record["shortTermData"], record["longTermData"], record.get("timeMean")
    return BundleAverages(
        short=_load_of(short),
        long=_load_of(long),
        short_samples=min(short["numSamples"], SHORT_TERM_SAMPLES),
        long_samples=min(long["numSamples"], LONG_TERM_SAMPLES),
        topics=min(record.get("topics", 0), MAX_TOPICS),
        time_mean=TimeMean(_load_of(by_time), by_time["sigma"]) if by_time else None,
    )


def _figures(load: npt.NDArray[np.float64], digits: int) -> AverageLoad:
    """Return a load (4,) by field name."""
    rate_in, rate_out, throughput_in, throughput_out = (rounded(figure, digits) for figure in load.tolist())
    return {
        "msgThroughputIn": throughput_in,
        "msgThroughputOut": throughput_out,
        "msgRateIn": rate_in,
        "msgRateOut": rate_out,
    }


def _load_of(record: AverageLoad) -> npt.NDArray[np.float64]:
    values = (record["msgRateIn"], record["msgRateOut"], record["msgThroughputIn"], record["msgThroughputOut"])
    return np.array(values, dtype=np.float64)
