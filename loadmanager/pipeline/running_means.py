"""The leader's running means of each bundle, rebuilt from the reports: bit for bit as a leader has them that saw these.

A mean is made of the one before, so those of a bundle are worked out one after the other, and those of many bundles
side by side. A leader leaves a bundle to its owner when two brokers report it at once; such a report is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.load import LONG_WINDOW, SHORT_WINDOW, BoolArray, FloatArray, IntArray, next_average
from loadmanager.history.schemas import BUNDLE_REPORTS, LOAD_COLUMNS, ORDER
from loadmanager.pipeline.arrays import Codes, by_number, codes_of, differs, is_ascending, named, only, table_of
from loadmanager.pipeline.carried import NumberedBundles, bundles_of
from loadmanager.pipeline.contents import WHOLE, place_of
from loadmanager.pipeline.packing import Packed, Packer, from_stream, opened, to_stream
from loadmanager.pipeline.raw_rows import raw_schema

MEANS = "running_means"

_RANGE = ("range_lower", "range_upper")
_KEY = ("namespace", *_RANGE)
_SHORT, _LONG = ([f"{length}_{name}" for name in LOAD_COLUMNS] for length in ("short", "long"))
_OF_REPORT = ("at_ms", *ORDER)
_OF_BUNDLE = (*LOAD_COLUMNS, "topics")
_SAMPLE = (*_KEY, *_OF_REPORT, *_OF_BUNDLE)
_MIXED = 2_654_435_761
"""Odd, and spread over 32 bits: bounds of ranges have many zeros in common."""


class Samples(NamedTuple):
    """What was reported, in `rows`; `bundle` and `report` in these are numbers of rows of the others."""

    bundles: pa.Table
    reports: pa.Table
    rows: pa.Table


def samples_of(rows: pa.Table) -> Samples:
    """Rows of `clean_bundle_reports`, of which those of a report are mostly neighbours."""
    bundles = bundles_of(rows)
    begins = differs(*(rows.column(name).to_numpy() for name in ORDER))
    numbers = {"bundle": bundles.bundle, "report": np.cumsum(begins, dtype=np.int32) - 1}
    figures = {name: rows.column(name) for name in _OF_BUNDLE}
    reports = rows.select(list(_OF_REPORT)).take(pa.array(np.flatnonzero(begins)))
    return Samples(_keys_of(bundles), reports, pa.table({**numbers, **figures}))


def _keys_of(bundles: NumberedBundles) -> pa.Table:
    ranges = bundles.ranges
    namespace = named(ranges.namespace.astype(np.int32), bundles.namespaces)
    return pa.table(dict(zip(_KEY, (namespace, ranges.lower, ranges.upper), strict=True)))


@dataclass(frozen=True, slots=True)
class Sampling:
    """Work of a task on files of clean rows, or of earlier means: what each of so many `tasks` is to go on with."""

    tasks: int

    def __call__(
        self, number: int, paths: Sequence[str], contents: Mapping[str, bytes]
    ) -> Iterator[tuple[int, tuple[bytes, ...]]]:
        del number
        for path in paths:
            with opened(contents, path) as parquet:
                if place_of(path).startswith(f"{MEANS}/"):
                    yield from self._divide_known(with_ranges(parquet.read()))
                else:
                    yield from self._divide(samples_of(parquet.read(list(_SAMPLE))))

    def _divide_known(self, means: pa.Table) -> Iterator[tuple[int, tuple[bytes]]]:
        to = self._tasks_of(means)
        for each in np.unique(to).tolist():
            yield each, (to_stream(only(means, to == each)),)

    def _divide(self, samples: Samples) -> Iterator[tuple[int, tuple[bytes, bytes, bytes]]]:
        to, bundle = self._tasks_of(samples.bundles), samples.rows.column("bundle").to_numpy()
        for each in np.unique(to).tolist():
            is_its = to == each
            number = np.cumsum(is_its, dtype=np.int32) - 1
            places = np.flatnonzero(is_its[bundle])
            rows = samples.rows.take(pa.array(places)).set_column(0, "bundle", pa.array(number[bundle[places]]))
            its = Samples(only(samples.bundles, is_its), samples.reports, rows)
            yield each, (to_stream(its.bundles), to_stream(its.reports), to_stream(its.rows))

    def _tasks_of(self, bundles: pa.Table) -> IntArray:
        codes, namespaces = codes_of(bundles.column("namespace"))
        hashes = np.array([crc32(name.encode()) for name in namespaces.to_pylist()], dtype=np.uint64)
        lower, upper = (bundles.column(name).to_numpy().astype(np.uint64) for name in _RANGE)
        mixed = (hashes[codes] ^ lower ^ (upper << np.uint64(1))) * np.uint64(_MIXED)
        return np.asarray((mixed >> np.uint64(16)) % np.uint64(self.tasks), dtype=np.int64)


def gone_on(given: Iterable[tuple[int, tuple[bytes, ...]]]) -> Iterator[Packed]:
    """What a task makes of what it was given to go on with."""
    known, samples = [nothing_known()], list[Samples]()
    for _, streams in given:
        tables = [from_stream(each) for each in streams]
        if len(tables) == 1:
            known += tables
        else:
            samples.append(Samples(*tables))
    packer = Packer()
    packer.add(MEANS, WHOLE, running_means(pa.concat_tables(known).unify_dictionaries(), joined(samples)))
    yield from packer.packed()


def joined(parts: Iterable[Samples]) -> Samples:
    """All of them, with numbers of one kind, in about the order of their reports."""
    bundles, reports, rows = ([each] for each in samples_of(raw_schema(BUNDLE_REPORTS).empty_table()))
    first = {"bundle": 0, "report": 0}
    for part in sorted(parts, key=lambda part: [part.reports.column(name)[0].as_py() for name in ORDER]):
        numbered = part.rows
        for place, (name, number) in enumerate(first.items()):
            column = pc.add(numbered.column(name), pa.scalar(number, pa.int32()))
            numbered = numbered.set_column(place, name, column)
        rows.append(numbered)
        bundles.append(part.bundles)
        reports.append(part.reports)
        first["bundle"] += len(part.bundles)
        first["report"] += len(part.reports)
    return Samples(*(pa.concat_tables(each).unify_dictionaries() for each in (bundles, reports, rows)))


def with_ranges(means: pa.Table) -> pa.Table:
    """Means with the bounds of their bundles, which names end with."""
    names = means.column("bundle").cast(pa.string()).to_pylist()
    bounds = [[int(name[-19:-11], 16) for name in names], [int(name[-8:], 16) for name in names]]
    for column, values in zip(_RANGE, bounds, strict=True):
        means = means.append_column(column, pa.array(values, pa.int64()))
    return means


def running_means(known: pa.Table, samples: Samples) -> pa.Table:
    """The means, from those `known` before (`with_ranges`) and samples, of which those are not counted again that they
    have.
    """
    bundles = bundles_of(
        pa.concat_tables(table.select(list(_KEY)) for table in (known, samples.bundles)).unify_dictionaries()
    )
    means = _Means(len(bundles.ranges.lower))
    means.set(bundles.bundle[: known.num_rows], known)
    row = bundles.bundle[known.num_rows :][samples.rows.column("bundle").to_numpy()]
    report = samples.rows.column("report").to_numpy()
    order = _in_turn(row, report, samples.reports)
    if known.num_rows:
        epoch, sequence = (samples.reports.column(name).to_numpy()[report[order]] for name in ORDER)
        order = order[means.are_before(row[order], epoch, sequence)]
    means.take_in(row, order, [samples.rows.column(name).to_numpy() for name in LOAD_COLUMNS])
    ends = order[np.flatnonzero(np.diff(row[order], append=-1))]
    last = {name: samples.reports.column(name).to_numpy()[report[ends]] for name in _OF_REPORT}
    means.go_to(row[ends], {**last, "topics": samples.rows.column("topics").to_numpy()[ends]})
    whose = {
        "bundle": named(np.arange(len(bundles.ranges.lower), dtype=np.int32), bundles.names()),
        "namespace": named(bundles.ranges.namespace.astype(np.int32), bundles.namespaces),
    }
    return table_of(MEANS, {**whose, **means.columns()})


def nothing_known() -> pa.Table:
    """Where nothing goes on."""
    return with_ranges(table_of(MEANS, {}))


def _in_turn(row: Codes, report: Codes, reports: pa.Table) -> IntArray:
    """The samples of each bundle one after the other, in the order of their reports."""
    by_report = np.lexsort([reports.column(name).to_numpy() for name in reversed(ORDER)])
    place = np.empty(len(by_report), dtype=np.int32)
    place[by_report] = np.arange(len(by_report))
    turn, bundles = place[report], int(row.max(initial=-1)) + 1
    if is_ascending(turn):
        return by_number(row, bundles)
    order = np.argsort(turn, kind="stable")
    return order[by_number(row[order], bundles)]


class _Means:
    """The running means of some bundles, and what goes with the last sample of each."""

    def __init__(self, bundles: int) -> None:
        self.short: FloatArray = np.zeros((bundles, len(LOAD_COLUMNS)))
        self.long: FloatArray = np.zeros((bundles, len(LOAD_COLUMNS)))
        self.short_samples = np.zeros(bundles, dtype=np.int16)
        self.long_samples = np.zeros(bundles, dtype=np.int16)
        self.last = {name: np.full(bundles, -1, dtype=np.int64) for name in (*_OF_REPORT, "topics")}

    def set(self, rows: Codes, known: pa.Table) -> None:
        """Have these bundles as they were known before."""
        for means, names in ((self.short, _SHORT), (self.long, _LONG)):
            for at, name in enumerate(names):
                means[rows, at] = known.column(name).to_numpy()
        self.short_samples[rows], self.long_samples[rows] = (
            known.column(name).to_numpy() for name in ("short_samples", "long_samples")
        )
        self.go_to(rows, {name: known.column(name).to_numpy() for name in self.last})

    def go_to(self, rows: Codes, last: Mapping[str, IntArray | FloatArray]) -> None:
        """These are the last samples of these bundles."""
        for name, values in self.last.items():
            values[rows] = last[name]

    def are_before(self, rows: Codes, epoch: IntArray, sequence: IntArray) -> BoolArray:
        """Whether the means of these rows do not have the sample yet."""
        last, place = self.last["epoch"][rows], self.last["sequence"][rows]
        return np.asarray((last < epoch) | ((last == epoch) & (place < sequence)))

    def take_in(self, row: Codes, order: IntArray, load: Sequence[IntArray | FloatArray]) -> None:
        """Samples of the bundles `row`, by columns; in this order, in which those of a bundle are one after the other.

        The k-th of all bundles is taken in at once, as the leader does it. These are mostly neighbours where they are.
        """
        counts = np.bincount(row[order], minlength=len(self.short))
        k = np.arange(len(order), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
        order = order[by_number(k, int(counts.max(initial=0)))]
        for places in np.split(order, np.cumsum(np.bincount(k))[:-1]):
            self._take_in(row[places], np.stack([column[places] for column in load], axis=1))

    def _take_in(self, rows: Codes, load: FloatArray) -> None:
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
