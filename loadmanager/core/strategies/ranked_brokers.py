"""Ranking of brokers by expected load.

Source: Pulsar's SimpleLoadManagerImpl. A broker's load is the larger of its usage and the quotas of its bundles (see
`core/model/quotas.py`), plus the quotas of incoming bundles, as a share of its capacity.

The strategies' memory is `{"model": Model}`, or the JSON of the quotas in place of the `RememberedQuotas`.

Differs from Pulsar: a bundle counts as incoming by its ownership record; Pulsar keeps every earlier assignment forever.
A report without usage means a broker without usage and capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
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
from loadmanager.core.model.snapshot import NOBODY, Snapshot, sum_by_broker

EXPECTED_CPU, EXPECTED_MEMORY, EXPECTED_IN, EXPECTED_OUT, EXPECTED_DIRECT = range(5)
"""Columns of `Ranking.percent`."""

_EXPECTED = (CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT, DIRECT_MEMORY)
"""Resources of those columns; quotas cover all but the last."""

_BYTES_PER_KBIT = 128
_MOST_WHOLE = float(2**63 - 1)

_NEW: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class _Carried:
    """Sums of quotas per broker, with their inputs.

    `loaded` and `given` (M, 6) are sums of the quotas (N, 5), and the number of bundles: of those that a broker reports
    (`holder`), and of incoming ones, which are `assigned` to it and have another holder; both are broker rows (N,).
    """

    brokers: tuple[BrokerId, ...]
    quota: FloatArray
    holder: RowArray
    assigned: RowArray
    loaded: FloatArray
    given: FloatArray

    @classmethod
    def of(cls, snapshot: Snapshot, quota: FloatArray, before: _Carried | None) -> _Carried:
        """Sum the quotas per broker; incrementally if quotas and brokers are those of `before`."""
        brokers, holder, assigned = snapshot.brokers.ids, snapshot.bundles.broker, snapshot.bundles.assigned
        if before is None or before.quota is not quota or before.brokers != brokers:
            loaded = _add_up(holder, quota, len(brokers))
            given = _add_up(_expected_by(holder, assigned), quota, len(brokers))
        else:
            loaded, given = before.loaded, before.given
            changed = np.flatnonzero((holder != before.holder) | (assigned != before.assigned))
            if len(changed):
                left = _expected_by(before.holder[changed], before.assigned[changed])
                loaded = _add_up_again(loaded, before.holder[changed], holder, changed, quota)
                given = _add_up_again(given, left, _expected_by(holder, assigned), changed, quota)
        for sums in (loaded, given):
            read_only(sums, len(brokers), QUOTA_FIELDS + 1)
        return cls(brokers, quota, holder, assigned, loaded, given)


@dataclass(frozen=True, slots=True, eq=False)
class RememberedQuotas:
    """Quotas, and their last sums per broker for incremental updates."""

    quotas: Quotas
    carried: _Carried | None = None

    @classmethod
    def of(cls, remembered: RememberedQuotas | Mapping[str, Any]) -> RememberedQuotas:
        return remembered if isinstance(remembered, RememberedQuotas) else cls(Quotas.of_json(remembered))

    def as_json(self) -> dict[str, Any]:
        return self.quotas.as_json()


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Brokers ranked by expected load.

    `quota` (N, 5) and `default` (5,) are of bundles; `loaded` and `given` (M, 6) are sums per broker, with the count in
    the last column: of the bundles that it reports, and of incoming ones. `used` and `limit` (M, 5) are as reported, in
    the order of `percent`. `capacity` (M,) is the number of default bundles that fit an empty broker.
    `model` is the memory to keep.
    """

    model: RememberedQuotas
    made_from: RememberedQuotas | Mapping[str, Any]
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


def _rank(
    snapshot: Snapshot, remembered: RememberedQuotas | Mapping[str, Any], flush_interval_minutes: float
) -> Ranking:
    before = RememberedQuotas.of(remembered)
    quotas = before.quotas.after(snapshot, flush_interval_minutes)
    carried = _Carried.of(snapshot, quotas.quota, before.carried)
    usage = snapshot.brokers.usage
    return Ranking(
        RememberedQuotas(quotas, carried),
        remembered,
        quotas.quota,
        quotas.default,
        quotas.cpu_factor,
        usage[:, _EXPECTED, 0],
        usage[:, _EXPECTED, 1],
        carried.loaded,
        carried.given,
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
    rows = np.flatnonzero(broker >= 0)
    return sum_by_broker(broker[rows], [*(column[rows] for column in quota.T), np.ones(len(rows))], brokers)


def _add_up_again(
    sums: FloatArray, left: RowArray, now: RowArray, changed: npt.NDArray[np.intp], quota: FloatArray
) -> FloatArray:
    """Update the sums after the `changed` rows went from brokers `left` to `now`: the affected brokers are summed from
    scratch, so that the result is bitwise equal to a full sum.
    """
    concerned = np.zeros(len(sums) + 1, dtype=bool)  # the last entry is for NOBODY
    concerned[left] = concerned[now[changed]] = True
    concerned[NOBODY] = False
    added_up = _add_up(np.where(concerned.take(now, mode="wrap"), now, np.int32(NOBODY)), quota, len(sums))
    return np.where(concerned[:NOBODY, np.newaxis], added_up, sums)


def _expected_by(holder: RowArray, assigned: RowArray) -> RowArray:
    """Return the broker to which each bundle is moving, `NOBODY` if it is not."""
    return np.where(assigned != holder, assigned, np.int32(NOBODY))


def _share(amount: FloatArray, limit: FloatArray) -> FloatArray:
    """Return amounts in percent of the limits, at most 100; 0 without a limit."""
    with np.errstate(over="ignore"):
        percent = np.divide(100 * amount, limit, out=np.zeros_like(amount), where=limit > 0)
    return np.minimum(percent, 100)


def _rate(quotas: FloatArray) -> FloatArray:
    return np.asarray(quotas[:, 0] + quotas[:, 1])
