"""History entries, and their conversion into rows; columns are copied in bulk.

Entries only hold references; another thread converts them into columns later. The producer of an entry must never
change the referenced objects.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.model.load import METRICS, RESOURCES, THROUGHPUT_IN, BrokerReport, FloatArray, IntArray
from loadmanager.core.model.report_validation import RATE_STEPS_PER_UNIT
from loadmanager.core.planning.decision_kinds import InColumns
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    DECISIONS,
    EVENTS,
    HEALTH_COLUMNS,
    LOAD_COLUMNS,
    MOVES,
    OPERATIONS,
    RATE,
    RESOURCE_COLUMNS,
    TABLES,
)
from loadmanager.wire.checkpoint_codec import step_as_json
from loadmanager.wire.dump_line import quoted

Json = Mapping[str, Any] | Sequence[Any] | str | InColumns
"""A JSON value. Text counts as encoded JSON; columns are encoded later, in the thread."""

_BYTES_PER_BUNDLE = 250
_BYTES_PER_ENTRY = 2_000
_BYTES_PER_VERDICT = 400

_RANGE_WIDTH = len("0x00000000_0xffffffff")
_LOWER_DIGITS, _UPPER_DIGITS = slice(2, 10), slice(13, 21)
_POWERS = 16 ** np.arange(7, -1, -1)


@dataclass(frozen=True, slots=True)
class Report:
    """An applied load report: a row for the broker, and one for each of its bundles."""

    registration: Registration
    report: BrokerReport

    @property
    def rows(self) -> int:
        return 1 + len(self.report.bundle_names)

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return _BYTES_PER_ENTRY + _BYTES_PER_BUNDLE * len(self.report.bundle_names)


class _OneRow:
    """Base of entries that are one row each; `size_bytes` is the approximate size in memory."""

    __slots__ = ()
    rows = 1

    @property
    def size_bytes(self) -> int:
        return _BYTES_PER_ENTRY


@dataclass(frozen=True, slots=True)
class Decision(_OneRow):
    """A decision; `steps` are the core's, or mappings with the fields of `schemas.STEP`.

    `settings_id` names the settings behind it; `rng_state` is only set if it has changed.
    """

    kind: str
    cycle: int
    settings_id: str
    duration_ms: float
    steps: Sequence[Assign | Unload | Mapping[str, Any]] = ()
    verdicts: Sequence[Verdict] = ()
    rng_state: Json | None = None
    detail: Json | None = None

    @property
    def size_bytes(self) -> int:
        return _BYTES_PER_ENTRY + _BYTES_PER_VERDICT * (len(self.steps) + len(self.verdicts))


@dataclass(frozen=True, slots=True)
class MoveRow(_OneRow):
    """A fact about a move: its begin, its end, or its measured effect.

    `move` is the sequence of the row that began the move, `load` (4,) the bundle's load; None: unknown.
    """

    kind: str
    bundle: str
    source: str | None
    destination: str | None
    reason: str
    load: Sequence[float] | FloatArray | None = None
    imbalance_before: float | None = None
    imbalance_after: float | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str | None = None
    move: int | None = None
    detail: Json | None = None


@dataclass(frozen=True, slots=True)
class HistoryEvent(_OneRow):
    """Any other event: `kind` is its type, `subject` its object."""

    kind: str
    subject: str = ""
    body: Json | None = None


@dataclass(frozen=True, slots=True)
class OperationRow(_OneRow):
    """An operator command and its outcome: an entry of the audit log; `address` is the caller's."""

    node: str
    who: str
    address: str
    operation: str
    request_id: str
    path: str
    status: int
    before: Json | None
    after: Json | None


Entry = Report | Decision | MoveRow | HistoryEvent | OperationRow


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry with its position in the total order."""

    at_ms: int
    epoch: int
    sequence: int
    entry: Entry


def encode_json(value: Json | None) -> str | None:
    """Encode as one line of JSON; non-finite numbers become strings, as in a dump."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_value)
    except ValueError:
        resolved = json.loads(json.dumps(value, default=_json_value))
        return json.dumps(quoted(resolved), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_value(value: object) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, InColumns):
        return value.as_json()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__}: has no form in JSON")


def by_table(placed: Iterable[Placed]) -> dict[str, list[Placed]]:
    """Group the entries by table; a report may belong to two."""
    found: dict[str, list[Placed]] = defaultdict(list)
    for each in placed:
        for table in _TABLES_OF[type(each.entry)]:
            if table != BUNDLE_REPORTS or each.entry.rows > 1:
                found[table].append(each)
    return found


def columns_of(table: str, placed: Sequence[Placed]) -> pa.Table:
    """Convert the entries into rows of the table."""
    if table == BROKER_REPORTS:
        return _broker_reports(placed)
    if table == BUNDLE_REPORTS:
        return _bundle_reports(placed)
    to_row = _TO_ROW[table]
    rows = [{**_keys(each), **to_row(each.entry)} for each in placed]
    return pa.Table.from_pylist(rows, schema=TABLES[table].schema)


def _keys(placed: Placed) -> dict[str, int]:
    return {"at_ms": placed.at_ms, "epoch": placed.epoch, "sequence": placed.sequence}


def _key_columns(placed: Sequence[Placed], repeats: int | IntArray = 1) -> dict[str, IntArray]:
    return {
        "at_ms": np.repeat([each.at_ms for each in placed], repeats),
        "epoch": np.repeat([each.epoch for each in placed], repeats),
        "sequence": np.repeat([each.sequence for each in placed], repeats),
    }


def _names(values: Iterable[str], repeats: int | IntArray = 1) -> pa.DictionaryArray:
    """Encode text as a run-length list of distinct values."""
    codes: dict[str, int] = {}
    numbers = [codes.setdefault(value, len(codes)) for value in values]
    return pa.DictionaryArray.from_arrays(np.repeat(np.array(numbers, dtype=np.int32), repeats), list(codes))


def _broker_reports(placed: Sequence[Placed]) -> pa.Table:
    entries: list[Any] = [each.entry for each in placed]
    reports: list[BrokerReport] = [each.report for each in entries]
    usage = np.array([each.usage for each in reports]).reshape(-1, 2 * RESOURCES)
    load = np.array([each.load for each in reports]).reshape(-1, METRICS)
    columns = {
        **_key_columns(placed),
        "broker": _names(each.registration.broker for each in entries),
        "incarnation": [each.registration.incarnation for each in entries],
        **{name: usage[:, at] for at, name in enumerate(RESOURCE_COLUMNS)},
        **{name: load[:, at] for at, name in enumerate(LOAD_COLUMNS)},
        "topics": [each.num_topics for each in reports],
        "bundles": [each.num_bundles for each in reports],
        "consumers": [each.num_consumers for each in reports],
        "producers": [each.num_producers for each in reports],
        "last_update_ms": [each.last_update_ms for each in reports],
        "start_timestamp_ms": [each.start_timestamp_ms for each in reports],
        "version": _names(each.version for each in reports),
        "load_manager_class": _names(each.load_manager_class for each in reports),
        "persistent_enabled": [each.persistent_enabled for each in reports],
        "non_persistent_enabled": [each.non_persistent_enabled for each in reports],
        **{name: [getattr(each.health, name, None) for each in reports] for name in HEALTH_COLUMNS},
    }
    return pa.table(columns, schema=TABLES[BROKER_REPORTS].schema)


def _bundle_reports(placed: Sequence[Placed]) -> pa.Table:
    entries: list[Any] = [each.entry for each in placed]
    reports: list[BrokerReport] = [each.report for each in entries]
    bundles = np.array([len(each.bundle_names) for each in reports])
    namespaces, lowers, uppers = _ranges(chain.from_iterable(each.bundle_names for each in reports))
    load = np.concatenate([each.bundle_load for each in reports])
    columns = {
        **_key_columns(placed, bundles),
        "broker": _names((each.registration.broker for each in entries), bundles),
        "namespace": namespaces,
        "range_lower": lowers,
        "range_upper": uppers,
        **{name: thousandths(load[:, at]) for at, name in enumerate(LOAD_COLUMNS[:THROUGHPUT_IN])},
        **{name: np.rint(load[:, at]).astype(np.int64) for at, name in enumerate(LOAD_COLUMNS) if at >= THROUGHPUT_IN},
        "topics": np.concatenate([each.bundle_topics for each in reports]),
        "sessions": np.concatenate([each.bundle_sessions for each in reports]),
        "cache_bytes": np.concatenate([each.bundle_cache_bytes for each in reports]),
    }
    return pa.table(columns, schema=TABLES[BUNDLE_REPORTS].schema)


def _ranges(bundles: Iterable[str]) -> tuple[pa.DictionaryArray, IntArray, IntArray]:
    """Return the namespaces, lower and upper bounds of bundles in bulk; the text of a range has a fixed width."""
    names = pa.array(bundles, pa.string())
    namespaces = pc.utf8_slice_codeunits(names, 0, -_RANGE_WIDTH - 1).dictionary_encode()
    text = pc.utf8_slice_codeunits(names, -_RANGE_WIDTH).cast(pa.binary(_RANGE_WIDTH))
    digits = np.frombuffer(text.buffers()[1], dtype=np.uint8).reshape(-1, _RANGE_WIDTH).astype(np.int64)
    digits -= np.where(digits >= ord("a"), ord("a") - 10, ord("0"))
    return namespaces, digits[:, _LOWER_DIGITS] @ _POWERS, digits[:, _UPPER_DIGITS] @ _POWERS


def thousandths(rates: FloatArray) -> pa.Decimal128Array:
    """Convert rates (k,) into decimals of three digits, without an object per value."""
    words = np.empty((len(rates), 2), dtype=np.int64)
    words[:, 0] = np.rint(rates * RATE_STEPS_PER_UNIT)
    words[:, 1] = words[:, 0] >> 63  # the sign, in the upper 64 of 128 bits
    return pa.Array.from_buffers(RATE, len(rates), [None, pa.py_buffer(words)])


def _decision_row(entry: Decision) -> dict[str, Any]:
    row = _row(entry, "rng_state", "detail")
    row["steps"] = [_step_row(step) for step in entry.steps]
    row["verdicts"] = [
        {"subject": each.subject, "reason": each.verdict.value, "acted": each.acted, "why": encode_json(each.why)}
        for each in entry.verdicts
    ]
    return row


def _step_row(step: Assign | Unload | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(step, Mapping):
        return {**step, "detail": encode_json(step.get("detail"))}
    return step_as_json(step)


def _move_row(entry: MoveRow) -> dict[str, Any]:
    row = _row(entry, "detail")
    load = row.pop("load")
    return row if load is None else row | dict(zip(LOAD_COLUMNS, map(float, load), strict=True))


def _row(entry: Entry, *json_fields: str) -> dict[str, Any]:
    row = {each.name: getattr(entry, each.name) for each in fields(entry)}
    return row | {name: encode_json(row[name]) for name in json_fields}


_TABLES_OF: dict[type, tuple[str, ...]] = {
    Report: (BUNDLE_REPORTS, BROKER_REPORTS),
    Decision: (DECISIONS,),
    MoveRow: (MOVES,),
    HistoryEvent: (EVENTS,),
    OperationRow: (OPERATIONS,),
}
_TO_ROW: dict[str, Callable[[Any], dict[str, Any]]] = {
    DECISIONS: _decision_row,
    MOVES: _move_row,
    EVENTS: lambda entry: _row(entry, "body"),
    OPERATIONS: lambda entry: _row(entry, "before", "after"),
}
