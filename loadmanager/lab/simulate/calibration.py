"""Calibration of a simulated fleet by the reports and moves of a recorded one.

    parameter                         estimated from
    --------------------------------  ---------------------------------------------------------------------------------
    measuring interval of brokers     the 10th percentile of the times between two reports of a broker
    change that makes a report due    the 5th percentile of the changes between two reports of the same bundles
    interruption by an unload         the median duration of the moves
    times of shedding rounds          the first round, and the elections of leaders: a round follows an interval later
    usage above 100 % is reported     the highest usage
    usage lags behind the load        the fit of usage to the load of the broker's previous report and of the same one
    cost of load                      usage and load in all reports (`core.strategies.level.cost_fit`)

A parameter without enough data keeps the default of a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import RESOURCES, BoolArray, FloatArray, IntArray, weighted_max_usage
from loadmanager.core.strategies.level.cost_fit import fit_price
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules

_ENOUGH = 20
"""Minimum number of reports, or of pairs of reports, for an estimate."""
_DEFAULT = WorldRules()
_LONGEST_S, _SHORTEST_S = _DEFAULT.stats_interval_s, 1.0
_ABOVE = 1.001
"""Usage above this multiple of the limit is not a rounding error."""
_STEADY = 0.1
"""Relative change up to which the load of a broker counts as unchanged."""
_OFTEN, _SMALL = 10, 5
"""Percentiles: of the times between reports, and of the changes between them."""


@dataclass(frozen=True, slots=True, eq=False)
class ReportSeries:
    """Reports (n,) in order: time in seconds since the start of the range, broker number, load (n, 4), topics and
    bundles (n,), usage and limits of each resource (n, 5).
    """

    at_s: FloatArray
    broker: IntArray
    load: FloatArray
    topics: IntArray
    bundles: IntArray
    used: FloatArray
    limits: FloatArray


@dataclass(frozen=True, slots=True)
class FleetCalibration:
    """Calibration, in seconds and percent. `elections_s` are those after the start; `first_round_s` None: default."""

    stats_interval_s: float = _DEFAULT.stats_interval_s
    report_threshold_percent: float = _DEFAULT.report_threshold_percent
    unload_s: float = _DEFAULT.unload_s
    reports_at_most_limit: bool = _DEFAULT.reports_at_most_limit
    host_usage_lags: bool = _DEFAULT.host_usage_lags
    first_round_s: float | None = None
    elections_s: tuple[float, ...] = ()
    cost: CostModel = field(default_factory=CostModel)

    def applied_to(self, rules: WorldRules) -> WorldRules:
        """Return the rules of a world with this calibration."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name in WorldRules.model_fields}
        return rules.model_copy(update={**known, "report_check_s": min(rules.report_check_s, self.stats_interval_s)})

    @property
    def lag_s(self) -> float:
        """Mean age of a load when the leader reads its report."""
        return (
            self.stats_interval_s + min(_DEFAULT.report_check_s, self.stats_interval_s)
        ) / 2 + _DEFAULT.report_delay_s


def calibrate(
    reported: ReportSeries,
    settings: PlannerSettings,
    *,
    unloads_s: Sequence[float] = (),
    rounds_s: Sequence[float] = (),
    elections_s: Sequence[float] = (),
) -> FleetCalibration:
    """Calibrate by these reports, the durations of unloads, and the times of rounds and elections."""
    before, after = _pairs(reported)
    gaps_s = reported.at_s[after] - reported.at_s[before]
    default = FleetCalibration()
    interval_s, threshold = default.stats_interval_s, default.report_threshold_percent
    if len(gaps_s) >= _ENOUGH:
        interval_s = float(np.clip(np.percentile(gaps_s, _OFTEN), _SHORTEST_S, _LONGEST_S))
    changes = np.array(list(_changes(reported, settings, before, after)))
    if len(changes) >= _ENOUGH:
        threshold = min(float(np.percentile(changes, _SMALL)), threshold)
    at_most_limit = not bool((reported.used > reported.limits * _ABOVE)[reported.limits > 0].any())
    cost = fitted_cost(reported)
    return FleetCalibration(
        interval_s,
        threshold,
        float(np.median(unloads_s)) if len(unloads_s) else default.unload_s,
        at_most_limit,
        _lags(reported, cost),
        min((at_s for at_s in rounds_s if at_s > 0), default=None),
        tuple(at_s for at_s in elections_s if at_s > 0),
        cost,
    )


def fitted_cost(reported: ReportSeries) -> CostModel:
    """Fit the cost model to these reports; a resource without enough reports keeps the default."""
    default = CostModel()
    base, coefficients = list(default.base), list(default.coefficients)
    loaded = (reported.load.sum(axis=1) > 0) & _is_steady(reported)
    for resource in range(RESOURCES):
        known = loaded & (reported.limits[:, resource] > 0) & (reported.used[:, resource] > 0)
        if np.count_nonzero(known) < _ENOUGH:
            continue
        price = fit_price(resource, reported.load[known], reported.used[known, resource])
        base[resource] = price.idle
        coefficients[resource] = (*price.per_unit.tolist(), 0.0)
    return CostModel(base=tuple(base), coefficients=tuple(coefficients))


def _is_steady(reported: ReportSeries) -> BoolArray:
    """Return a mask (n,) of reports with nearly the same load as the broker's previous report.

    A host's usage is measured at other times than its load, so the two correspond only in these reports.
    """
    before, after = _pairs(reported)
    load = reported.load.sum(axis=1)
    steady = np.zeros(len(load), dtype=bool)
    steady[after] = np.abs(load[after] - load[before]) <= _STEADY * load[before]
    return steady


def _lags(reported: ReportSeries, cost: CostModel) -> bool:
    """Return True if the usage of the most used resource follows the load of the previous report."""
    before, after = _pairs(reported)
    changed = ~_is_steady(reported)[after]
    before, after = before[changed], after[changed]
    if len(after) < _ENOUGH:
        return False
    used = np.divide(reported.used, reported.limits, out=np.zeros_like(reported.used), where=reported.limits > 0)
    resource = int(np.argmax(used.sum(axis=0)))
    expected = cost.demand_of(resource, reported.load, reported.topics) + cost.base[resource]
    off_now, off_before = (np.abs(reported.used[after, resource] - expected[rows]).sum() for rows in (after, before))
    return bool(off_before < off_now)


def _pairs(reported: ReportSeries) -> tuple[IntArray, IntArray]:
    """Return the rows of consecutive reports of a broker that are less than the maximum report interval apart."""
    order = np.lexsort((np.arange(len(reported.at_s)), reported.broker))
    before, after = order[:-1], order[1:]
    gaps_s = reported.at_s[after] - reported.at_s[before]
    kept = (reported.broker[before] == reported.broker[after]) & (gaps_s < _DEFAULT.report_max_interval_s)
    return before[kept], after[kept]


def _changes(reported: ReportSeries, settings: PlannerSettings, before: IntArray, after: IntArray) -> Iterator[float]:
    """Yield the largest change between two reports, in per cent, among the figures that make a report due."""
    limits = np.where(reported.limits > 0, reported.limits, np.inf)
    usage = weighted_max_usage((reported.used / limits * 100).astype(np.float32), settings.resource_weights) * 100
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        old, new = reported.load[one], reported.load[other]
        if reported.bundles[one] != reported.bundles[other] or not (old.sum() > 0 and new.sum() > 0):
            continue
        figures = ((old[:2].sum(), new[:2].sum()), (old[2:].sum(), new[2:].sum()))
        changes = [100 * abs(now - then) / then for then, now in figures if then > 0]
        yield max(*changes, abs(usage[other] - usage[one]), 0.0)
