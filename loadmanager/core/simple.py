"""What brokers are expected to carry: the quotas of bundles, and brokers ranked by them.

Source: Pulsar's SimpleLoadManagerImpl. The quota of a bundle is what it is expected to need. It follows what is
measured over 30 minutes upward and over a day downward, by the clock of the reports, and starts from a default, which
follows the average bundle. A broker's load is the larger of what it uses and what its bundles are expected to need,
plus the quotas of the bundles on their way to it, as a share of what it has.

What is remembered, all of it optional: `{"model": {"quotas": {bundle: quota}, "fixed": [bundle, ...], "default": quota,
"default_fixed": bool, "average": quota, "cpu_factor": number, "memory_factor": number, "last_update_ms": ms,
"stored_at_ms": ms}}`; a quota is `[messages/s in, messages/s out, bytes/s in, bytes/s out, MB]`, and a fixed one never
changes. Without `last_update_ms` all quotas jump to what is measured, as at the start of a broker of Pulsar's.

Differs from Pulsar: a bundle counts as on its way to a broker as its ownership record says, where Pulsar keeps every
promise forever; quotas are kept as long as a record has the bundle; averages are compared like with like before they
become the default; a report without usage is of a broker that uses nothing and has nothing. In a snapshot without
`reports` the short-term averages stand for what is measured, and topics alone for the objects of a bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    METRICS,
    BoolArray,
    FloatArray,
    IntArray,
    RowArray,
)
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot

DEFAULT_QUOTA = (40.0, 120.0, 100_000.0, 300_000.0, 80.0)
"""What a bundle is expected to need when nothing is known of it, nor of any other."""

QUOTA_MEMORY = 4
QUOTA_FIELDS = 5
"""A quota's columns: those of a load, and memory."""

EXPECTED_CPU, EXPECTED_MEMORY, EXPECTED_IN, EXPECTED_OUT, EXPECTED_DIRECT = range(5)
"""The columns of `Ranking.percent`."""

OBJECTS_PER_GROUP = 500
"""Topics, producers and consumers that take one unit of memory together."""

_MINUTE_MS = 60_000
_UP_MS = 30 * _MINUTE_MS
_DOWN_MS = 1440 * _MINUTE_MS
_LEAST = np.array([5.0, 5.0, 10_000.0, 10_000.0, 2.0])
_MOST = np.array([np.inf, np.inf, 1e6, 1e6, 200.0])
_CPU_FACTOR = 0.025
"""Percent of one core for each message/s."""
_MEMORY_FACTOR = 25.0
"""MB for each group of objects."""
_CPU_FACTORS = (0.01, 0.1)
_MEMORY_FACTORS = (10.0, 50.0)
_FEW_MESSAGES_PER_S = 1000
_FEW = 30
"""So few groups, or bundles, say nothing of the average one."""
_BYTES_PER_KBIT = 128
_MOST_WHOLE = float(2**63 - 1)

Model = dict[str, Any]

_NEW: Model = {}

_Bounds = float | FloatArray


def smooth(old: _Bounds, sample: _Bounds, least: _Bounds, most: _Bounds, elapsed_ms: float) -> FloatArray:
    """The expectation after a sample that came so long after the last one: quickly up, slowly down."""
    bounded = np.clip(sample, least, most)
    weight = np.clip(elapsed_ms / np.where(bounded >= old, _UP_MS, _DOWN_MS), 0, 1)
    return np.asarray((1 - weight) * old + weight * bounded)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What is measured of each bundle: (N, 4) messages/s and bytes/s, (N,) topics, producers and consumers."""

    load: FloatArray
    objects: IntArray

    @classmethod
    def of(cls, snapshot: Snapshot) -> Samples:
        return snapshot.derive("samples", lambda: cls._read(snapshot))

    @classmethod
    def _read(cls, snapshot: Snapshot) -> Samples:
        bundles = snapshot.bundles
        load, objects = bundles.short.copy(), bundles.topics.astype(np.int64)
        row_of = {name: row for row, name in enumerate(bundles.names)} if snapshot.reports else {}
        for broker, report in enumerate(snapshot.reports):
            rows = np.array([row_of[name] for name in report.bundle_names], dtype=np.intp)
            own = bundles.broker[rows] == broker
            load[rows[own]] = report.bundle_load[own]
            objects[rows[own]] = (report.bundle_topics + report.bundle_sessions)[own]
        return cls(load, objects)


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The brokers by what they are expected to carry.

    `quota` (N, 5) and `default` (5,) are of bundles; `loaded` and `given` (M, 6) add them up per broker, and count them
    in the last column: the bundles that it reports, and those on their way to it. `capacity` (M,) is how many default
    bundles an empty broker could carry. `model` is what to remember.
    """

    model: Model
    made_from: Model
    quota: FloatArray
    default: FloatArray
    cpu_factor: float
    usage: FloatArray
    loaded: FloatArray
    given: FloatArray
    capacity: FloatArray

    def quota_of(self, bundle: int | None) -> FloatArray:
        """The quota of a bundle row, the default one for None, and 1 for the bundle itself: (6,)."""
        return np.append(self.default if bundle is None else self.quota[bundle], 1.0)

    def percent(self, loaded: FloatArray, given: FloatArray) -> FloatArray:
        """The expected usage (M, 5) in percent, at most 100, with these sums in place of its own."""
        used, limit = self.usage[:, :, 0], self.usage[:, :, 1]
        order = [CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT]
        expected = np.maximum(used[:, order], self._needed(loaded)) + self._needed(given)
        expected = np.column_stack([expected, used[:, DIRECT_MEMORY]])
        limits = limit[:, [*order, DIRECT_MEMORY]]
        with np.errstate(over="ignore"):
            percent = np.divide(100 * expected, limits, out=np.zeros_like(expected), where=limits > 0)
        return np.minimum(percent, 100)

    def messages_per_s(self, loaded: FloatArray, given: FloatArray) -> FloatArray:
        """The expected message rate (M,), in and out together."""
        return _rate(loaded) + _rate(given)

    def _needed(self, quotas: FloatArray) -> FloatArray:
        """What quotas come to of CPU, memory and bandwidth in and out: (M, 4)."""
        bandwidth = quotas[:, 2:METRICS] / _BYTES_PER_KBIT
        return np.column_stack([self.cpu_factor * _rate(quotas), quotas[:, QUOTA_MEMORY], bandwidth])


def whole(number: npt.ArrayLike) -> FloatArray:
    """Numbers cut to whole ones, 0 for what is not a number."""
    return np.trunc(np.clip(np.nan_to_num(np.asarray(number, dtype=np.float64), nan=0.0), -_MOST_WHOLE, _MOST_WHOLE))


def ranking_of(snapshot: Snapshot, state: Mapping[str, Any], settings: PlannerSettings) -> Ranking:
    """The brokers ranked by what is remembered, after taking in the snapshot's reports: once per snapshot and memory.

    Each ranking holds the memory it was made from, so that no other one can have its identity.
    """
    model = state.get("model", _NEW)
    known: dict[int, Ranking] = snapshot.derive(("rankings", settings.resource_quota_update_interval_minutes), dict)
    found = known.get(id(model))
    if found is None:
        refresh = _Refresh.of(snapshot, model, settings.resource_quota_update_interval_minutes)
        if refresh.model == model:
            refresh.model = model  # so that nobody has to compare them again
        found = _rank(snapshot, refresh, model)
        known[id(model)] = known[id(found.model)] = found
    return found


@dataclass(slots=True, eq=False)
class _Refresh:
    """What is remembered, in columns, while the reports of a snapshot are taken in."""

    quota: FloatArray
    known: BoolArray
    fixed: BoolArray
    default: FloatArray
    average: FloatArray
    cpu_factor: float
    memory_factor: float
    model: Model

    @classmethod
    def of(cls, snapshot: Snapshot, model: Model, flush_interval_minutes: float) -> _Refresh:
        default = np.array(model.get("default", DEFAULT_QUOTA), dtype=np.float64)
        quotas, names = model.get("quotas", {}), snapshot.bundles.names
        known = np.array([name in quotas for name in names], dtype=bool)
        fixed_names = frozenset(model.get("fixed", ()))
        fixed = np.array([name in fixed_names for name in names], dtype=bool)
        refresh = cls(
            np.array([quotas.get(name, default) for name in names], dtype=np.float64).reshape(-1, QUOTA_FIELDS),
            known,
            fixed | (~known & bool(model.get("default_fixed", False))),
            default,
            np.array(model.get("average", default), dtype=np.float64),
            model.get("cpu_factor", _CPU_FACTOR),
            model.get("memory_factor", _MEMORY_FACTOR),
            dict(model),
        )
        if len(snapshot.brokers):
            refresh._take_in(snapshot, flush_interval_minutes)
        refresh._remember(names)
        return refresh

    def _take_in(self, snapshot: Snapshot, flush_interval_minutes: float) -> None:
        """Bring the quotas up to date with the reports."""
        latest_ms = int(snapshot.brokers.last_update_ms.max())
        last_ms = self.model.get("last_update_ms")
        if last_ms is None:
            started_with = self.cpu_factor, self.memory_factor, self.average
            self._smooth(snapshot, np.inf)
            self.cpu_factor, self.memory_factor, self.average = started_with
            latest_ms = round(snapshot.taken_at_s * 1000)
        else:
            self._smooth(snapshot, latest_ms - last_ms)
        self.model["last_update_ms"] = latest_ms
        stored_at_ms = self.model.setdefault("stored_at_ms", latest_ms)
        if latest_ms - stored_at_ms >= flush_interval_minutes * _MINUTE_MS:
            self.model["stored_at_ms"] = latest_ms
            if not self.model.get("default_fixed", False) and is_worth_storing(self.default, self.average):
                self.default = self.average

    def _smooth(self, snapshot: Snapshot, elapsed_ms: float) -> None:
        samples = Samples.of(snapshot)
        reported = np.flatnonzero(snapshot.bundles.broker >= 0)
        groups = 1 + samples.objects[reported] // OBJECTS_PER_GROUP
        load, bundles, all_groups = samples.load[reported], len(reported), int(groups.sum())
        total = load.sum(axis=0)
        used = snapshot.brokers.usage[:, :, 0].sum(axis=0)
        rate = float(total[0] + total[1])
        if rate > _FEW_MESSAGES_PER_S and all_groups > _FEW:
            per_message, per_group = used[CPU] / rate, used[MEMORY] / all_groups
            self.cpu_factor = float(smooth(self.cpu_factor, per_message, *_CPU_FACTORS, elapsed_ms))
            self.memory_factor = float(smooth(self.memory_factor, per_group, *_MEMORY_FACTORS, elapsed_ms))
        if bundles > _FEW and not self.model.get("default_fixed", False):
            mean = np.append(total, used[MEMORY]) / bundles
            self.average = smooth(self.average, mean, _LEAST, _MOST, elapsed_ms)
        sample = np.column_stack([load, groups * self.memory_factor])
        changing = ~self.fixed[reported]
        rows = reported[changing]
        self.quota[rows] = smooth(self.quota[rows], sample[changing], _LEAST, _MOST, elapsed_ms)
        self.known[reported] = True

    def _remember(self, names: tuple[str, ...]) -> None:
        rows = np.flatnonzero(self.known)
        self.model |= {
            "quotas": {names[row]: quota for row, quota in zip(rows.tolist(), self.quota[rows].tolist(), strict=True)},
            "fixed": [names[row] for row in np.flatnonzero(self.known & self.fixed).tolist()],
            "default": self.default.tolist(),
            "average": self.average.tolist(),
            "cpu_factor": self.cpu_factor,
            "memory_factor": self.memory_factor,
        }


def is_worth_storing(old: FloatArray, new: FloatArray) -> bool:
    """Whether an expectation has changed by the smallest quota in any of its fields."""
    return bool(np.any(np.abs(new - old) >= _LEAST))


def _rank(snapshot: Snapshot, refresh: _Refresh, made_from: Model) -> Ranking:
    bundles, brokers = snapshot.bundles, len(snapshot.brokers)
    expected = np.where(bundles.assigned != bundles.broker, bundles.assigned, np.int32(-1))
    return Ranking(
        refresh.model,
        made_from,
        refresh.quota,
        refresh.default,
        refresh.cpu_factor,
        snapshot.brokers.usage,
        _per_broker(bundles.broker, refresh.quota, brokers),
        _per_broker(expected, refresh.quota, brokers),
        _capacity(snapshot.brokers.usage[:, :, 1], refresh.default, refresh.cpu_factor),
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


def _per_broker(broker: RowArray, quota: FloatArray, brokers: int) -> FloatArray:
    """The quotas of the bundles of each broker added up, and their number: (M, 6)."""
    bins = broker.astype(np.intp) + 1
    columns = [*quota.T, np.ones(len(quota))]
    return np.column_stack([np.bincount(bins, weights=column, minlength=brokers + 1)[1:] for column in columns])


def _rate(quotas: FloatArray) -> FloatArray:
    return np.asarray(quotas[:, 0] + quotas[:, 1])
