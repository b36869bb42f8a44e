"""Bundle history: running means of load over reports and over time, and the latest number of topics.

Differs from Pulsar: a bundle gets one sample per report of its broker, where Pulsar samples all bundles at any
notification. Its history is kept as long as a namespace record or a report has the bundle; Pulsar deletes it as soon as
no report does, so that a bundle that is idle for a minute restarts at the default.

Bundles that replace others inherit their load, by overlap of the hash ranges or by the loads of their topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.model.bundle_rows import NamedRows, Rows
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import (
    LONG_WINDOW,
    METRICS,
    SHORT_WINDOW,
    BoolArray,
    BundleAverages,
    Float32Array,
    FloatArray,
    IntArray,
    TimeMean,
    next_average,
)
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.model.time_means import TimeMeans, as_amounts


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Overlaps of two lists of ranges: (k,) positions in each, and the share (k,) of the second's range that lies in
    the first.
    """

    heir: IntArray
    former: IntArray
    share: FloatArray

    @classmethod
    def of(cls, heirs: Sequence[str], former: Sequence[str]) -> Overlaps:
        """Compute the overlaps of bundles of one namespace, by name; neither list overlaps itself."""
        new, old = _ends(heirs), _ends(former)
        order, old_order = np.argsort(new[:, 0]), np.argsort(old[:, 0])
        new, old = new[order], old[old_order]
        cuts = np.unique(np.concatenate([new.ravel(), old.ravel()]))
        lower, width = cuts[:-1], np.diff(cuts)
        in_new, in_old = _position(new, lower), _position(old, lower)
        both = (in_new >= 0) & (in_old >= 0)
        in_new, in_old = in_new[both], in_old[both]
        return cls(order[in_new], old_order[in_old], width[both] / (old[in_old, 1] - old[in_old, 0]))

    def sums(self, columns: npt.NDArray[np.float64], heirs: int) -> FloatArray:
        """Return each heir's part (heirs, n) of the columns (former, n)."""
        sums = np.zeros((heirs, columns.shape[1]))
        np.add.at(sums, self.heir, columns[self.former] * self.share[:, None])
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class PartLoad:
    """Topic load of a bundle: the sum (4,) of its topics' latest loads, and the number of topics."""

    load: FloatArray
    topics: int


def loads_by_part(parts: Mapping[str, BundleRange], topics: Sequence[TopicLoad]) -> dict[str, PartLoad]:
    """Sum the topic loads of each part, by name."""
    found = {}
    for name, own in parts.items():
        loads = [each.load for each in topics if each.hash in own]
        found[name] = PartLoad(np.array(loads, dtype=np.float64).reshape(-1, METRICS).sum(axis=0), len(loads))
    return found


def divide_by_topics(parts: Sequence[PartLoad]) -> FloatArray | None:
    """Return the share (n, 4) of each part in the total: by latest load, by number of topics where a metric is 0. None
    without topics.
    """
    topics = np.array([part.topics for part in parts], dtype=np.float64)
    if not topics.sum():
        return None
    load = np.array([part.load for part in parts])
    totals = load.sum(axis=0)
    shares: FloatArray = np.repeat((topics / topics.sum())[:, None], load.shape[1], axis=1)
    np.divide(load, totals, out=shares, where=totals > 0)
    return shares


def _ends(names: Sequence[str]) -> IntArray:
    ranges = [BundleRange.parse(name.rpartition("/")[2]) for name in names]
    return np.array([(each.lower, each.upper) for each in ranges], dtype=np.int64).reshape(-1, 2)


def _position(ends: IntArray, at: IntArray) -> IntArray:
    """Return the index of the sorted range that holds each hash, -1 for none."""
    found = np.searchsorted(ends[:, 0], at, side="right") - 1
    return np.where((found >= 0) & (at < ends[found, 1]), found, -1)


class AverageColumns:
    """Single writer of the columns of averages, sample counts and topics."""

    def __init__(self, rows: NamedRows) -> None:
        self._rows = rows

    def sample(self, rows: Rows, load: FloatArray, topics: npt.NDArray[np.int64], at_ms: int) -> None:
        """Add one sample to each bundle, at the time of its broker's report."""
        columns = self._rows.columns
        samples = columns.long_samples[rows]
        columns.put_time_means(rows, columns.time_means(rows).reported(load, at_ms / 1000, samples))
        columns.short[rows], columns.short_samples[rows] = next_average(
            columns.short[rows], columns.short_samples[rows], load, SHORT_WINDOW
        )
        columns.long[rows], columns.long_samples[rows] = next_average(columns.long[rows], samples, load, LONG_WINDOW)
        columns.topics[rows] = topics
        self._rows.note_changed(rows)

    def seed(self, name: str, averages: BundleAverages) -> None:
        """Restore persisted history: see `ClusterModel.seed_bundle`."""
        table, columns = self._rows, self._rows.columns
        row = table.by_name.get(name)
        has_more = row is not None and columns.long_samples[row] >= averages.long_samples
        if row is None or (has_more and name not in table.divided_by_range):
            return
        table.revision += 1
        table.last_taken = None
        table.divided_by_range.discard(name)
        columns.short[row], columns.long[row] = averages.short, averages.long
        columns.short_samples[row] = min(averages.short_samples, SHORT_WINDOW)
        columns.long_samples[row] = min(averages.long_samples, LONG_WINDOW)
        columns.topics[row] = averages.topics
        mean = averages.by_time()
        columns.mean[row], columns.sigma[row] = as_amounts(mean.load), mean.sigma
        if columns.reporter[row] == NOBODY:
            columns.last[row] = columns.mean[row]

    def divide(self, parts: Mapping[str, PartLoad]) -> None:
        """Divide the load among the parts of a split bundle: see `ClusterModel.redistribute`."""
        table, columns = self._rows, self._rows.columns
        shares = divide_by_topics(list(parts.values()))
        rows = np.array([table.by_name.get(name, NOBODY) for name in parts], dtype=np.intp)
        if shares is None or (rows == NOBODY).any() or not columns.long_samples[rows].all():
            return
        table.revision += 1
        columns.put_time_means(rows, columns.time_means(rows).at_latest_report())
        for history in (columns.short, columns.long, columns.mean, columns.last):
            history[rows] = shares * history[rows].sum(axis=0)
        columns.topics[rows] = [part.topics for part in parts.values()]
        table.divided_by_range -= parts.keys()
        table.note_changed(rows)

    def inherit(self, heirs: Rows, former: Rows, overlaps: Overlaps) -> None:
        """Pass the history of replaced bundles on to the new ones.

        Reports that arrived before the record take precedence: only columns without a sample are filled.
        """
        table, columns = self._rows, self._rows.columns
        # A former bundle without history has the default load, which must not be passed on.
        known = columns.long_samples[former] > 0
        untold = columns.long_samples[heirs] == 0
        untold &= np.isin(np.arange(len(heirs)), overlaps.heir[known[overlaps.former]])
        means = _passed_on(columns.time_means(former), known, overlaps, len(heirs))
        columns.put_time_means(heirs[untold], means.only(untold))
        for history, samples in ((columns.short, columns.short_samples), (columns.long, columns.long_samples)):
            counts = np.zeros(len(heirs), dtype=np.int64)
            np.maximum.at(counts, overlaps.heir, samples[former[overlaps.former]].astype(np.int64))
            filled = (samples[heirs] == 0) & (counts > 0)
            inherited = overlaps.sums(np.where(known[:, None], history[former], 0.0), len(heirs))
            history[heirs[filled]], samples[heirs[filled]] = inherited[filled], counts[filled]
        in_part = heirs[overlaps.heir[(overlaps.share < 1) & known[overlaps.former]]]
        table.divided_by_range.update(table.names[row] for row in in_part.tolist())
        silent = columns.reporter[heirs] == NOBODY
        topics = overlaps.sums(columns.topics[former].astype(np.float64)[:, None], len(heirs))[:, 0]
        columns.topics[heirs[silent]] = np.rint(topics[silent]).astype(np.int32)
        table.note_changed(heirs)

    def of_namespace(self, namespace: str) -> dict[str, BundleAverages]:
        columns = self._rows.columns
        return {
            self._rows.names[row]: BundleAverages(
                columns.short[row].copy(),
                columns.long[row].copy(),
                int(columns.short_samples[row]),
                int(columns.long_samples[row]),
                int(columns.topics[row]),
                TimeMean(columns.mean[row].astype(np.float64), float(columns.sigma[row])),
            )
            for row in self._rows.of_namespace(namespace).tolist()
            if columns.long_samples[row] > 0
        }


def _passed_on(means: TimeMeans, known: BoolArray, overlaps: Overlaps, heirs: int) -> TimeMeans:
    """Compute the heirs' means from the `known` bundles: load by shares, sigma weighted by load."""
    means = means.at_latest_report()

    def sums(column: Float32Array) -> Float32Array:
        """Sum a column (k, n) by heir."""
        return overlaps.sums(np.where(known[:, None], column, 0.0), heirs).astype(np.float32)

    mean, off = sums(means.mean), sums((throughput_of(means.mean) * means.sigma)[:, None])[:, 0]
    sigma = np.divide(off, throughput_of(mean), out=np.zeros_like(off), where=throughput_of(mean) > 0)
    return TimeMeans(mean, sums(means.last), means.reported_s[:1].repeat(heirs), sigma)
