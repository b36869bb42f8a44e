"""Table schemas of the history: columns, versions, and encodings.

A file's metadata names its table and schema version (`SCHEMA_KEY`). Columns that are newer than the file are filled
with nulls when it is read; a file of a newer version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from loadmanager.errors import HistoryError, HistoryFileError, HistorySchemaError

SCHEMA_KEY = b"loadmanager.schema"
"""Metadata key of a Parquet file; its value is `table/version`."""

BROKER_REPORTS = "broker_reports"
BUNDLE_REPORTS = "bundle_reports"
DECISIONS = "decisions"
MOVES = "moves"
EVENTS = "events"
OPERATIONS = "operations"

RATE = pa.decimal128(18, 3)
"""Messages/s of a bundle, in thousandths."""

NAME = pa.dictionary(pa.int32(), pa.string())
"""Text with few distinct values per file."""

ORDER = ("epoch", "sequence")
"""Total order of rows: the leader's epoch, and its sequence over all tables."""

KEYS = ("at_ms", *ORDER)
"""Columns of every table in every version."""

_ZSTD_LEVEL = 3
_DELTA, _SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `since` is the table version that added it. Without `encoding` it has a dictionary if that helps."""

    name: str
    type: pa.DataType
    since: int = 1
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    name: str
    version: int
    columns: tuple[Column, ...]
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        fields = [pa.field(each.name, each.type) for each in self.columns]
        metadata = {SCHEMA_KEY: f"{self.name}/{self.version}".encode()}
        object.__setattr__(self, "schema", pa.schema(fields, metadata=metadata))

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.columns]

    def write_options(self) -> dict[str, Any]:
        """Return the options of `pyarrow.parquet` for a file of this table."""
        encodings = {each.name: each.encoding for each in self.columns if each.encoding}
        nested = [each for each in self.columns if pa.types.is_nested(each.type)]
        dictionary = [each.name for each in self.columns if not each.encoding and each not in nested]
        dictionary += [f"{each.name}.list.element.{part.name}" for each in nested for part in each.type.value_type]
        return {
            "compression": "zstd",
            "compression_level": _ZSTD_LEVEL,
            "use_dictionary": dictionary,
            "column_encoding": encodings or None,
            "store_decimal_as_integer": True,
        }

    def conform(self, table: pa.Table, version: int, where: str) -> pa.Table:
        """Convert columns of an older file to this schema; raises `HistoryFileError` if they do not fit."""
        arrays = []
        for wanted in self.schema:
            at = table.schema.get_field_index(wanted.name)
            if at < 0:
                if self._column(wanted.name).since <= version:
                    raise HistoryFileError(f"{where}: has no column {wanted.name}: a damaged or foreign file")
                arrays.append(pa.nulls(table.num_rows, wanted.type))
                continue
            arrays.append(_cast(table.column(at), wanted, where))
        return pa.table(arrays, schema=self.schema)

    def only(self, names: Sequence[str]) -> TableSchema:
        """Return the schema with only these columns."""
        return TableSchema(self.name, self.version, tuple(each for each in self.columns if each.name in names))

    def _column(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)


def _cast(column: pa.ChunkedArray, wanted: pa.Field, where: str) -> pa.ChunkedArray:
    if column.type == wanted.type:
        return column
    fault = f"{where}: column {wanted.name} is {column.type}, expected {wanted.type}"
    if _is_text(column.type) and not _is_text(wanted.type):  # Arrow would parse numbers in it
        raise HistoryFileError(fault)
    try:
        return column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise HistoryFileError(f"{fault}: {error}") from None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind.value_type if pa.types.is_dictionary(kind) else kind))


def version_of(metadata: Mapping[bytes, bytes] | None, table: str, where: str) -> int:
    """Return the table version in a file's metadata.

    Raises `HistoryFileError` for a file of another table, `HistorySchemaError` for a newer version.
    """
    known = TABLES[table].version
    value = (metadata or {}).get(SCHEMA_KEY, b"").decode(errors="replace")
    name, _, version = value.rpartition("/")
    if name != table or not version.isascii() or not version.isdigit():
        found = f"says it is {value!r}" if value else f"has no {SCHEMA_KEY.decode()} in its metadata"
        raise HistoryFileError(f"{where}: not a file of {table}: it {found}; move it out of the history")
    if int(version) > known:
        raise HistorySchemaError(
            f"{where}: written with version {version} of {table}, this loadmanager knows up to {known}:"
            " read it with the loadmanager that wrote it, or a newer one"
        )
    return int(version)


def wanted_columns(table: str, names: Sequence[str] | None) -> TableSchema:
    """Return the schema with these columns, or all; raises `HistoryError`, which lists the columns that exist."""
    if table not in TABLES:
        raise HistoryError(f"table {table}: unknown; there are {', '.join(TABLES)}")
    schema = TABLES[table]
    if names is None:
        return schema
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise HistoryError(f"columns {', '.join(unknown)}: not in {table}; it has {', '.join(schema.names)}")
    return schema.only(names)


def _keys() -> tuple[Column, ...]:
    return tuple(Column(name, pa.int64(), since=0, encoding=_DELTA) for name in KEYS)


def _plain(kind: pa.DataType, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name in names)


_RESOURCES = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
RESOURCE_COLUMNS = tuple(f"{name}_{part}" for name in _RESOURCES for part in ("usage", "limit"))
HEALTH_COLUMNS = ("latency_ms", "error_share", "queue")
LOAD_COLUMNS = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")

STEP = pa.struct(
    [
        ("kind", pa.string()),
        ("bundle", pa.string()),
        ("source", pa.string()),
        ("source_incarnation", pa.int64()),
        ("destination", pa.string()),
        ("destination_incarnation", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
VERDICT = pa.struct([("subject", pa.string()), ("reason", pa.string()), ("acted", pa.bool_()), ("why", pa.string())])

TABLES: dict[str, TableSchema] = {
    each.name: each
    for each in (
        TableSchema(
            BROKER_REPORTS,
            2,
            (
                *_keys(),
                Column("broker", NAME),
                Column("incarnation", pa.int64()),
                *_plain(pa.float64(), *RESOURCE_COLUMNS, *LOAD_COLUMNS),
                *_plain(pa.int64(), "topics", "bundles", "consumers", "producers"),
                *_plain(pa.int64(), "last_update_ms", "start_timestamp_ms"),
                *_plain(NAME, "version", "load_manager_class"),
                *_plain(pa.bool_(), "persistent_enabled", "non_persistent_enabled"),
                *(Column(name, pa.float64(), since=2) for name in HEALTH_COLUMNS),
            ),
        ),
        TableSchema(
            BUNDLE_REPORTS,
            1,
            (
                *_keys(),
                *_plain(NAME, "broker", "namespace"),
                *_plain(pa.int64(), "range_lower", "range_upper"),
                *(Column(name, RATE, encoding=_SPLIT) for name in LOAD_COLUMNS[:2]),
                *(Column(name, pa.int64(), encoding=_SPLIT) for name in LOAD_COLUMNS[2:]),
                *_plain(pa.int64(), "topics", "sessions"),
                Column("cache_bytes", pa.int64(), encoding=_SPLIT),
            ),
        ),
        TableSchema(
            DECISIONS,
            1,
            (
                *_keys(),
                Column("kind", NAME),
                Column("cycle", pa.int64()),
                *_plain(pa.string(), "settings_id", "rng_state"),
                Column("steps", pa.list_(STEP)),
                Column("verdicts", pa.list_(VERDICT)),
                Column("duration_ms", pa.float64()),
                Column("detail", pa.string()),
            ),
        ),
        TableSchema(
            MOVES,
            1,
            (
                *_keys(),
                Column("kind", NAME),
                Column("move", pa.int64()),
                Column("bundle", pa.string()),
                *_plain(NAME, "source", "destination", "reason", "outcome"),
                *_plain(pa.float64(), *LOAD_COLUMNS, "imbalance_before", "imbalance_after"),
                *_plain(pa.int64(), "started_ms", "ended_ms"),
                Column("detail", pa.string()),
            ),
        ),
        TableSchema(EVENTS, 1, (*_keys(), Column("kind", NAME), *_plain(pa.string(), "subject", "body"))),
        TableSchema(
            OPERATIONS,
            1,
            (
                *_keys(),
                *_plain(NAME, "node", "who", "address", "operation"),
                *_plain(pa.string(), "request_id", "path"),
                Column("status", pa.int64()),
                *_plain(pa.string(), "before", "after"),
            ),
        ),
    )
}
