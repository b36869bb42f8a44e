"""Rows on their way into a table: gathered by parts, and packed as Parquet files where they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadmanager.errors import PipelineError
from loadmanager.history.schemas import KEYS
from loadmanager.pipeline.arrays import only
from loadmanager.pipeline.contents import TIME, place_of

GROUP_ROWS = 1 << 20
"""Of a row group, as far as there are so many: so many are in memory at a time."""

_COMPRESSION, _LEVEL = "zstd", 1


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of a part of a table as the bytes of a Parquet file; `times` as of `RowFile`."""

    table: str
    part: str
    rows: int
    times: tuple[int, int] | None
    data: bytes


@dataclass(slots=True)
class _Pile:
    """Rows of a part that wait for more, and the file with those before them."""

    waiting: list[pa.Table] = field(default_factory=list)
    rows_waiting: int = 0
    rows: int = 0
    sink: pa.BufferOutputStream = field(default_factory=pa.BufferOutputStream)
    writer: pq.ParquetWriter | None = None
    times: list[int] = field(default_factory=list)


class Packer:
    """Gathers rows by table and part. All rows of a table have the same columns."""

    def __init__(self) -> None:
        self._piles: dict[tuple[str, str], _Pile] = {}

    def add(self, table: str, part: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        pile = self._piles.setdefault((table, part), _Pile())
        pile.waiting.append(rows.replace_schema_metadata())
        pile.rows_waiting += rows.num_rows
        if TIME in rows.column_names:
            ends = pc.min_max(rows.column(TIME)).as_py()
            pile.times += [each for each in ends.values() if each is not None]
        if pile.rows_waiting >= GROUP_ROWS:
            _write(pile)

    def packed(self) -> Iterator[Packed]:
        """A file for each part."""
        for (table, part), pile in self._piles.items():
            _write(pile)
            assert pile.writer is not None
            pile.writer.close()
            times = (min(pile.times), max(pile.times)) if pile.times else None
            yield Packed(table, part, pile.rows, times, pile.sink.getvalue().to_pybytes())
        self._piles.clear()


def _write(pile: _Pile) -> None:
    if not pile.waiting:
        return
    rows = pa.concat_tables(pile.waiting).unify_dictionaries()
    if pile.writer is None:
        pile.writer = pq.ParquetWriter(pile.sink, rows.schema, store_schema=False, **_options(rows.schema))
    pile.writer.write_table(rows, row_group_size=GROUP_ROWS)
    pile.rows += rows.num_rows
    pile.waiting, pile.rows_waiting = [], 0


def _options(schema: pa.Schema) -> dict[str, object]:
    """Amounts are hardly ever the same twice: a dictionary of them would cost most of the time, and room."""
    encodings = {each.name: _encoding(each) for each in schema}
    return {
        "compression": _COMPRESSION,
        "compression_level": _LEVEL,
        "use_dictionary": [name for name, encoding in encodings.items() if encoding is None],
        "column_encoding": {name: encoding for name, encoding in encodings.items() if encoding is not None} or None,
    }


def _encoding(column: pa.Field) -> str | None:
    if column.name in KEYS:
        return "DELTA_BINARY_PACKED"
    is_amount = column.type == pa.float64() or column.name.startswith("msg_throughput")
    return "BYTE_STREAM_SPLIT" if is_amount else None


def times_between(rows: pa.Table, from_ms: int | None, to_ms: int | None) -> pa.Table:
    """The rows with `from_ms` <= time < `to_ms`."""
    if from_ms is None and to_ms is None:
        return rows
    at_ms = rows.column(TIME)
    kept = np.asarray(at_ms.is_valid()) if at_ms.null_count else np.ones(len(at_ms), dtype=np.bool_)
    times = at_ms.fill_null(0).to_numpy()
    if from_ms is not None:
        kept &= times >= from_ms
    if to_ms is not None:
        kept &= times < to_ms
    return only(rows, kept)


def unpacked(data: bytes) -> pa.Table:
    """All rows of a packed file."""
    return pq.read_table(pa.BufferReader(data))


@contextmanager
def opened(contents: Mapping[str, bytes], path: str) -> Iterator[pq.ParquetFile]:
    """A packed file, of those whose bytes are here, whose texts are read as dictionaries: few are different.

    Raises `PipelineError` for a file that is gone, or that cannot be read.
    """
    content = contents.get(place_of(path))
    if content is None:
        raise PipelineError(f"{path}: a file of a table is gone: make all anew (--anew)")
    try:
        source = pa.BufferReader(content)
        texts = [each.name for each in pq.read_schema(source) if pa.types.is_string(each.type)]
        with pq.ParquetFile(source, read_dictionary=texts) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise PipelineError(f"{path}: cannot be read: {said}; make all anew (--anew)") from error


def to_stream(rows: pa.Table) -> bytes:
    """Rows on their way from one worker to another."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_stream(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()
