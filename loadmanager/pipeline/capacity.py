"""How many brokers the next days need, and when those that are there run out, of what.

What the cluster uses in its busiest hour of each day is carried into the days to come: a median slope (Theil and Sen),
with its 80 % interval for the outer quantiles, and around it the quantiles of what was above and below so far, by day
of the week. A slope that may as well be none is none, for the median. Hours are means: what happens within one is for
the headroom, as is load that is not spread evenly.

By a cost model what is used follows from the load of the cluster, with what an idle broker uses on top of it for each
broker. Without one it is what brokers reported, and grows as the load does. A broker whose limit of a resource is not
known is taken for an average one. Heap memory is not among the resources: a full heap is how a JVM looks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from scipy.stats import theilslopes

from loadmanager.core.load import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, DIRECT_MEMORY, FloatArray, IntArray
from loadmanager.core.policies import DEFAULT_DOMAIN
from loadmanager.errors import PipelineError
from loadmanager.history.files import DAY_MS, HOUR_MS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.enough import KNOWN_HOUR_S, whole_days
from loadmanager.pipeline.forecast.series import QUANTILES, drawn_towards, quantiles_of
from loadmanager.pipeline.hours import hourly
from loadmanager.pipeline.schemas import METRICS
from loadmanager.sim.cost import CostModel

RATED = {
    "cpu": CPU,
    "direct_memory": DIRECT_MEMORY,
    "bandwidth_in": BANDWIDTH_IN,
    "bandwidth_out": BANDWIDTH_OUT,
}
"""The resources that can run out, in the order of the columns of all arrays here, and their columns in a cost model."""

FEWEST_DAYS_FOR_TREND = 14
_INTERVAL = QUANTILES[2] - QUANTILES[0]
_WEEK, _THURSDAY = 7, 3
_MEDIAN = 1
_ROUNDING = 1e-9
"""So much of a broker more than a whole number of brokers is none."""

CAPACITY = schema_of("capacity")


@dataclass(frozen=True, slots=True)
class Aim:
    """For how many days, and which part of each broker is to stay free. Raises `PipelineError`."""

    days: int = 30
    headroom: float = 0.3

    def __post_init__(self) -> None:
        if self.days < 1:
            raise PipelineError(f"capacity: days {self.days}: expected 1 or more")
        if not 0 <= self.headroom < 1:
            raise PipelineError(f"capacity: headroom {self.headroom:g}: expected 0 or more, and less than 1")


@dataclass(frozen=True, slots=True, eq=False)
class BrokerRoom:
    """The brokers that are there: `room` (brokers, 4) is what load may use of each, `domains` (brokers,) where each is.

    Without failure domains `domains` is empty.
    """

    room: FloatArray
    domains: tuple[str, ...] = ()

    @classmethod
    def of(cls, limits: FloatArray, base: FloatArray, headroom: float, domains: Sequence[str] = ()) -> BrokerRoom:
        """`limits` (brokers, 4) are NaN where unknown; a resource of which none is known does not run out."""
        known = ~np.isnan(limits)
        count = known.sum(axis=0)
        mean = np.divide(np.where(known, limits, 0).sum(axis=0), count, out=np.full(len(base), np.inf), where=count > 0)
        full = np.where(known, limits, mean)
        return cls(np.maximum((1 - headroom) * full - base, 0), tuple(domains))

    @property
    def brokers(self) -> int:
        return len(self.room)

    def left(self) -> FloatArray:
        """(4,): all of it."""
        return np.asarray(self.room.sum(axis=0))

    def left_without_broker(self) -> FloatArray:
        """(4,): what is left at least of each resource without any one broker."""
        return self._without(np.arange(self.brokers))

    def left_without_domain(self) -> FloatArray | None:
        """(4,): the same without any one failure domain; None when there are fewer than two."""
        names, of = np.unique(self.domains, return_inverse=True)
        return self._without(of) if len(names) > 1 else None

    def domain_count(self) -> int:
        return len(set(self.domains))

    def _without(self, group: IntArray) -> FloatArray:
        """At least, without one of the groups, when each broker (brokers,) is in such a one."""
        own = np.zeros((int(group.max()) + 1, self.room.shape[1]))
        np.add.at(own, group, _finite(self.room))
        return np.asarray(self.left() - own.max(axis=0))


@dataclass(frozen=True, slots=True)
class Need:
    """How many brokers a demand needs, and whether those that are there will do; None: no number does, no domains."""

    needed: int | None
    needed_n1: int | None
    needed_domain: int | None
    resource_first: str
    used: float | None
    fits: bool
    fits_n1: bool
    fits_domain: bool | None


def need(demand: FloatArray, fleet: BrokerRoom) -> Need:
    """`demand` (4,) of the cluster, in the units of the fleet's room; needed are brokers like the median one, spread
    evenly over the failure domains.
    """
    left, typical, domains = fleet.left(), np.median(fleet.room, axis=0), fleet.domain_count()
    parts = [_part(*each) for each in zip(demand.tolist(), left.tolist(), strict=True)]
    first = int(np.argmax(parts))
    needed = _brokers(demand, typical)
    without_domain = fleet.left_without_domain()
    return Need(
        needed=needed,
        needed_n1=_brokers(demand + _finite(fleet.room.max(axis=0)), typical),
        needed_domain=math.ceil(needed * domains / (domains - 1)) if needed is not None and domains > 1 else None,
        resource_first=list(RATED)[first],
        used=parts[first] if math.isfinite(parts[first]) else None,
        fits=_will_do(demand, left),
        fits_n1=fleet.brokers > 1 and _will_do(demand, fleet.left_without_broker()),
        fits_domain=None if without_domain is None else _will_do(demand, without_domain),
    )


def _part(demand: float, total: float) -> float:
    if demand <= 0 or math.isinf(total):
        return 0.0
    return demand / total if total > 0 else math.inf


def _brokers(demand: FloatArray, each: FloatArray) -> int | None:
    parts = [_part(*pair) for pair in zip(demand.tolist(), each.tolist(), strict=True)]
    most = max(parts)
    return max(1, math.ceil(most - _ROUNDING)) if math.isfinite(most) else None


def _finite(room: FloatArray) -> FloatArray:
    return np.where(np.isfinite(room), room, 0.0)


def _will_do(demand: FloatArray, room: FloatArray) -> bool:
    return bool(np.all(demand <= room * (1 + _ROUNDING)))


def daily_peaks(hours: IntArray, demand: FloatArray) -> tuple[IntArray, FloatArray]:
    """The whole days (n,) and what was used in the busiest hour of each, by resource (n, 4).

    Days and the known `hours` (m,) are counted from 1970, `demand` is (m, 4).
    """
    days = whole_days(hours)
    peaks = np.zeros((len(days), demand.shape[1]))
    of = np.searchsorted(days, hours // 24)
    inside = np.isin(hours // 24, days)
    np.maximum.at(peaks, of[inside], demand[inside])
    return days, peaks


def project(days: IntArray, peaks: FloatArray, ahead: IntArray) -> FloatArray:
    """(3, n): the `QUANTILES` of a peak on these days to come, from those (m,) of days that were."""
    middle, level = float(np.median(days)), float(np.median(peaks))
    slopes = _slopes(days, peaks)
    off = peaks - (level + slopes[_MEDIAN] * (days - middle))
    spread = _by_weekday(days, off)[:, (ahead + _THURSDAY) % _WEEK]
    lines = level + np.multiply.outer(slopes, ahead - middle)
    return np.asarray(np.maximum(lines + spread, 0))


def _slopes(days: IntArray, peaks: FloatArray) -> FloatArray:
    """(3,) per day: the low end of the interval, the median, the high end."""
    if len(days) < FEWEST_DAYS_FOR_TREND:
        return np.zeros(3)
    found = theilslopes(peaks, days, _INTERVAL)
    low, high = float(found.low_slope), float(found.high_slope)
    median = float(found.slope) if low > 0 or high < 0 else 0.0
    return np.array([low, median, high])


def _by_weekday(days: IntArray, off: FloatArray) -> FloatArray:
    """(3, 7) quantiles by the day of the week, drawn to those of all days; Monday is the first."""
    everything, _ = quantiles_of(off[np.newaxis])
    weekday = (days + _THURSDAY) % _WEEK
    apart = np.full((_WEEK, len(off)), np.nan)
    apart[weekday, np.arange(len(off))] = off
    return drawn_towards(*quantiles_of(apart), everything)


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows of `CAPACITY`; without any, `why`."""

    rows: pd.DataFrame
    why: str = ""

    @classmethod
    def nothing(cls, why: str) -> Planned:
        return cls(pd.DataFrame([], columns=CAPACITY.names), why)


def capacity(
    broker_windows: DataFrame,
    broker_reports: DataFrame,
    there: DataFrame,
    aim: Aim,
    cost: CostModel | None = None,
    domains: Mapping[str, str] | None = None,
) -> Planned:
    """From `broker_windows` (their windows of 1 h), `clean_broker_reports` (for the brokers' limits) and each `broker`
    that is `there`, as `standing.registered` says.

    `domains` is the failure domain of each broker; those it does not name are together in one more.
    """
    limits = broker_reports.groupBy("broker").agg(
        *(f.max_by(_limit(name), "at_ms").alias(f"{name}_limit") for name in RATED)
    )
    by_hour = by_hour_of(hourly(broker_windows).join(limits, "broker", "left")).orderBy("start_ms").toPandas()
    brokers = there.join(limits, "broker", "left").orderBy("broker").toPandas()
    return plan(by_hour, brokers, aim, cost, domains or {})


def by_hour_of(used: DataFrame) -> DataFrame:
    """Of the cluster, by hours that are known: load, topics, and by resource what is used and of how many brokers that
    is known. A broker counts for the part of the known time that it was there.
    """
    there_s = f.col("covered_s")

    def mean(value: Column) -> Column:
        return f.coalesce(f.sum(value * there_s), f.lit(0.0)) / f.max(there_s)

    resources: list[Column] = []
    for name in RATED:
        usage = f.col(f"mean_{name}") * f.col(f"{name}_limit")
        resources += [mean(usage).alias(name), mean(f.when(usage.isNotNull(), 1.0)).alias(f"{name}_known")]
    by_hour = used.groupBy("start_ms").agg(
        f.max(there_s).alias("covered_s"),
        *(mean(f.col(f"mean_{metric}")).alias(metric) for metric in METRICS),
        mean(f.col("topics")).alias("topics"),
        mean(f.lit(1.0)).alias("brokers"),
        *resources,
    )
    return by_hour.where(f.col("covered_s") >= KNOWN_HOUR_S)


def _limit(name: str) -> Column:
    """Null where it is not known."""
    limit = f.col(f"{name}_limit")
    return f.when(limit > 0, limit)


def plan(
    by_hour: pd.DataFrame, brokers: pd.DataFrame, aim: Aim, cost: CostModel | None, domains: Mapping[str, str]
) -> Planned:
    """From the rows of `by_hour_of`, by time, of a history that is long enough, and of the brokers that are there with
    their limits.
    """
    hours = (by_hour["start_ms"].to_numpy(dtype=np.int64) // HOUR_MS).astype(np.int64)
    if brokers.empty:
        return Planned.nothing("no broker was registered at the end of the range")
    limits = brokers[[f"{name}_limit" for name in RATED]].to_numpy(dtype=np.float64)
    unknown = [name for name, each in zip(RATED, limits.T, strict=True) if np.isnan(each).all()]
    if len(unknown) == len(RATED):
        return Planned.nothing("no broker says what it may use: no limit is known")
    base = np.array([0.0 if cost is None else cost.base[column] for column in RATED.values()])
    own = [domains.get(broker, DEFAULT_DOMAIN) for broker in brokers["broker"]] if domains else []
    fleet = BrokerRoom.of(limits, base, aim.headroom, own)
    demand = reported_demand(by_hour) if cost is None else cost_of(cost, by_hour)
    days, peaks = daily_peaks(hours, demand)
    ahead = hours[-1] // 24 + 1 + np.arange(aim.days)
    forecast = np.stack([project(days, peaks[:, column], ahead) for column in range(len(RATED))], axis=-1)
    basis = _basis(len(days), unknown, by_cost=cost is not None)
    found = [
        row
        for quantile, demands in zip(QUANTILES, forecast, strict=True)
        for row in _rows(quantile, ahead, [need(each, fleet) for each in demands], fleet, aim, basis)
    ]
    counts = dict.fromkeys(("needed", "needed_n1", "needed_domain"), "Int64")
    return Planned(pd.DataFrame(found, columns=CAPACITY.names).astype(counts))


def cost_of(cost: CostModel, by_hour: pd.DataFrame) -> FloatArray:
    """(hours, 4): what the load of the cluster costs."""
    load = by_hour[list(METRICS)].to_numpy(dtype=np.float64)
    return cost.demand(load, by_hour["topics"].to_numpy(dtype=np.float64))[:, list(RATED.values())]


def reported_demand(by_hour: pd.DataFrame) -> FloatArray:
    """(hours, 4): what brokers said they use; those with unknown limits use as much as the average of the others."""
    brokers = by_hour["brokers"].to_numpy(dtype=np.float64)
    found = []
    for name in RATED:
        used, known = (by_hour[column].to_numpy(dtype=np.float64) for column in (name, f"{name}_known"))
        found.append(used * np.divide(brokers, known, out=np.zeros_like(brokers), where=known > 0))
    return np.stack(found, axis=1)


def _basis(days: int, unknown: Sequence[str], *, by_cost: bool) -> str:
    """What the numbers rest on, for the reader."""
    known = f"{days} whole days"
    trend = "with their trend" if days >= FEWEST_DAYS_FOR_TREND else f"no trend (it takes {FEWEST_DAYS_FOR_TREND} days)"
    without = f", without {', '.join(unknown)} (no limit known)" if unknown else ""
    return f"{known}, {trend}, {'by the cost model' if by_cost else 'usage in proportion to load'}{without}"


def _rows(
    quantile: float, days: IntArray, needs: Sequence[Need], fleet: BrokerRoom, aim: Aim, basis: str
) -> list[tuple[object, ...]]:
    names = [datetime.fromtimestamp(day * DAY_MS / 1000, tz=UTC).date().isoformat() for day in days.tolist()]
    first = [
        next((name for name, each in zip(names, needs, strict=True) if getattr(each, fits) is False), None)
        for fits in ("fits", "fits_n1", "fits_domain")
    ]
    return [
        (
            name,
            day * DAY_MS,
            quantile,
            each.needed,
            each.needed_n1,
            each.needed_domain,
            fleet.brokers,
            each.resource_first,
            each.used,
            each.fits,
            each.fits_n1,
            each.fits_domain,
            *first,
            aim.headroom,
            basis,
        )
        for name, day, each in zip(names, days.tolist(), needs, strict=True)
    ]
