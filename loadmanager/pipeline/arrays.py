"""Columns of Arrow as NumPy's arrays, and back; and rows by groups, where those of a group are neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.core.load import BoolArray, FloatArray, IntArray
from loadmanager.history.schemas import NAME
from loadmanager.pipeline.datasets import schema_of

Codes = npt.NDArray[np.int32]
"""Numbers that stand for something, or say which row."""

NEVER_MS: int = np.iinfo(np.int64).max
"""A time that does not come."""

_DIGIT_BITS = 16
_SPARSE = 8
"""Numbers that are spread over so many times as many places as there are of them are sorted instead."""


def codes_of(*columns: pa.ChunkedArray) -> tuple[Codes, pa.Array]:
    """Text as numbers, that of all columns one after the other, and what text these stand for. Parts of a column may
    have dictionaries of their own.
    """
    encoded = (each if pa.types.is_dictionary(each.type) else each.dictionary_encode() for each in columns)
    parts = [part for each in encoded for part in each.cast(NAME).chunks]
    whole = pa.chunked_array(parts, NAME).unify_dictionaries().combine_chunks()
    return whole.indices.to_numpy(), whole.dictionary


def named(codes: Codes, names: pa.Array) -> pa.DictionaryArray:
    """What `codes_of` takes apart."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)


def table_of(name: str, columns: Mapping[str, IntArray | FloatArray | pa.Array]) -> pa.Table:
    """A table of the pipeline, text by dictionaries; what is not a number is null. Without `columns` it is empty."""
    schema = to_arrow_schema(schema_of(name))
    kinds = {each.name: NAME if each.type == pa.string() else each.type for each in schema}
    arrays = [
        given if isinstance(given := columns.get(column, ()), pa.Array) else pa.array(given, kind, from_pandas=True)
        for column, kind in kinds.items()
    ]
    return pa.table(arrays, pa.schema(list(kinds.items())))


def only(rows: pa.Table, kept: BoolArray) -> pa.Table:
    """The rows that are kept; of neighbours nothing is copied."""
    places = np.flatnonzero(kept)
    if len(places) and places[-1] - places[0] < len(places):
        return rows.slice(int(places[0]), len(places))
    return rows.take(pa.array(places))


def differs(*columns: IntArray | Codes) -> BoolArray:
    """Which rows differ from the one before; the first one does."""
    found = np.ones(len(columns[0]), dtype=np.bool_)
    if len(found):
        np.not_equal(columns[0][1:], columns[0][:-1], out=found[1:])
        for each in columns[1:]:
            found[1:] |= each[1:] != each[:-1]
    return found


def is_ascending(values: IntArray | Codes) -> bool:
    return not bool((values[1:] < values[:-1]).any())


def by_number(numbers: Codes, count: int) -> IntArray:
    """The order in which rows with the same number, which is below `count`, are neighbours; else it stays as it is.

    NumPy sorts numbers of 16 bits digit by digit, which is many times faster than comparing them.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT_BITS, max(count - 1, 0).bit_length(), _DIGIT_BITS):
        digit = (numbers >> shift).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def ranks(keys: IntArray) -> tuple[IntArray, IntArray]:
    """The different ones of these keys in order, and which of them each is."""
    if not len(keys):
        return keys, keys
    lowest = keys.min()
    places = int(keys.max() - lowest) + 1
    if places > _SPARSE * len(keys):
        found, rank = np.unique(keys, return_inverse=True)
        return found, rank
    is_there = np.zeros(places, dtype=np.bool_)
    is_there[keys - lowest] = True
    return np.flatnonzero(is_there) + lowest, (np.cumsum(is_there) - 1)[keys - lowest]


def places_of(wanted: Sequence[IntArray], known: Sequence[IntArray]) -> IntArray:
    """Where among the known rows those are that are wanted, by columns that are the same in both; -1 for none."""
    count = len(known[0])
    both = [np.concatenate(pair) for pair in zip(known, wanted, strict=True)]
    order = np.lexsort(both[::-1])  # what is known is before what is wanted
    starts = np.flatnonzero(differs(*(each[order] for each in both)))
    first = np.repeat(order[starts], np.diff(starts, append=len(order)))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(first < count, first, -1)
    return found[count:]


def each_of(first: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Rows that stand for as many numbers, each from its `first` on: which row, and which number, one by one."""
    row = np.repeat(np.arange(len(counts)), counts)
    begin = np.cumsum(counts) - counts
    return row, (first - begin)[row] + np.arange(len(row))


def over(sums: FloatArray | IntArray, weights: FloatArray | IntArray) -> FloatArray:
    """Means of sums; NaN where nothing has weight."""
    return np.asarray(np.divide(sums, weights, out=np.full(len(sums), np.nan), where=weights > 0))


def known_where(values: FloatArray, is_known: BoolArray) -> FloatArray:
    """NaN elsewhere."""
    return values if is_known.all() else np.where(is_known, values, np.nan)
