"""Averages of bundles and brokers in the metadata store, for the next leader and for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from loadmanager.core.domain.resources import ALL_DIGITS, rounded
from loadmanager.core.model.load import BundleAverages, TimeMean
from loadmanager.wire.store_records import Natural
from loadmanager.wire.validation import MAX_TOPICS, Amount, WireModel, parse_json


class TimeAverageMessageData(WireModel):
    """A running mean over at most `max_samples` samples; rates in messages/s, throughput in bytes/s."""

    max_samples: int
    num_samples: Natural
    msg_throughput_in: Amount
    msg_throughput_out: Amount
    msg_rate_in: Amount
    msg_rate_out: Amount

    @classmethod
    def of(cls, mean: npt.NDArray[np.float64], samples: int, max_samples: int, digits: int) -> TimeAverageMessageData:
        return cls(max_samples=max_samples, num_samples=samples, **_figures(mean, digits))

    def mean(self) -> npt.NDArray[np.float64]:
        return _load_of(self)


class TimeMeanData(WireModel):
    """Mean load of one bundle over time, and its usual relative deviation `sigma`; not in Pulsar."""

    msg_throughput_in: Amount
    msg_throughput_out: Amount
    msg_rate_in: Amount
    msg_rate_out: Amount
    sigma: Amount

    @classmethod
    def of(cls, mean: TimeMean, digits: int) -> TimeMeanData:
        return cls(**_figures(mean.load, digits), sigma=rounded(mean.sigma, digits))

    def mean(self) -> TimeMean:
        return TimeMean(_load_of(self), self.sigma)


class BundleData(WireModel):
    """Short-term and long-term running means of one bundle, and its number of topics at the last report.

    Records of older versions and of Pulsar have no `time_mean`.
    """

    short_term_data: TimeAverageMessageData
    long_term_data: TimeAverageMessageData
    topics: Natural = 0
    time_mean: TimeMeanData | None = None

    @classmethod
    def of(cls, averages: BundleAverages, digits: int = ALL_DIGITS) -> BundleData:
        return cls(
            short_term_data=TimeAverageMessageData.of(
                averages.short, averages.short_samples, SHORT_TERM_SAMPLES, digits
            ),
            long_term_data=TimeAverageMessageData.of(averages.long, averages.long_samples, LONG_TERM_SAMPLES, digits),
            topics=averages.topics,
            time_mean=TimeMeanData.of(averages.time_mean, digits) if averages.time_mean else None,
        )


_BUNDLE_DATA = TypeAdapter(dict[str, BundleData])
SHORT_TERM_SAMPLES = 10
LONG_TERM_SAMPLES = 1000


def encode_bundle_data(averages: Mapping[str, BundleAverages], digits: int = ALL_DIGITS) -> bytes:
    """Encode `/loadbalance/bundle-data/<tenant>/<namespace>`: by range, Pulsar's BundleData and our mean over time.

    Figures are rounded to `digits` significant digits.
    """
    records = {name.rpartition("/")[2]: BundleData.of(value, digits) for name, value in averages.items()}
    return _BUNDLE_DATA.dump_json(records, by_alias=True, exclude_none=True)


def decode_bundle_data(namespace: str, data: bytes, where: str) -> dict[str, BundleAverages]:
    """Decode averages by full bundle name."""
    records = parse_json(_BUNDLE_DATA, data, where)
    return {f"{namespace}/{text}": averages_of(record) for text, record in records.items()}


def averages_of(record: BundleData) -> BundleAverages:
    """Return the averages of one bundle, with plausible counts of samples and topics."""
    return BundleAverages(
        short=record.short_term_data.mean(),
        long=record.long_term_data.mean(),
        short_samples=min(record.short_term_data.num_samples, SHORT_TERM_SAMPLES),
        long_samples=min(record.long_term_data.num_samples, LONG_TERM_SAMPLES),
        topics=min(record.topics, MAX_TOPICS),
        time_mean=record.time_mean.mean() if record.time_mean else None,
    )


class TimeAverageBrokerData(WireModel):
    """`/loadbalance/broker-time-average/<host:port>`: sums of the averages over the broker's bundles, Pulsar's JSON."""

    short_term_msg_throughput_in: Amount = 0.0
    short_term_msg_throughput_out: Amount = 0.0
    short_term_msg_rate_in: Amount = 0.0
    short_term_msg_rate_out: Amount = 0.0
    long_term_msg_throughput_in: Amount = 0.0
    long_term_msg_throughput_out: Amount = 0.0
    long_term_msg_rate_in: Amount = 0.0
    long_term_msg_rate_out: Amount = 0.0

    @classmethod
    def of(cls, sums: npt.NDArray[np.float64]) -> TimeAverageBrokerData:
        """Build from `sums` (2, 4): short and long term, by metric."""
        short, long = sums.tolist()
        return cls(
            short_term_msg_rate_in=short[0],
            short_term_msg_rate_out=short[1],
            short_term_msg_throughput_in=short[2],
            short_term_msg_throughput_out=short[3],
            long_term_msg_rate_in=long[0],
            long_term_msg_rate_out=long[1],
            long_term_msg_throughput_in=long[2],
            long_term_msg_throughput_out=long[3],
        )


def _figures(load: npt.NDArray[np.float64], digits: int) -> dict[str, Any]:
    """Return a load (4,) by field name."""
    rate_in, rate_out, throughput_in, throughput_out = (rounded(figure, digits) for figure in load.tolist())
    return {
        "msg_throughput_in": throughput_in,
        "msg_throughput_out": throughput_out,
        "msg_rate_in": rate_in,
        "msg_rate_out": rate_out,
    }


def _load_of(record: TimeAverageMessageData | TimeMeanData) -> npt.NDArray[np.float64]:
    values = (record.msg_rate_in, record.msg_rate_out, record.msg_throughput_in, record.msg_throughput_out)
    return np.array(values, dtype=np.float64)
