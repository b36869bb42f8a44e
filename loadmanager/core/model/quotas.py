"""Quotas: expected needs of bundles, smoothed from reports.

Source: Pulsar's SimpleLoadManagerImpl. A quota follows rising measurements within 30 minutes and falling ones within a
day, by the clock of the reports. It starts from a default, which follows the average bundle. Two factors are
smoothed in the same way: CPU per message, and memory per group of topics, producers and consumers.

As JSON, all of it optional: `{"quotas": {bundle: quota}, "fixed": [bundle, ...], "default": quota,
"average": quota, "cpu_factor": number, "memory_factor": number, "last_update_ms": ms, "stored_at_ms": ms}`; a
quota is `[messages/s in, messages/s out, bytes/s in, bytes/s out, MB]`, and a fixed one never changes. Without
`last_update_ms` all quotas jump to the measurement, as at the start of a Pulsar broker.

Differs from Pulsar: quotas are kept as long as a record has the bundle; the average replaces the default after a
comparison of the same fields; a report without usage means a broker that uses nothing. In a snapshot without `reports`,
short-term averages replace measurements, and the number of topics replaces the number of objects of a bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmanager.core.model.load import CPU, MEMORY, BoolArray, FloatArray, IntArray, read_only
from loadmanager.core.model.snapshot import Snapshot

DEFAULT_QUOTA = (40.0, 120.0, 100_000.0, 300_000.0, 80.0)
"""Initial default quota."""

QUOTA_MEMORY = 4
QUOTA_FIELDS = 5
"""Number of quota columns: those of a load, and memory."""

OBJECTS_PER_GROUP = 500
"""Number of topics, producers and consumers per group, the unit of memory need."""

_MINUTE_MS = 60_000
_UP_MS = 30 * _MINUTE_MS
_DOWN_MS = 1440 * _MINUTE_MS
_LEAST = np.array([5.0, 5.0, 10_000.0, 10_000.0, 2.0])
_MOST = np.array([np.inf, np.inf, 1e6, 1e6, 200.0])
_CPU_FACTOR = 0.025
"""Percent of one core per message/s."""
_MEMORY_FACTOR = 25.0
"""MB per group of objects."""
_CPU_FACTORS = (0.01, 0.1)
_MEMORY_FACTORS = (10.0, 50.0)
_FEW_MESSAGES_PER_S = 1000
_FEW = 30
"""Minimum number of groups, or bundles, for an average."""

_Bounds = float | FloatArray


def smooth(old: _Bounds, sample: _Bounds, least: _Bounds, most: _Bounds, elapsed_ms: float) -> FloatArray:
    """Return the smoothed quota after a sample at this interval: fast up, slow down."""
    bounded = np.clip(sample, least, most)
    up, down = (min(max(elapsed_ms / window_ms, 0.0), 1.0) for window_ms in (_UP_MS, _DOWN_MS))
    weight = np.where(bounded >= old, up, down)
    return np.asarray((1 - weight) * old + weight * bounded)


def is_worth_storing(old: FloatArray, new: FloatArray) -> bool:
    """Return True if any field of a quota changed by at least the smallest quota."""
    return bool(np.any(np.abs(new - old) >= _LEAST))


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Measurements per bundle: (N, 4) messages/s and bytes/s, (N,) topics, producers and consumers."""

    load: FloatArray
    objects: IntArray

    @classmethod
    def of(cls, snapshot: Snapshot) -> Samples:
        return snapshot.derive("samples", lambda: cls._read(snapshot))

    @classmethod
    def _read(cls, snapshot: Snapshot) -> Samples:
        bundles = snapshot.bundles
        objects = bundles.topics.astype(np.int64)
        if not snapshot.reports:
            return cls(bundles.short, objects)
        load = bundles.short.copy()
        row_of = {name: row for row, name in enumerate(bundles.names)}
        for broker, report in enumerate(snapshot.reports):
            rows = np.array([row_of[name] for name in report.bundle_names], dtype=np.intp)
            own = bundles.broker[rows] == broker
            load[rows[own]] = report.bundle_load[own]
            objects[rows[own]] = (report.bundle_topics + report.bundle_sessions)[own]
        return cls(load, objects)


@dataclass(frozen=True, slots=True, eq=False)
class Quotas:
    """Quotas of bundles, in columns; unchanged columns are shared with the next version.

    `quota` (N, 5) belongs to `names`. One that is not `known` (N,) was never measured and is the default; one that is
    `fixed` (N,) never changes.
    """

    names: tuple[str, ...]
    quota: FloatArray
    known: BoolArray
    fixed: BoolArray
    default: FloatArray
    average: FloatArray
    cpu_factor: float
    memory_factor: float
    last_update_ms: int | None
    stored_at_ms: int | None

    def __post_init__(self) -> None:
        bundles = len(self.names)
        read_only(self.quota, bundles, QUOTA_FIELDS)
        for flags in (self.known, self.fixed):
            read_only(flags, bundles)
        for quota in (self.default, self.average):
            read_only(quota, QUOTA_FIELDS)

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Quotas:
        quotas, fixed = content.get("quotas", {}), frozenset(content.get("fixed", ()))
        default = np.array(content.get("default", DEFAULT_QUOTA), dtype=np.float64)
        names = (*quotas, *sorted(fixed.difference(quotas)))
        return cls(
            names=names,
            quota=np.array([quotas.get(name, default) for name in names], dtype=np.float64).reshape(-1, QUOTA_FIELDS),
            known=np.arange(len(names)) < len(quotas),
            fixed=np.array([name in fixed for name in names], dtype=bool),
            default=default,
            average=np.array(content.get("average", default), dtype=np.float64),
            cpu_factor=content.get("cpu_factor", _CPU_FACTOR),
            memory_factor=content.get("memory_factor", _MEMORY_FACTOR),
            last_update_ms=content.get("last_update_ms"),
            stored_at_ms=content.get("stored_at_ms"),
        )

    def as_json(self) -> dict[str, Any]:
        rows = np.flatnonzero(self.known)
        names = [self.names[row] for row in rows.tolist()]
        times = {"last_update_ms": self.last_update_ms, "stored_at_ms": self.stored_at_ms}
        return {
            "quotas": dict(zip(names, self.quota[rows].tolist(), strict=True)),
            "fixed": [name for name, is_fixed in zip(names, self.fixed[rows].tolist(), strict=True) if is_fixed],
            "default": self.default.tolist(),
            "average": self.average.tolist(),
            "cpu_factor": self.cpu_factor,
            "memory_factor": self.memory_factor,
            **{key: time_ms for key, time_ms in times.items() if time_ms is not None},
        }

    def after(self, snapshot: Snapshot, flush_interval_minutes: float) -> Quotas:
        """Return the quotas of the snapshot's bundles, updated with its reports."""
        kept = _of_bundles(self, snapshot.bundles.names)
        if not len(snapshot.brokers):
            return kept
        latest_ms = int(snapshot.brokers.last_update_ms.max())
        if kept.last_update_ms is None:
            jumped = _smooth(kept, snapshot, np.inf)
            kept = replace(kept, quota=jumped.quota)
            latest_ms = round(snapshot.taken_at_s * 1000)
        elif latest_ms > kept.last_update_ms:
            kept = _smooth(kept, snapshot, latest_ms - kept.last_update_ms)
        reported = snapshot.bundles.broker >= 0
        known = kept.known | reported if np.any(reported > kept.known) else kept.known
        return _store_average_if_due(
            replace(kept, known=known, last_update_ms=latest_ms), latest_ms, flush_interval_minutes
        )


def _of_bundles(quotas: Quotas, names: tuple[str, ...]) -> Quotas:
    """Select the quotas of these bundles; rows are looked up only when names have changed."""
    if names is quotas.names:
        return quotas
    if names == quotas.names:
        return replace(quotas, names=names)
    row_of = {name: row for row, name in enumerate(quotas.names)}
    unknown = len(quotas.names)
    rows = np.fromiter((row_of.get(name, unknown) for name in names), dtype=np.intp, count=len(names))
    return replace(
        quotas,
        names=names,
        quota=_in_columns([np.append(old, new)[rows] for old, new in zip(quotas.quota.T, quotas.default, strict=True)]),
        known=np.append(quotas.known, np.False_)[rows],
        fixed=np.append(quotas.fixed, np.False_)[rows],
    )


def _smooth(quotas: Quotas, snapshot: Snapshot, elapsed_ms: float) -> Quotas:
    """Return quotas, average and factors after the snapshot's measurements."""
    samples = Samples.of(snapshot)
    reported = np.flatnonzero(snapshot.bundles.broker >= 0)
    groups = 1 + samples.objects // OBJECTS_PER_GROUP
    bundles, all_groups = len(reported), int(groups[reported].sum())
    total = samples.load.take(reported, axis=0).sum(axis=0)
    used = snapshot.brokers.usage[:, :, 0].sum(axis=0)
    rate = float(total[0] + total[1])
    cpu_factor, memory_factor, average = quotas.cpu_factor, quotas.memory_factor, quotas.average
    if rate > _FEW_MESSAGES_PER_S and all_groups > _FEW:
        per_message, per_group = used[CPU] / rate, used[MEMORY] / all_groups
        cpu_factor = float(smooth(cpu_factor, per_message, *_CPU_FACTORS, elapsed_ms))
        memory_factor = float(smooth(memory_factor, per_group, *_MEMORY_FACTORS, elapsed_ms))
    if bundles > _FEW:
        average = smooth(average, np.append(total, used[MEMORY]) / bundles, _LEAST, _MOST, elapsed_ms)
    changing = (snapshot.bundles.broker >= 0) & ~quotas.fixed
    measured = [*samples.load.T, groups * memory_factor]
    columns = [
        np.where(changing, smooth(old, sample, least, most, elapsed_ms), old)
        for old, sample, least, most in zip(quotas.quota.T, measured, _LEAST, _MOST, strict=True)
    ]
    return replace(
        quotas, quota=_in_columns(columns), average=average, cpu_factor=cpu_factor, memory_factor=memory_factor
    )


def _store_average_if_due(quotas: Quotas, now_ms: int, interval_minutes: float) -> Quotas:
    """Replace the default by the average, if that is due and they differ."""
    stored_at_ms = now_ms if quotas.stored_at_ms is None else quotas.stored_at_ms
    if now_ms - stored_at_ms < interval_minutes * _MINUTE_MS:
        return replace(quotas, stored_at_ms=stored_at_ms)
    if not is_worth_storing(quotas.default, quotas.average):
        return replace(quotas, stored_at_ms=now_ms)
    columns = [np.where(quotas.known, old, new) for old, new in zip(quotas.quota.T, quotas.average, strict=True)]
    return replace(quotas, stored_at_ms=now_ms, default=quotas.average, quota=_in_columns(columns))


def _in_columns(columns: list[FloatArray]) -> FloatArray:
    """Stack the columns (N, 5), each contiguous."""
    return np.stack(columns).T
