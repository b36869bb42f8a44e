"""The leader's running means of each bundle, rebuilt from the reports: bit for bit as a leader has them that saw these.

A mean is made of the one before, so those of a bundle are worked out one after the other, and those of many bundles
side by side. A leader leaves a bundle to its owner when two brokers report it at once; such a report is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa

from loadmanager.core.load import LONG_WINDOW, SHORT_WINDOW, BoolArray, FloatArray, IntArray, next_average
from loadmanager.history.schemas import BUNDLE_REPORTS, LOAD_COLUMNS, ORDER
from loadmanager.pipeline.arrays import Codes, by_number, codes_of, named, table_of
from loadmanager.pipeline.carried import bundles_of
from loadmanager.pipeline.contents import WHOLE, place_of
from loadmanager.pipeline.packing import Packed, Packer, from_stream, opened, to_stream
from loadmanager.pipeline.raw_rows import raw_schema

MEANS = "running_means"

_RANGE = ("range_lower", "range_upper")
_KEY = ("namespace", *_RANGE)
_SHORT, _LONG = ([f"{length}_{name}" for name in LOAD_COLUMNS] for length in ("short", "long"))
_OF_LAST = ("topics", "at_ms", *ORDER)
_SAMPLE = (*_KEY, *LOAD_COLUMNS, *_OF_LAST)
_MIXED = 2_654_435_761
"""Odd, and spread over 32 bits: bounds of ranges have many zeros in common."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Work of a task on files of clean rows, or of earlier means: what each of so many `tasks` is to go on with."""

    tasks: int

    def __call__(
        self, number: int, paths: Sequence[str], contents: Mapping[str, bytes]
    ) -> Iterator[tuple[int, tuple[bool, bytes]]]:
        del number
        for path in paths:
            is_known = place_of(path).startswith(f"{MEANS}/")
            with opened(contents, path) as parquet:
                rows = with_ranges(parquet.read()) if is_known else parquet.read(list(_SAMPLE))
            to = self._task_of(rows)
            for each in np.unique(to).tolist():
                yield each, (is_known, to_stream(rows.filter(pa.array(to == each))))

    def _task_of(self, rows: pa.Table) -> IntArray:
        codes, namespaces = codes_of(rows.column("namespace"))
        hashes = np.array([crc32(name.encode()) for name in namespaces.to_pylist()], dtype=np.uint64)
        lower, upper = (rows.column(name).to_numpy().astype(np.uint64) for name in _RANGE)
        mixed = (hashes[codes] ^ lower ^ (upper << np.uint64(1))) * np.uint64(_MIXED)
        return np.asarray((mixed >> np.uint64(16)) % np.uint64(self.tasks), dtype=np.int64)


def gone_on(given: Iterable[tuple[int, tuple[bool, bytes]]]) -> Iterator[Packed]:
    """What a task makes of what it was given to go on with."""
    known, samples = [nothing_known()], [raw_schema(BUNDLE_REPORTS).empty_table().select(list(_SAMPLE))]
    for _, (is_known, data) in given:
        (known if is_known else samples).append(from_stream(data))
    packer = Packer()
    packer.add(MEANS, WHOLE, running_means(*(pa.concat_tables(each).unify_dictionaries() for each in (known, samples))))
    yield from packer.packed()


def with_ranges(means: pa.Table) -> pa.Table:
    """Means with the bounds of their bundles, which names end with."""
    names = means.column("bundle").cast(pa.string()).to_pylist()
    bounds = [[int(name[-19:-11], 16) for name in names], [int(name[-8:], 16) for name in names]]
    for column, values in zip(_RANGE, bounds, strict=True):
        means = means.append_column(column, pa.array(values, pa.int64()))
    return means


def running_means(known: pa.Table, samples: pa.Table) -> pa.Table:
    """The means, from those `known` before (`with_ranges`) and rows of `clean_bundle_reports`, of which those are not
    counted again that they have.
    """
    keys = pa.concat_tables(table.select(list(_KEY)) for table in (known, samples)).unify_dictionaries()
    bundles = bundles_of(keys)
    count = len(bundles.ranges.lower)
    means = _Means(count)
    means.set(bundles.bundle[: known.num_rows], known)
    rows = bundles.bundle[known.num_rows :]
    order = _in_turn(rows, samples, count)
    epoch, sequence = (samples.column(name).to_numpy()[order] for name in ORDER)
    order = order[means.are_before(rows[order], epoch, sequence)]
    rows = rows[order]
    means.take_in(rows, np.stack([samples.column(name).to_numpy()[order] for name in LOAD_COLUMNS], axis=1))
    ends = np.flatnonzero(np.diff(rows, append=-1))
    means.go_to(rows[ends], {name: samples.column(name).to_numpy()[order[ends]] for name in _OF_LAST})
    whose = {
        "bundle": named(np.arange(count, dtype=np.int32), bundles.names()),
        "namespace": named(bundles.ranges.namespace.astype(np.int32), bundles.namespaces),
    }
    return table_of(MEANS, {**whose, **means.columns()})


def nothing_known() -> pa.Table:
    """Where nothing goes on."""
    return with_ranges(table_of(MEANS, {}))


def _in_turn(rows: Codes, samples: pa.Table, bundles: int) -> IntArray:
    """The samples of each bundle one after the other, in the order of their reports."""
    epoch, sequence = (samples.column(name).to_numpy() for name in ORDER)
    order = np.lexsort((sequence, epoch))
    return order[by_number(rows[order], bundles)]


class _Means:
    """The running means of some bundles, and what goes with the last sample of each."""

    def __init__(self, bundles: int) -> None:
        self.short: FloatArray = np.zeros((bundles, len(LOAD_COLUMNS)))
        self.long: FloatArray = np.zeros((bundles, len(LOAD_COLUMNS)))
        self.short_samples = np.zeros(bundles, dtype=np.int16)
        self.long_samples = np.zeros(bundles, dtype=np.int16)
        self.last = {name: np.full(bundles, -1, dtype=np.int64) for name in _OF_LAST}

    def set(self, rows: Codes, known: pa.Table) -> None:
        """Have these bundles as they were known before."""
        for means, names in ((self.short, _SHORT), (self.long, _LONG)):
            for at, name in enumerate(names):
                means[rows, at] = known.column(name).to_numpy()
        self.short_samples[rows], self.long_samples[rows] = (
            known.column(name).to_numpy() for name in ("short_samples", "long_samples")
        )
        self.go_to(rows, {name: known.column(name).to_numpy() for name in _OF_LAST})

    def go_to(self, rows: Codes, last: Mapping[str, IntArray | FloatArray]) -> None:
        """These are the last samples of these bundles."""
        for name, values in self.last.items():
            values[rows] = last[name]

    def are_before(self, rows: Codes, epoch: IntArray, sequence: IntArray) -> BoolArray:
        """Whether the means of these rows do not have the sample yet."""
        last, place = self.last["epoch"][rows], self.last["sequence"][rows]
        return np.asarray((last < epoch) | ((last == epoch) & (place < sequence)))

    def take_in(self, rows: Codes, load: FloatArray) -> None:
        """Samples, those of each bundle one after the other: the k-th of all of them at once, as the leader does."""
        counts = np.bincount(rows, minlength=len(self.short))
        longest_first = np.argsort(-counts, kind="stable")
        starts = (np.cumsum(counts) - counts)[longest_first]
        for k in range(int(counts.max(initial=0))):
            going_on = int(np.count_nonzero(counts > k))
            self._take_in(longest_first[:going_on], load[starts[:going_on] + k])

    def _take_in(self, rows: IntArray, load: FloatArray) -> None:
        """One more sample of each of these bundles."""
        self.short[rows], self.short_samples[rows] = next_average(
            self.short[rows], self.short_samples[rows], load, SHORT_WINDOW
        )
        self.long[rows], self.long_samples[rows] = next_average(
            self.long[rows], self.long_samples[rows], load, LONG_WINDOW
        )

    def columns(self) -> dict[str, IntArray | FloatArray]:
        means = {**dict(zip(_SHORT, self.short.T, strict=True)), **dict(zip(_LONG, self.long.T, strict=True))}
        return {**means, "short_samples": self.short_samples, "long_samples": self.long_samples, **self.last}
