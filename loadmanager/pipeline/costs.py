"""What load costs a broker, learnt from what brokers reported: a linear model of each resource per class of brokers.

    usage = base + coefficients * (msg_rate_in, msg_rate_out, msg_throughput_in, msg_throughput_out, topics)

No number of it is negative (non-negative least squares). A class are the brokers with the same limits. The error is
that on the last fifth of the class's reports by time, by the model that was fitted to those before; the model itself is
then fitted to all. Reports in which a resource is at its limit say nothing of what more load would cost and are left
out. Where the reports cannot tell what costs how much, or the fit foretells worse than the model given, the model given
is kept, and the table says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from scipy.optimize import nnls

from loadmanager.core.load import RESOURCES, BoolArray, FloatArray
from loadmanager.history.schemas import LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.sim.cost import CostModel

RESOURCE_NAMES = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
PREDICTORS = (*LOAD_COLUMNS, "topics")
USAGES, LIMITS = RESOURCE_COLUMNS[0::2], RESOURCE_COLUMNS[1::2]

COST_MODELS = schema_of("cost_models")

FEWEST_REPORTS = 50
MOST_REPORTS = 500_000
"""Of a class; of more, those with hashes that come round so often are taken."""

_HELD_OUT = 5
"""One in so many reports, the last ones."""
_AT_LIMIT = 0.99
_TELLS_APART = 1e-3
"""The part of a predictor's variance that the others must leave unexplained."""
_GIVEN = CostModel()


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """What brokers of one class reported, by time: `predictors` (n, 5), `usage` and `limit` (n, 5 resources)."""

    predictors: FloatArray
    usage: FloatArray
    limit: FloatArray

    def usable(self, resource: int) -> BoolArray:
        """Which of them (n,) say what load costs of this resource."""
        used, limit = self.usage[:, resource], self.limit[:, resource]
        told = np.isfinite(self.predictors).all(axis=1) & (self.predictors >= 0).all(axis=1)
        below = (limit <= 0) | (used < _AT_LIMIT * limit)
        return told & np.isfinite(used) & (used >= 0) & below


@dataclass(frozen=True, slots=True)
class ResourceFit:
    """One resource of a class: its row of a cost model, what is known of its error (None: nothing), and why it is so.

    `fitted` says whether the coefficients were fitted; else they are those of the model given.
    """

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
    """What the reports of a class of brokers say of each resource."""
    return tuple(_fit_resource(reports, resource, given) for resource in range(RESOURCES))


def cost_models(broker_reports: DataFrame, given: CostModel = _GIVEN) -> DataFrame:
    """`COST_MODELS` from the table `broker_reports` of a history."""

    def fit(key: tuple[float, ...], rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows.sort_values(["at_ms", "broker"], kind="stable")
        reports = Reports(
            rows[list(PREDICTORS)].to_numpy(dtype=np.float64),
            rows[list(USAGES)].to_numpy(dtype=np.float64),
            rows[list(LIMITS)].to_numpy(dtype=np.float64),
        )
        found = [_row(class_name(key), each) for each in fit_class(reports, given)]
        return pd.DataFrame(found, columns=COST_MODELS.names)

    wanted = ["at_ms", "broker", *PREDICTORS, *LIMITS, *USAGES]
    limits: list[Column] = [f.round(f.col(name)).alias(f"class_{name}") for name in LIMITS]
    return _thinned(broker_reports.select(*wanted), limits).groupBy(*limits).applyInPandas(fit, COST_MODELS)


def class_name(limits: Iterable[float]) -> str:
    """Brokers with these limits, in the units of load reports."""
    cpu, memory, direct_memory, bandwidth_in, bandwidth_out = limits
    return (
        f"{cpu / 100:g} cores, {memory:g} MiB heap, {direct_memory:g} MiB direct memory,"
        f" {bandwidth_in / 1e6:g} Gbit/s in, {bandwidth_out / 1e6:g} Gbit/s out"
    )


@dataclass(frozen=True, slots=True)
class FleetCost:
    """One cost model for a whole fleet: that of its class of brokers with the most reports."""

    broker_class: str
    cost: CostModel


def fleet_cost(models: Iterable[Mapping[str, Any]]) -> FleetCost:
    """Of the rows of a table of `COST_MODELS`. Raises `ValueError` when there are none."""
    by_class: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in models:
        by_class.setdefault(row["broker_class"], {})[row["resource"]] = row
    if not by_class:
        raise ValueError("cost models: there are none; the range has no broker reports")
    reports = {name: max(row["reports"] for row in rows.values()) for name, rows in by_class.items()}
    broker_class = min(by_class, key=lambda name: (-reports[name], name))
    rows = [by_class[broker_class][name] for name in RESOURCE_NAMES]
    cost = CostModel(
        tuple(float(row["base"]) for row in rows),
        tuple(tuple(float(row[name]) for name in PREDICTORS) for row in rows),
    )
    return FleetCost(broker_class, cost)


def known_cost(models: pa.Table) -> CostModel | None:
    """The cost model of most brokers, of the table `cost_models`; None when there is none."""
    return fleet_cost(models.to_pylist()).cost if models.num_rows else None


def _fit_resource(reports: Reports, resource: int, given: CostModel) -> ResourceFit:
    name = RESOURCE_NAMES[resource]
    kept = reports.usable(resource)
    predictors, used = reports.predictors[kept], reports.usage[kept, resource]
    old = np.array([given.base[resource], *given.coefficients[resource]])
    held = len(used) // _HELD_OUT
    why = _unfit(predictors, used)
    if why:
        return ResourceFit(
            name, float(old[0]), tuple(old[1:].tolist()), len(used), why=f"{why}; the model given is kept"
        )
    learnt = _least_squares(predictors[:-held], used[:-held])
    (r2, mape), (given_r2, given_mape) = (_errors(model, predictors[-held:], used[-held:]) for model in (learnt, old))
    is_better = r2 is not None and given_r2 is not None and r2 > given_r2
    best = _least_squares(predictors, used) if is_better else old
    said = "it foretells the reports held out better than the model given"
    return ResourceFit(
        resource=name,
        base=float(best[0]),
        coefficients=tuple(best[1:].tolist()),
        reports=len(used),
        held_out=held,
        r2=r2,
        mape=mape,
        given_r2=given_r2,
        given_mape=given_mape,
        fitted=is_better,
        why=said if is_better else "the model given foretells the reports held out at least as well, and is kept",
    )


def _unfit(predictors: FloatArray, used: FloatArray) -> str:
    """Why nothing can be learnt from these; empty when it can."""
    if len(used) < FEWEST_REPORTS:
        return f"{len(used)} usable reports, at least {FEWEST_REPORTS} are needed"
    last = len(used) // _HELD_OUT
    for part, which in ((used[:-last], "to learn from"), (used[-last:], "held out")):
        if np.ptp(part) == 0:
            return f"the usage is {part[0]:g} in every report {which}"
    varying = np.ptp(predictors, axis=0) > 0
    fixed = [PREDICTORS[i] for i in np.flatnonzero(~varying & predictors.any(axis=0)).tolist()]
    if fixed:
        return f"{', '.join(fixed)} never changes, so its cost cannot be told from the base"
    together = _collinear(predictors[:, varying])
    if together.any():
        names = [PREDICTORS[i] for i in np.flatnonzero(varying)[together].tolist()]
        return f"{', '.join(names)} rise and fall together, so what each costs cannot be told"
    return ""


def _collinear(predictors: FloatArray) -> BoolArray:
    """Which columns the others account for."""
    scaled = (predictors - predictors.mean(axis=0)) / predictors.std(axis=0)
    left = []
    for column in range(scaled.shape[1]):
        others = np.delete(scaled, column, axis=1)
        weights, *_ = np.linalg.lstsq(others, scaled[:, column], rcond=None)
        left.append(float(np.mean((scaled[:, column] - others @ weights) ** 2)))
    return np.array(left) < _TELLS_APART


def _least_squares(predictors: FloatArray, used: FloatArray) -> FloatArray:
    """Base and coefficients (6,), none negative, that come closest."""
    columns = np.column_stack([np.ones(len(predictors)), predictors])
    scale = columns.max(axis=0)
    scale[scale == 0] = 1.0  # nobody has any of it, and it costs nothing
    found, _ = nnls(columns / scale, used)
    return np.asarray(found / scale)


def _errors(model: FloatArray, predictors: FloatArray, used: FloatArray) -> tuple[float, float | None]:
    """R2, and the mean of |error| as a fraction of what was used, over reports that used any."""
    wrong = used - (model[0] + predictors @ model[1:])
    spread = float(((used - used.mean()) ** 2).sum())
    r2 = 1.0 - float((wrong**2).sum()) / spread
    some = used > 0
    return r2, float(np.mean(np.abs(wrong[some]) / used[some])) if some.any() else None


def _row(broker_class: str, fit: ResourceFit) -> tuple[object, ...]:
    return (
        broker_class,
        fit.resource,
        fit.base,
        *fit.coefficients,
        fit.reports,
        fit.held_out,
        fit.r2,
        fit.mape,
        fit.given_r2,
        fit.given_mape,
        fit.fitted,
        fit.why,
    )


def _thinned(reports: DataFrame, limits: list[Column]) -> DataFrame:
    """At most about `MOST_REPORTS` of each class: of n times as many, those whose hash is a multiple of n."""
    names = [f"class_{name}" for name in LIMITS]
    keyed = reports.withColumns(dict(zip(names, limits, strict=True)))
    counts = keyed.groupBy(*names).agg(f.ceil(f.count("*") / MOST_REPORTS).alias("one_in"))
    hashed = f.pmod(f.xxhash64("broker", "at_ms"), f.col("one_in"))
    kept = keyed.join(f.broadcast(counts), names).where(hashed == 0)
    return kept.select(*reports.columns)
