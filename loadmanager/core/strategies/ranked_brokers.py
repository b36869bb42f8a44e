"""Ranking of brokers by expected load.

Source: Pulsar's SimpleLoadManagerImpl. A broker's load is the larger of its usage and the quotas of its bundles (see
`core/model/quotas.py`), plus the quotas of incoming bundles, as a share of its capacity.

The strategies' memory is `{"model": Quotas}`, or their JSON.

Differs from Pulsar: a bundle counts as incoming by its ownership record; Pulsar keeps every earlier assignment forever.
A report without usage means a broker without usage and capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    METRICS,
    FloatArray,
    RowArray,
    read_only,
)
from loadmanager.core.model.quotas import QUOTA_FIELDS, QUOTA_MEMORY, Quotas
from loadmanager.core.model.snapshot import Snapshot, sum_by_broker

EXPECTED_CPU, EXPECTED_MEMORY, EXPECTED_IN, EXPECTED_OUT, EXPECTED_DIRECT = range(5)
"""Columns of `Ranking.percent`."""

_EXPECTED = (CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT, DIRECT_MEMORY)
"""Resources of those columns; quotas cover all but the last."""

_BYTES_PER_KBIT = 128
_MOST_WHOLE = float(2**63 - 1)

_NEW: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Brokers ranked by expected load.

    `quota` (N, 5) and `default` (5,) are of bundles; `loaded` and `given` (M, 6) are sums per broker, with the count in
    the last column: of the bundles that it reports, and of incoming ones. `used` and `limit` (M, 5) are as reported, in
    the order of `percent`. `capacity` (M,) is the number of default bundles that fit an empty broker.
    `model` is the memory to keep.
    """

    model: Quotas
    made_from: Quotas | Mapping[str, Any]
    quota: FloatArray
    default: FloatArray
    cpu_factor: float
    used: FloatArray
    limit: FloatArray
    loaded: FloatArray
    given: FloatArray
    capacity: FloatArray

    def quota_of(self, bundle: int | None) -> FloatArray:
        """Return the quota of a bundle row (None: the default), and 1 for the bundle itself: (6,)."""
        return np.append(self.default if bundle is None else self.quota[bundle], 1.0)

    def percent(self, loaded: FloatArray, given: FloatArray) -> FloatArray:
        """Return the expected usage (M, 5) in percent, at most 100, with these sums."""
        expected = self.used.copy()
        quotas = expected[:, :EXPECTED_DIRECT]
        np.maximum(quotas, self._convert_quotas(loaded), out=quotas)
        quotas += self._convert_quotas(given)
        return _share(expected, self.limit)

    def allocated_percent(self, broker: int) -> FloatArray:
        """Return the quotas of a broker row's reported bundles in percent, without its usage: (4,)."""
        needed = self._convert_quotas(self.loaded[broker : broker + 1])[0]
        return _share(needed, self.limit[broker, :EXPECTED_DIRECT])

    def messages_per_s(self, loaded: FloatArray, given: FloatArray) -> FloatArray:
        """Return the expected message rate (M,), in and out together."""
        return _rate(loaded) + _rate(given)

    def _convert_quotas(self, quotas: FloatArray) -> FloatArray:
        """Convert quotas to CPU, memory and bandwidth in and out: (M, 4)."""
        needed = np.empty((len(quotas), EXPECTED_DIRECT))
        needed[:, EXPECTED_CPU] = self.cpu_factor * _rate(quotas)
        needed[:, EXPECTED_MEMORY] = quotas[:, QUOTA_MEMORY]
        needed[:, EXPECTED_IN : EXPECTED_OUT + 1] = quotas[:, 2:METRICS] / _BYTES_PER_KBIT
        return needed


def whole(number: npt.ArrayLike) -> FloatArray:
    """Truncate to integers, 0 for NaN."""
    numbers = np.asarray(number, dtype=np.float64)
    numbers = np.where(np.isnan(numbers), 0.0, numbers)
    return np.trunc(np.minimum(np.maximum(numbers, -_MOST_WHOLE), _MOST_WHOLE))


def rank_brokers(snapshot: Snapshot, state: Mapping[str, Any], settings: PlannerSettings) -> Ranking:
    """Rank the brokers by the memory, updated with the snapshot's reports; cached per snapshot and memory.

    Each ranking holds the memory it was made from, so that its identity is not reused.
    """
    remembered = state.get("model", _NEW)
    interval_minutes = settings.resource_quota_update_interval_minutes
    known: dict[int, Ranking] = snapshot.derive(("rankings", interval_minutes), dict)
    found = known.get(id(remembered))
    if found is None:
        found = _rank(snapshot, remembered, interval_minutes)
        known[id(remembered)] = known[id(found.model)] = found
    return found


def _rank(snapshot: Snapshot, remembered: Quotas | Mapping[str, Any], flush_interval_minutes: float) -> Ranking:
    before = remembered if isinstance(remembered, Quotas) else Quotas.of_json(remembered)
    quotas = before.after(snapshot, flush_interval_minutes)
    holder, assigned, usage = snapshot.bundles.broker, snapshot.bundles.assigned, snapshot.brokers.usage
    incoming = np.flatnonzero(assigned != holder)
    return Ranking(
        quotas,
        remembered,
        quotas.quota,
        quotas.default,
        quotas.cpu_factor,
        usage[:, _EXPECTED, 0],
        usage[:, _EXPECTED, 1],
        _add_up(holder, quotas.quota, len(usage)),
        _add_up(assigned[incoming], quotas.quota[incoming], len(usage)),
        _capacity(usage[:, :, 1], quotas.default, quotas.cpu_factor),
    )


def _capacity(limit: FloatArray, default: FloatArray, cpu_factor: float) -> FloatArray:
    rate_in, rate_out, bytes_in, bytes_out, memory = default
    with np.errstate(all="ignore"):
        bundles = [
            limit[:, CPU] / cpu_factor / (rate_in + rate_out),
            limit[:, MEMORY] / memory,
            limit[:, BANDWIDTH_OUT] * _BYTES_PER_KBIT / bytes_out,
            limit[:, BANDWIDTH_IN] * _BYTES_PER_KBIT / bytes_in,
        ]
        return whole(np.maximum(np.minimum.reduce(bundles), 0))


def _add_up(broker: RowArray, quota: FloatArray, brokers: int) -> FloatArray:
    """Sum the quotas of each broker row's bundles in order, and count them: (M, 6)."""
    sums = sum_by_broker(broker, [*quota.T, np.ones(len(broker))], brokers)
    return read_only(sums, brokers, QUOTA_FIELDS + 1)


def _share(amount: FloatArray, limit: FloatArray) -> FloatArray:
    """Return amounts in percent of the limits, at most 100; 0 without a limit."""
    with np.errstate(over="ignore"):
        percent = np.divide(100 * amount, limit, out=np.zeros_like(amount), where=limit > 0)
    return np.minimum(percent, 100)


def _rate(quotas: FloatArray) -> FloatArray:
    return np.asarray(quotas[:, 0] + quotas[:, 1])
