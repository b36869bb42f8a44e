"""Columns of a history table as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loadmanager.history.reader import History, OnFault, rates_of


def columns_of(
    history: History,
    table: str,
    from_ms: int | None,
    to_ms: int | None,
    names: Sequence[str],
    on_fault: OnFault | None,
) -> dict[str, Any]:
    """Return these columns of the rows of `from_ms` <= time < `to_ms`, in order; text as objects."""
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for batch in history.scan(table, from_ms, to_ms, names, on_fault):
        for name in names:
            parts[name].append(_array(batch.column(name)))
    return {name: np.concatenate(each) if each else np.empty(0, dtype=np.int64) for name, each in parts.items()}


def _array(column: Any) -> Any:  # noqa: ANN401 - Arrow's column, numpy's array
    if pa.types.is_dictionary(column.type):
        return np.array(column.dictionary.to_pylist(), dtype=object)[column.indices.to_numpy()]
    return rates_of(column) if pa.types.is_decimal(column.type) else column.to_numpy(zero_copy_only=False)
