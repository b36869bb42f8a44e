"""Who carried each bundle in each 5 minutes: what all windows are made of.

    rows of bundles ──▶ those of each bundle in turn ──▶ until when each stands ──▶ by windows ──▶ a row for each stay

Rows are told apart by numbers, and those of a bundle brought together by sorting these; of anything else there is a
block of rows at a time, which the processor's caches hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.load import FloatArray, IntArray
from loadmanager.core.names import HASH_SPACE_END
from loadmanager.history.schemas import KEYS, LOAD_COLUMNS
from loadmanager.pipeline.arrays import (
    NEVER_MS,
    Codes,
    by_number,
    codes_of,
    differs,
    is_ascending,
    known_where,
    named,
    over,
    places_of,
    table_of,
)
from loadmanager.pipeline.averages import FIGURES, SHORTEST_MS, by_window, name_of_mean
from loadmanager.pipeline.cut_anew import Ranges, reports_of_others

_BLOCK = 1 << 16
"""Rows of a block, or as many as a bundle has."""

_HASH_BITS = 32
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_OTHER = -1
"""The row of what is reported of another bundle, with hashes in common."""


def carried(
    bundle_reports: pa.Table, bundles: NumberedBundles, reports: pa.Table, from_ms: int, to_ms: int
) -> pa.Table:
    """A row for each time that a bundle was with one broker without interruption, by 5 minutes that begin from
    `from_ms` on and before `to_ms`.

    From `clean_bundle_reports`, whose `bundles_of` these are, and what `standing.standing` gives, of `STANDS_MS` before
    that, too. `from_ms` of a row is since when in these 5 minutes. Where `covered_ms` is 0, a report came (`n`) that
    was followed by another one in the same millisecond.
    """
    reports = reports.unify_dictionaries().sort_by([(name, "ascending") for name in KEYS])
    by, brokers = codes_of(reports.column("broker"))
    said = _Said(reports.column("at_ms").to_numpy(), reports.column("ends_ms").to_numpy(), by)
    starts, report = runs_of_reports(bundle_reports, reports)
    of_rows = np.repeat(report, np.diff(starts, append=len(bundle_reports)))
    turns = _in_turn(bundles, of_rows, said.at_ms)
    figures = {name: bundle_reports.column(name).to_numpy() for name in FIGURES}
    blocks = [_pieces(turns.of(block), said, figures, (from_ms, to_ms)) for block in _blocks(turns.bundle)]
    if not blocks:
        return table_of("carried", {})
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    bundle = columns.pop("bundle")
    return table_of(
        "carried",
        columns
        | {
            "bundle": named(bundle, bundles.names()),
            "namespace": named(bundles.ranges.namespace[bundle], bundles.namespaces),
            "broker": named(columns.pop("by"), brokers),
        },
    )


@dataclass(frozen=True, slots=True)
class NumberedBundles:
    """Which one each row is of, and what they are."""

    bundle: Codes
    ranges: Ranges
    namespaces: pa.Array

    def names(self) -> pa.Array:
        """`namespace/0x........_0x........`: names are made by the million."""
        text = np.tile(np.frombuffer(b"/0x00000000_0x00000000", np.uint8), (len(self.ranges.lower), 1))
        for place, bounds in ((3, self.ranges.lower), (14, self.ranges.upper)):
            for digit in range(8):
                text[:, place + digit] = _DIGITS[(bounds >> (28 - 4 * digit)) & 0xF]
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(text.shape[1]), len(text), [None, pa.py_buffer(text)])
        namespaces = self.namespaces.take(pa.array(self.ranges.namespace))
        return pc.binary_join_element_wise(namespaces, fixed.cast(pa.binary()).cast(pa.string()), "")


def bundles_of(rows: pa.Table) -> NumberedBundles:
    """By the namespace and the bounds of each row."""
    namespace, namespaces = codes_of(rows.column("namespace"))
    lower, upper = (rows.column(name).to_numpy() for name in ("range_lower", "range_upper"))
    bundle, keys = _numbered(namespace.astype(np.int64) << _HASH_BITS | lower)
    upper_of = np.zeros(len(keys), dtype=np.int64)
    upper_of[bundle] = upper
    if (upper_of[bundle] != upper).any():  # some were split or merged, and begin at the same hash
        bundle, both = _numbered(bundle.astype(np.int64) << _HASH_BITS | upper)
        keys, upper_of = keys[both >> _HASH_BITS], both & HASH_SPACE_END
    return NumberedBundles(bundle, Ranges(keys >> _HASH_BITS, keys & HASH_SPACE_END, upper_of), namespaces)


def _numbered(keys: IntArray) -> tuple[Codes, IntArray]:
    """Which of the different ones each is, and these."""
    encoded = pa.array(keys).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def runs_of_reports(rows: pa.Table, reports: pa.Table) -> tuple[IntArray, Codes]:
    """Where rows of the same report begin that are neighbours, as they mostly are, and the number of that report, -1
    where it is not among these.
    """
    keys = [rows.column(name).to_numpy() for name in KEYS]
    starts = np.flatnonzero(differs(*keys))
    places = places_of([key[starts] for key in keys], [reports.column(name).to_numpy() for name in KEYS])
    return starts, places.astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Turns:
    """Rows of the same `bundle` one after the other, in the order of their reports; before those of a report stand the
    reports of other bundles with hashes in common.
    """

    row: Codes
    bundle: Codes
    report: Codes

    def of(self, block: slice) -> _Turns:
        return _Turns(self.row[block], self.bundle[block], self.report[block])

    def by(self, order: IntArray) -> _Turns:
        return _Turns(self.row[order], self.bundle[order], self.report[order])


def _in_turn(bundles: NumberedBundles, report: Codes, at_ms: IntArray) -> _Turns:
    row = np.flatnonzero(report >= 0).astype(np.int32)
    turns = _Turns(row, bundles.bundle[row], report[row])
    others, theirs = reports_of_others(bundles.ranges, turns.bundle, turns.report, at_ms)
    if len(others):
        before = (np.full(len(others), _OTHER), others, theirs), (turns.row, turns.bundle, turns.report)
        turns = _Turns(*(np.concatenate(pair, dtype=np.int32) for pair in zip(*before, strict=True)))
    if not is_ascending(turns.report):
        turns = turns.by(np.argsort(turns.report, kind="stable"))
    return turns.by(by_number(turns.bundle, len(bundles.ranges.lower)))


def _blocks(bundle: Codes) -> Iterator[slice]:
    """All rows of a bundle are in one block."""
    begins = np.unique(np.searchsorted(bundle, bundle[::_BLOCK]))
    for begin, end in pairwise([*begins.tolist(), len(bundle)]):
        yield slice(begin, end)


@dataclass(frozen=True, slots=True)
class _Said:
    """Of reports, by their number: when they came, until when they stand for bundles, and whose they are."""

    at_ms: IntArray
    ends_ms: IntArray
    by: Codes


def _pieces(
    turns: _Turns, said: _Said, figures: Mapping[str, IntArray | FloatArray], between: tuple[int, int]
) -> dict[str, IntArray | FloatArray | Codes]:
    """The columns of `carried` of some bundles, with the numbers of bundles and brokers (`by`)."""
    at_ms, by = said.at_ms[turns.report], said.by[turns.report]
    until_ms, stay = _stands(turns, at_ms, said.ends_ms[turns.report], by)
    turn, start_ms = by_window(at_ms, until_ms, between, turns.row != _OTHER)
    begun_ms = np.maximum(at_ms[turn], start_ms)
    stood_ms = np.minimum(until_ms[turn], start_ms + SHORTEST_MS) - begun_ms
    starts = np.flatnonzero(differs(stay[turn], start_ms))
    first, row = turn[starts], turns.row[turn]
    covered_ms = np.add.reduceat(stood_ms, starts)
    columns: dict[str, IntArray | FloatArray | Codes] = {
        "start_ms": start_ms[starts],
        "bundle": turns.bundle[first],
        "by": by[first],
        "from_ms": begun_ms[starts],
        "covered_ms": covered_ms,
        "n": np.add.reduceat(at_ms[turn] >= start_ms, starts, dtype=np.int64),
    }
    for name, values in figures.items():
        of_rows = values[row].astype(np.float64)
        columns[name_of_mean(name)] = over(np.add.reduceat(of_rows * stood_ms, starts), covered_ms)
        if name in LOAD_COLUMNS:
            columns[f"max_{name}"] = np.fmax.reduceat(known_where(of_rows, stood_ms > 0), starts)
    return columns


def _stands(turns: _Turns, at_ms: IntArray, ends_ms: IntArray, by: Codes) -> tuple[IntArray, IntArray]:
    """Until when each stands, and the number of the time that the bundle was with one broker without interruption."""
    begins = differs(turns.bundle)
    next_ms = np.append(np.where(begins[1:], NEVER_MS, at_ms[1:]), NEVER_MS)
    begins[1:] |= (by[1:] != by[:-1]) | (ends_ms[:-1] < at_ms[1:]) | (turns.row[:-1] == _OTHER)
    return np.minimum(ends_ms, next_ms), np.cumsum(begins)
