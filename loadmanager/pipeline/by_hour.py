"""What later steps have to know of the reports themselves, by hours: so that they need not go through all of them.

A report counts in the hour in which it came.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from loadmanager.core.load import FloatArray, IntArray
from loadmanager.history.files import HOUR_MS
from loadmanager.history.schemas import LOAD_COLUMNS, ORDER
from loadmanager.pipeline.arrays import codes_of, differs, named, table_of
from loadmanager.pipeline.carried import NumberedBundles, runs_of_reports

TOLERANCE = 0.01
"""What a broker says may differ by this part from what its bundles add up to."""

_FIGURES = (*LOAD_COLUMNS, "topics")
_COUNT = "bundles"


def reported_by(bundle_reports: pa.Table, bundles: NumberedBundles) -> pa.Table:
    """Which brokers reported which bundles in each hour, and when first and last; from `clean_bundle_reports`, whose
    `bundles_of` these are.
    """
    by, brokers = codes_of(bundle_reports.column("broker"))
    at_ms = bundle_reports.column("at_ms").to_numpy()
    rows = pa.table({"bundle": bundles.bundle, "by": by, "hour": at_ms // HOUR_MS, "at_ms": at_ms})
    found = rows.group_by(["hour", "bundle", "by"]).aggregate([("at_ms", "min"), ("at_ms", "max")])
    bundle = found.column("bundle").to_numpy()
    columns = {
        "start_ms": found.column("hour").to_numpy() * HOUR_MS,
        "bundle": named(bundle, bundles.names()),
        "namespace": named(bundles.ranges.namespace[bundle], bundles.namespaces),
        "broker": named(found.column("by").to_numpy(), brokers),
        "first_ms": found.column("at_ms_min").to_numpy(),
        "last_ms": found.column("at_ms_max").to_numpy(),
    }
    return table_of("reported_by", columns)


def totals_compared(broker_reports: pa.Table, bundle_reports: pa.Table) -> pa.Table:
    """The totals of each broker beside what the bundles of the same report add up to, by hours; from the clean tables.

    The worst is the latest of the reports with the largest difference, as a part of the larger of the two, or of 1.
    """
    rows = broker_reports.sort_by([(name, "ascending") for name in ORDER])
    summed = _summed(rows, bundle_reports)
    by, brokers = codes_of(rows.column("broker"))
    hour = rows.column("at_ms").to_numpy() // HOUR_MS
    order = np.lexsort((hour, by))  # the later of two reports stays behind the other
    starts = np.flatnonzero(differs(by[order], hour[order]))
    parts = [
        _compared(rows, name, summed[name], order, starts)
        | {"start_ms": hour[order][starts] * HOUR_MS, "broker": named(by[order][starts], brokers)}
        for name in (*_FIGURES, _COUNT)
    ]
    return pa.concat_tables(table_of("totals_compared", part) for part in parts)


def _summed(reports: pa.Table, bundle_reports: pa.Table) -> dict[str, FloatArray | IntArray]:
    """What the bundles of each report add up to."""
    starts, place = runs_of_reports(bundle_reports, reports)
    rows: dict[str, FloatArray | IntArray] = {
        name: np.add.reduceat(bundle_reports.column(name).to_numpy(), starts, dtype=np.float64) for name in _FIGURES
    }
    rows[_COUNT] = np.diff(starts, append=len(bundle_reports))
    known = place >= 0
    return {name: np.bincount(place[known], each[known], len(reports)) for name, each in rows.items()}


def _compared(
    reports: pa.Table, name: str, summed: FloatArray | IntArray, order: IntArray, starts: IntArray
) -> dict[str, IntArray | FloatArray | pa.Array]:
    """By brokers and hours: `order` has the reports of each one after the other, and they begin at `starts`."""
    reported = reports.column(name).to_numpy().astype(np.float64)
    difference = np.abs(reported - summed) / np.maximum(np.maximum(np.abs(reported), np.abs(summed)), 1.0)
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    by_size = np.lexsort((difference[order], group))
    worst = order[by_size[np.append(starts[1:], len(order)) - 1]] if len(order) else order
    return {
        "what": pa.array([name] * len(starts), pa.string()).dictionary_encode(),
        "reports": np.bincount(group, minlength=len(starts)),
        "inconsistent": np.bincount(group, difference[order] > TOLERANCE, len(starts)).astype(np.int64),
        "worst_difference": difference[worst],
        **{key: reports.column(key).to_numpy()[worst] for key in ("at_ms", *ORDER)},
        "reported": reported[worst],
        "summed": summed[worst],
    }
