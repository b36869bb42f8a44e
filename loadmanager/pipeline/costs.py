"""Cost models of brokers, fitted to their reports: a linear model of each resource for each class of brokers.

    usage = base + coefficients * (msg_rate_in, msg_rate_out, msg_throughput_in, msg_throughput_out, topics)

Reports at the limit of a resource are left out, since more load would not show. docs/pipeline.md has the other rules,
under "Costs".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from scipy.optimize import nnls

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.history.table_schemas import LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.pipeline.datasets import RESOURCES, schema_of

PREDICTORS = (*LOAD_COLUMNS, "topics")
USAGES, LIMITS = RESOURCE_COLUMNS[0::2], RESOURCE_COLUMNS[1::2]
_CLASS = [f"class_{name}" for name in LIMITS]

COST_MODELS = schema_of("cost_models")

FEWEST_REPORTS = 50
MOST_REPORTS = 500_000
"""Reports of a class; of more, a sample by hash is taken."""

_HELD_OUT = 5
"""Reciprocal of the share of the reports that is held out, the last ones."""
_AT_LIMIT = 0.99
_COLLINEAR = 1e-3
"""Unexplained share of a predictor's variance below which it is collinear with the others."""
_GIVEN = CostModel()


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """Reports of one class of brokers, by time: `predictors` (n, 5), `usage` and `limit` (n, 5 resources)."""

    predictors: FloatArray
    usage: FloatArray
    limit: FloatArray

    def usable(self, resource: int) -> BoolArray:
        """Return the reports (n,) that show the cost of a resource."""
        used, limit = self.usage[:, resource], self.limit[:, resource]
        is_known = np.isfinite(self.predictors).all(axis=1) & (self.predictors >= 0).all(axis=1)
        below = (limit <= 0) | (used < _AT_LIMIT * limit)
        return is_known & np.isfinite(used) & (used >= 0) & below


class ResourceFit(NamedTuple):
    """Cost model of one resource of a class, its error (None: unknown), and the reason for the choice."""

    resource: str
    base: float
    coefficients: tuple[float, ...]
    reports: int
    held_out: int = 0
    r2: float | None = None
    mape: float | None = None
    given_r2: float | None = None
    given_mape: float | None = None
    fitted: bool = False
    why: str = ""


def fit_class(reports: Reports, given: CostModel = _GIVEN) -> tuple[ResourceFit, ...]:
    return tuple(_fit_resource(reports, resource, given) for resource in range(len(RESOURCES)))


def cost_models(broker_reports: DataFrame) -> DataFrame:
    def fit(key: tuple[float, ...], rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows.sort_values(["at_ms", "broker"], kind="stable")
        reports = Reports(
            rows[list(PREDICTORS)].to_numpy(dtype=np.float64),
            rows[list(USAGES)].to_numpy(dtype=np.float64),
            rows[list(LIMITS)].to_numpy(dtype=np.float64),
        )
        found = [(class_name(key), *each[:2], *each.coefficients, *each[3:]) for each in fit_class(reports)]
        return pd.DataFrame(found, columns=COST_MODELS.names)

    reports = broker_reports.select("at_ms", "broker", *PREDICTORS, *LIMITS, *USAGES)
    classified = reports.withColumns(dict(zip(_CLASS, map(f.round, LIMITS), strict=True)))
    return _thinned(classified).groupBy(*_CLASS).applyInPandas(fit, COST_MODELS)


def class_name(limits: Iterable[float]) -> str:
    """Name a class by its limits, in the units of load reports."""
    cpu, memory, direct_memory, bandwidth_in, bandwidth_out = limits
    return (
        f"{cpu / 100:g} cores, {memory:g} MiB heap, {direct_memory:g} MiB direct memory,"
        f" {bandwidth_in / 1e6:g} Gbit/s in, {bandwidth_out / 1e6:g} Gbit/s out"
    )


def last_limits(broker_reports: DataFrame) -> DataFrame:
    """Return the limits in the last report of each broker, null where unknown."""
    limits = [f.max_by(f.when(f.col(name) > 0, f.col(name)), "at_ms").alias(name) for name in LIMITS]
    return broker_reports.groupBy("broker").agg(*limits)


def known_cost(models: pa.Table) -> CostModel:
    """Return the cost model of the class with the most reports from `cost_models`; the default one without rows."""
    rows = models.to_pylist()
    if not rows:
        return CostModel()
    chosen = min(rows, key=lambda row: (-row["reports"], row["broker_class"]))["broker_class"]
    by_resource = {row["resource"]: row for row in rows if row["broker_class"] == chosen}
    ordered = [by_resource[name] for name in RESOURCES]
    return CostModel(
        base=tuple(float(row["base"]) for row in ordered),
        coefficients=tuple(tuple(float(row[name]) for name in PREDICTORS) for row in ordered),
    )


def _fit_resource(reports: Reports, resource: int, given: CostModel) -> ResourceFit:
    kept = reports.usable(resource)
    predictors, used = reports.predictors[kept], reports.usage[kept, resource]
    old = np.array([given.base[resource], *given.coefficients[resource]])
    chosen = ResourceFit(RESOURCES[resource], float(old[0]), tuple(old[1:].tolist()), len(used))
    why = _unfit(predictors, used)
    if why:
        return chosen._replace(why=f"the default model is kept: {why}")
    held = len(used) // _HELD_OUT
    fitted = _least_squares(predictors[:-held], used[:-held])
    (r2, mape), (given_r2, given_mape) = (_errors(model, predictors[-held:], used[-held:]) for model in (fitted, old))
    chosen = chosen._replace(held_out=held, r2=r2, mape=mape, given_r2=given_r2, given_mape=given_mape)
    if r2 <= given_r2:
        why = f"the default model is kept: its R2 on held-out reports is {given_r2:.3g}, that of the fit {r2:.3g}"
        return chosen._replace(why=why)
    best = _least_squares(predictors, used)
    why = f"its R2 on held-out reports is {r2:.3g}, that of the default model {given_r2:.3g}"
    return chosen._replace(base=float(best[0]), coefficients=tuple(best[1:].tolist()), fitted=True, why=why)


def _unfit(predictors: FloatArray, used: FloatArray) -> str:
    """Return why the reports do not determine the costs; empty when they do."""
    if len(used) < FEWEST_REPORTS:
        return f"{len(used)} usable reports, {FEWEST_REPORTS} needed"
    last = len(used) // _HELD_OUT
    for part, which in ((used[:-last], "of the fit"), (used[-last:], "held out")):
        if np.ptp(part) == 0:
            return f"the usage is {part[0]:g} in every report {which}"
    varying = np.ptp(predictors, axis=0) > 0
    fixed = [PREDICTORS[i] for i in np.flatnonzero(~varying & predictors.any(axis=0)).tolist()]
    if fixed:
        return f"{', '.join(fixed)} never changes, so its cost cannot be told from the base"
    together = _collinear(predictors[:, varying])
    if together.any():
        names = [PREDICTORS[i] for i in np.flatnonzero(varying)[together].tolist()]
        return f"{', '.join(names)} are collinear, so their costs cannot be told apart"
    return ""


def _collinear(predictors: FloatArray) -> BoolArray:
    """Find the columns that are linear combinations of the others."""
    scaled = (predictors - predictors.mean(axis=0)) / predictors.std(axis=0)
    left = []
    for column in range(scaled.shape[1]):
        others = np.delete(scaled, column, axis=1)
        weights, *_ = np.linalg.lstsq(others, scaled[:, column], rcond=None)
        left.append(float(np.mean((scaled[:, column] - others @ weights) ** 2)))
    return np.array(left) < _COLLINEAR


def _least_squares(predictors: FloatArray, used: FloatArray) -> FloatArray:
    """Fit base and coefficients (6,), none negative."""
    columns = np.column_stack([np.ones(len(predictors)), predictors])
    scale = columns.max(axis=0)
    scale[scale == 0] = 1.0  # always 0: costs nothing
    found, _ = nnls(columns / scale, used)
    return np.asarray(found / scale)


def _errors(model: FloatArray, predictors: FloatArray, used: FloatArray) -> tuple[float, float | None]:
    """Return R2, and the mean absolute error relative to usage over the reports with any (None without)."""
    wrong = used - (model[0] + predictors @ model[1:])
    r2 = 1.0 - float((wrong**2).sum()) / float(((used - used.mean()) ** 2).sum())
    some = used > 0
    return r2, float(np.mean(np.abs(wrong[some]) / used[some])) if some.any() else None


def _thinned(reports: DataFrame) -> DataFrame:
    """Sample about `MOST_REPORTS` of each class by hash."""
    counts = reports.groupBy(*_CLASS).agg(f.ceil(f.count("*") / MOST_REPORTS).alias("one_in"))
    hashed = f.pmod(f.xxhash64("broker", "at_ms"), f.col("one_in"))
    return reports.join(f.broadcast(counts), _CLASS).where(hashed == 0)
