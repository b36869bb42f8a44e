"""Where rows go that Spark's workers have packed: by a worker that reaches the tables into its place, else to Spark."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import RDD

from loadmanager.history.files import Directory
from loadmanager.pipeline.contents import PART, RowFile
from loadmanager.pipeline.packing import Packed, unpacked


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a part of a table that is in its place."""

    table: str
    part: str
    file: RowFile


Put = Callable[[str, RDD[Any]], RDD[Any]]
"""Has tasks put what is `Packed` among what they have made into its place, if they reach it; also in a pair, behind the
number of another task. The text tells these tasks from others of the same write.
"""


def put_here(root: str, folder: str, which: str, made: RDD[Any]) -> RDD[Any]:
    """Below `root`, in this folder of its table."""
    return made.mapPartitionsWithIndex(partial(_stored, root, f"{folder}/{PART}=", which))


def put_nowhere(which: str, made: RDD[Any]) -> RDD[Any]:
    """It stays as it is."""
    del which
    return made


def _stored(root: str, folder: str, which: str, task: int, made: Iterable[Any]) -> Iterator[Any]:
    """Files are named by the task, so that one that is done again puts them into the same place; and written under a
    name of their own, since a task that Spark has given up may be at work still.
    """
    directory = Directory.of(root)
    attempt = secrets.token_hex(4)
    for number, each in enumerate(made):
        packed = each[1] if isinstance(each, tuple) else each
        if not isinstance(packed, Packed):
            yield each
            continue
        path = f"{folder}{packed.part}/{which}-{task:05d}-{number:05d}.parquet"
        written = f"{folder}{packed.part}/.{attempt}-{which}-{task:05d}-{number:05d}"
        directory.write(f"{packed.table}/{written}", pa.py_buffer(packed.data))
        directory.filesystem.move(*(f"{root}/{packed.table}/{each}" for each in (written, path)))
        there = Stored(packed.table, packed.part, RowFile(path, packed.rows, len(packed.data), packed.times))
        yield (each[0], there) if isinstance(each, tuple) else there


def table_of(made: Any) -> list[str]:  # noqa: ANN401 - whatever a task has made
    """That of packed rows."""
    return [made.table] if isinstance(made, Packed) else []


def told_of(made: Any) -> list[Any]:  # noqa: ANN401 - as above
    """What is no rows."""
    return [] if isinstance(made, Packed) else [made]


def part_and_data(table: str, made: Any) -> list[tuple[str, bytearray]]:  # noqa: ANN401 - as above
    """Of packed rows of this table."""
    return [(made.part, bytearray(made.data))] if isinstance(made, Packed) and made.table == table else []


def unpacked_rows(schema: pa.Schema, packed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of such, each with its part."""
    for batch in packed:
        for part, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            rows = unpacked(data)
            marked = rows.append_column(PART, pa.array([part] * rows.num_rows, pa.string()))
            yield from marked.select(schema.names).cast(schema).to_batches()
