"""Step `capacity`: cost models, and the brokers that the next days need. docs/pipeline.md describes the method.

Heap memory is left out: a full heap is normal for a JVM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from scipy.stats import theilslopes

from loadmanager.core.domain.policies import DEFAULT_DOMAIN
from loadmanager.core.model.load import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, DIRECT_MEMORY, FloatArray, IntArray
from loadmanager.history.files import DAY_MS, HOUR_MS
from loadmanager.history.table_schemas import KEYS
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.pipeline.attribution import BROKER_GONE, BROKER_REGISTERED, VALID_MS
from loadmanager.pipeline.costs import cost_models, known_cost, last_limits
from loadmanager.pipeline.datasets import METRICS, schema_of
from loadmanager.pipeline.forecast.models import MEDIAN, QUANTILES, quantiles_of, shrink
from loadmanager.pipeline.minimum_history import KNOWN_HOUR_S, hourly, whole_days
from loadmanager.pipeline.step import NoResult, Step

if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun

RATED = {
    "cpu": CPU,
    "direct_memory": DIRECT_MEMORY,
    "bandwidth_in": BANDWIDTH_IN,
    "bandwidth_out": BANDWIDTH_OUT,
}
"""Resources that can run out, in the order of the columns of all arrays, with their columns in a cost model."""

FEWEST_DAYS_FOR_TREND = 14
_INTERVAL = QUANTILES[2] - QUANTILES[0]
_WEEK, _THURSDAY = 7, 3
_ROUNDING = 1e-9
"""Fraction of a broker that is rounded down."""


def _write_capacity(run: JobRun) -> None:
    reports = run.read("clean_broker_reports")
    run.write("cost_models", cost_models(reports))
    run.require_days()
    by_hour = by_hour_of(hourly(run.read("broker_windows"))).orderBy("start_ms").toPandas()
    there = registered(reports, run.read("fleet_events"), run.summary.to_ms or 0)
    brokers = there.join(last_limits(reports), "broker", "left").orderBy("broker").toPandas()
    cost = known_cost(run.read_rows("cost_models"))
    run.write("capacity", plan(by_hour, brokers, run.job.days, run.job.headroom, cost, run.recorded.domains))


def registered(broker_reports: DataFrame, events: DataFrame, end_ms: int) -> DataFrame:
    """Return each `broker` that is registered at `end_ms`: its latest event is a report or a registration.

    A broker that was silent for twice the validity of a report counts as gone.
    """
    is_there = f.when(f.col("kind") == BROKER_GONE, 0).otherwise(1).alias("is_there")
    changes = events.where(f.col("kind").isin(BROKER_GONE, BROKER_REGISTERED))
    seen = broker_reports.select(*KEYS, "broker", f.lit(1).alias("is_there")).unionByName(
        changes.select(*KEYS, f.col("subject").alias("broker"), is_there)
    )
    last = f.max(f.struct(*KEYS, "is_there")).alias("last")
    lately = (f.col("last.at_ms") >= end_ms - 2 * VALID_MS) & (f.col("last.is_there") == 1)
    return seen.where(f.col("at_ms") < end_ms).groupBy("broker").agg(last).where(lately).select("broker")


STEP = Step(
    "capacity",
    _write_capacity,
    reads=("clean_broker_reports", "fleet_events", "broker_windows"),
    writes=("cost_models", "capacity"),
)


@dataclass(frozen=True, slots=True, eq=False)
class BrokerRoom:
    """Room for load on each registered broker: `room` (brokers, 4); `domains` (brokers,) is empty without any."""

    room: FloatArray
    domains: tuple[str, ...] = ()

    @classmethod
    def of(cls, limits: FloatArray, base: FloatArray, headroom: float, domains: Sequence[str] = ()) -> BrokerRoom:
        """`limits` (brokers, 4) are NaN where unknown; a resource without any known limit does not run out."""
        known = pd.DataFrame(limits)
        full = known.fillna(known.mean()).fillna(np.inf).to_numpy()
        return cls(np.maximum((1 - headroom) * full - base, 0), tuple(domains))

    def without_one(self, groups: Sequence[int] | Sequence[str]) -> FloatArray:
        """Return the least room (4,) that is left without any one of the `groups` (brokers,)."""
        _, of = np.unique(groups, return_inverse=True)
        own = np.zeros((int(of.max()) + 1, self.room.shape[1]))
        np.add.at(own, of, _finite(self.room))
        return np.asarray(self.room.sum(axis=0) - own.max(axis=0))


class Need(NamedTuple):
    """Brokers that a demand needs (None: no number is enough), and whether the registered ones are enough."""

    needed: int | None
    needed_n1: int | None
    needed_domain: int | None
    resource_first: str
    used: float | None
    fits: bool
    fits_n1: bool
    fits_domain: bool | None


def need(demand: FloatArray, fleet: BrokerRoom) -> Need:
    """Compare the `demand` (4,) of the cluster with the fleet.

    Needed brokers are like the median one, and spread evenly over the failure domains.
    """
    total, typical, domains = fleet.room.sum(axis=0), np.median(fleet.room, axis=0), len(set(fleet.domains))
    parts = _parts(demand, total)
    first, needed, brokers = int(np.argmax(parts)), _brokers(demand, typical), len(fleet.room)
    has_domains = domains > 1
    return Need(
        needed=needed,
        needed_n1=_brokers(demand + _finite(fleet.room.max(axis=0)), typical),
        needed_domain=math.ceil(needed * domains / (domains - 1)) if needed is not None and has_domains else None,
        resource_first=list(RATED)[first],
        used=float(parts[first]) if math.isfinite(parts[first]) else None,
        fits=_is_enough(demand, total),
        fits_n1=brokers > 1 and _is_enough(demand, fleet.without_one(range(brokers))),
        fits_domain=_is_enough(demand, fleet.without_one(fleet.domains)) if has_domains else None,
    )


def _parts(demand: FloatArray, room: FloatArray) -> FloatArray:
    """Return the part (4,) of the room that the demand takes; infinite where there is none."""
    return np.divide(demand, room, out=np.where(demand > 0, np.inf, 0.0), where=(demand > 0) & (room > 0))


def _brokers(demand: FloatArray, each: FloatArray) -> int | None:
    most = float(_parts(demand, each).max())
    return max(1, math.ceil(most - _ROUNDING)) if math.isfinite(most) else None


def _finite(room: FloatArray) -> FloatArray:
    return np.where(np.isfinite(room), room, 0.0)


def _is_enough(demand: FloatArray, room: FloatArray) -> bool:
    return bool(np.all(demand <= room * (1 + _ROUNDING)))


def daily_peaks(hours: IntArray, demand: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the whole days (n,), and the demand (n, 4) of the busiest hour of each.

    Days and known `hours` (m,) count from 1970; `demand` is (m, 4).
    """
    days = whole_days(hours)
    return days, pd.DataFrame(demand).groupby(hours // 24).max().loc[days].to_numpy()


def project(days: IntArray, peaks: FloatArray, ahead: IntArray) -> FloatArray:
    """Return the `QUANTILES` (3, n) of the peaks of the days `ahead`, from the peaks (m,) of `days`."""
    middle, level = float(np.median(days)), float(np.median(peaks))
    slopes = _slopes(days, peaks)
    off = peaks - (level + slopes[MEDIAN] * (days - middle))
    spread = _by_weekday(days, off)[:, (ahead + _THURSDAY) % _WEEK]
    lines = level + np.multiply.outer(slopes, ahead - middle)
    return np.asarray(np.maximum(lines + spread, 0))


def _slopes(days: IntArray, peaks: FloatArray) -> FloatArray:
    """Return the slope per day (3,): the low end of the interval, the median, the high end."""
    if len(days) < FEWEST_DAYS_FOR_TREND:
        return np.zeros(3)
    found = theilslopes(peaks, days, _INTERVAL)
    low, high = float(found.low_slope), float(found.high_slope)
    median = float(found.slope) if low > 0 or high < 0 else 0.0
    return np.array([low, median, high])


def _by_weekday(days: IntArray, off: FloatArray) -> FloatArray:
    """Return quantiles (3, 7) by day of the week from Monday, shrunk towards those of all days."""
    everything, _ = quantiles_of(off[np.newaxis])
    weekday = (days + _THURSDAY) % _WEEK
    apart = np.full((_WEEK, len(off)), np.nan)
    apart[weekday, np.arange(len(off))] = off
    return shrink(*quantiles_of(apart), everything)


def by_hour_of(windows: DataFrame) -> DataFrame:
    """Sum up the load and the topics of the cluster by known hours.

    A broker counts for the part of the known time in which it was there.
    """
    there_s = f.col("covered_s")
    columns = {metric: f"mean_{metric}" for metric in METRICS} | {"topics": "topics"}
    by_hour = windows.groupBy("start_ms").agg(
        f.max(there_s).alias("covered_s"),
        *(
            (f.coalesce(f.sum(f.col(column) * there_s), f.lit(0.0)) / f.max(there_s)).alias(name)
            for name, column in columns.items()
        ),
    )
    return by_hour.where(f.col("covered_s") >= KNOWN_HOUR_S)


def plan(
    by_hour: pd.DataFrame,
    brokers: pd.DataFrame,
    ahead_days: int,
    headroom: float,
    cost: CostModel,
    domains: Mapping[str, str],
) -> pd.DataFrame:
    """Make the rows of `capacity` from the rows of `by_hour_of`, by time, and the limits of the registered brokers.

    `domains` is the failure domain of each broker; brokers without one share one more domain.
    """
    if brokers.empty:
        raise NoResult("no broker was registered at the end of the range")
    limits = brokers[[f"{name}_limit" for name in RATED]].to_numpy(dtype=np.float64)
    unknown = [name for name, each in zip(RATED, limits.T, strict=True) if np.isnan(each).all()]
    if len(unknown) == len(RATED):
        raise NoResult("no limit of any registered broker is known")
    base = np.array([cost.base[column] for column in RATED.values()])
    own = [domains.get(broker, DEFAULT_DOMAIN) for broker in brokers["broker"]] if domains else []
    fleet = BrokerRoom.of(limits, base, headroom, own)
    hours = (by_hour["start_ms"].to_numpy(dtype=np.int64) // HOUR_MS).astype(np.int64)
    demand = cost.demand(by_hour[list(METRICS)].to_numpy(dtype=float), by_hour["topics"].to_numpy(dtype=float))
    days, peaks = daily_peaks(hours, demand[:, list(RATED.values())])
    ahead = hours[-1] // 24 + 1 + np.arange(ahead_days)
    forecast = np.stack([project(days, peaks[:, column], ahead) for column in range(len(RATED))], axis=-1)
    parts = [
        _rows(ahead, [need(each, fleet) for each in demands]).assign(quantile=quantile)
        for quantile, demands in zip(QUANTILES, forecast, strict=True)
    ]
    basis = _basis(len(days), unknown)
    rows = pd.concat(parts).assign(have=len(fleet.room), headroom=headroom, basis=basis)
    counts = dict.fromkeys(("needed", "needed_n1", "needed_domain"), "Int64")
    return rows[schema_of("capacity").names].astype(counts)


def _basis(days: int, unknown: Sequence[str]) -> str:
    """Describe the basis of the numbers."""
    trend = "with their trend" if days >= FEWEST_DAYS_FOR_TREND else f"no trend (it takes {FEWEST_DAYS_FOR_TREND} days)"
    without = f", without {', '.join(unknown)} (no limit known)" if unknown else ""
    return f"{days} whole days, {trend}, by the cost model{without}"


def _rows(days: IntArray, needs: Sequence[Need]) -> pd.DataFrame:
    """Return a row for each day, with the first day on which the registered brokers are not enough."""
    names = pd.to_datetime(days, unit="D").strftime("%Y-%m-%d")
    rows = pd.DataFrame(needs, columns=Need._fields, dtype=object).assign(day=names, start_ms=days * DAY_MS)
    for loss in ("", "_n1", "_domain"):
        exhausted = rows.loc[rows[f"fits{loss}"].isin([False]), "day"]
        rows[f"exhausted_on{loss}"] = exhausted.iloc[0] if len(exhausted) else None
    return rows
