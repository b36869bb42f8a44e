"""Imbalance of the load over the brokers, every 5 minutes.

Load is bytes/s, in and out together, as in `core.effect`; the imbalance is the load of the busiest broker divided by
the mean over all brokers that reported. A broker counts for the time that it was there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.effect import UNEVEN
from loadmanager.core.load import FloatArray, IntArray
from loadmanager.core.resources import HOT
from loadmanager.pipeline.arrays import Codes, codes_of, named, ranks, table_of
from loadmanager.pipeline.averages import SHORTEST_S


def imbalance(broker_windows: pa.Table, threshold: float = UNEVEN, overloaded: float = HOT) -> pa.Table:
    """One row for each 5 minutes in which a broker was there, for the time that the one there longest was."""
    rows = broker_windows.filter(pc.field("window_s") == SHORTEST_S)
    starts, window = ranks(rows.column("start_ms").to_numpy())
    there, usage = (rows.column(name).to_numpy() for name in ("covered_s", "mean_usage"))
    load = sum(rows.column(f"mean_msg_throughput_{way}").to_numpy() for way in ("in", "out"))
    count = len(starts)
    covered_s = _highest(there, window, count)
    weight, carried = (np.bincount(window, weights, count) for weights in (there, load * there))
    mean, highest = carried / weight, _highest(load, window, count)
    off = load - mean[window]
    deviation = np.sqrt(np.bincount(window, off * off * there, count) / weight)
    is_loaded = mean > 0
    ratio = np.divide(highest, mean, out=np.ones(count), where=is_loaded)
    codes, names = codes_of(rows.column("broker"))
    columns = {
        "start_ms": starts,
        "brokers": np.bincount(window, minlength=count),
        "covered_s": covered_s,
        "load": carried / covered_s,
        "max_over_mean": ratio,
        "cv": np.divide(deviation, mean, out=np.zeros(count), where=is_loaded),
        "worst_broker": named(_first_with_most(load, window, codes, names), names),
        "worst_usage": _highest(usage, window, count, unknown=np.nan),
        "worst_used_broker": named(_first_with_most(usage, window, codes, names), names),
        "overloaded_brokers": np.bincount(window, usage > overloaded, count).astype(np.int64),
        "above_threshold": ratio > threshold,
    }
    return table_of("imbalance", columns)


def _highest(values: FloatArray, window: IntArray, count: int, unknown: float = -np.inf) -> FloatArray:
    """Return the highest known value of each window."""
    found = np.full(count, -np.inf)
    np.fmax.at(found, window, values)
    return np.where(np.isneginf(found), unknown, found)


def _first_with_most(values: FloatArray, window: IntArray, codes: Codes, names: pa.Array) -> Codes:
    """In each window the first by name of those with the highest value."""
    place = np.argsort(pc.array_sort_indices(names).to_numpy())  # of each name in their order
    order = np.lexsort((place[codes], -values, window))
    first = np.flatnonzero(np.diff(window[order], prepend=-1))
    return codes[order][first]
