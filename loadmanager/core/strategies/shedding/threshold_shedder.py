"""ThresholdShedder: relieve every broker whose usage is well above the average.

Source: Pulsar's ThresholdShedder, with its lower-boundary mode. A broker's usage is its exponential moving average,
with weight `history` for the past. A broker at or above average + threshold sheds enough throughput to bring its usage
to average + threshold - 5 points, unless that is less than a minimum. If nothing was shed, the lower-boundary mode is
on, and some broker is below average - threshold, the most used broker sheds half a threshold's share of its throughput.
The state holds the moving averages: `{"usage": {broker: [incarnation, fraction]}}`.

Pulsar's rule has two weaknesses. It sheds a part of the throughput equal to the excess points of usage, which is too
little. It weighs bundles by averages over ten reports, which lag behind new load, so it moves too many. The broker
stays hot, or is emptied. `Level` avoids both.

Differs from Pulsar: a re-registered broker starts with its first usage, as a new one; equal bundles leave in the order
of their names, and of equally used brokers the first by name counts as the most used; a broker is skipped while a
bundle is leaving it or has left it since its report. As in Pulsar, the lower-boundary mode advances the moving averages
a second time.

Averages also restart at the current usage, unlike in Pulsar: before a round those of brokers above
`loadBalancerBrokerOverloadedThresholdPercentage`; after it those of its sources and destinations, and of brokers that
have not reported since a move. A slow average would delay the relief of an overloaded broker by several rounds, and
relieve a broker twice. A decision on a dump uses the averages of the dump; a dump of our own cluster omits those that
the next round resets.

A threshold without a configured value is multiplied by mean load / reference load, at most 1 (`core.model.fleet_load`).
Limits on churn may block moves that are decided here (`core.planning.churn`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.placement.least_resource_usage import remember_averages, restore_averages
from loadmanager.core.strategies.shedding.shedding_strategy import (
    MARGIN,
    MIB,
    Hot,
    Pick,
    Shed,
    State,
    least_points,
    relieve,
    throughput_per_broker,
)


class ThresholdReason(Reason):
    BROKER_ABOVE_AVERAGE = entry(
        "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below average"
        " {average_percent} % plus {=broker_threshold_shedder_percentage} %: need {need_mib_per_s} MiB/s"
    )
    LOWER_BOUNDARY = entry(
        "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is the highest and another"
        " broker's is below average {average_percent} % minus {=broker_threshold_shedder_percentage} %:"
        " need {need_mib_per_s} MiB/s"
    )
    CLUSTER_IDLE = entry("No move because the average usage of {brokers} brokers is 0")


@dataclass(frozen=True, slots=True)
class ThresholdShedder:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        averages = self._advance(snapshot, restore_averages(snapshot, state))
        mean = _mean(averages)
        if mean == 0:
            idle = Verdict("cluster", ThresholdReason.CLUSTER_IDLE, acted=False, why={"brokers": len(snapshot.brokers)})
            return Shed((), (idle,), remember_averages(snapshot, averages))
        hot, verdicts = self._find_hot(snapshot, averages, mean)
        picks, decided = relieve(snapshot, hot, ThresholdReason.BROKER_ABOVE_AVERAGE)
        verdicts |= {verdict.subject: verdict for verdict in decided}
        if not picks and self.settings.lower_boundary_shedding_enabled:
            averages = self._advance(snapshot, averages)
            picks, decided = self._shed_from_most_used(snapshot, averages)
            verdicts |= {verdict.subject: verdict for verdict in decided}
        return Shed(tuple(picks), tuple(verdicts.values()), remember_averages(snapshot, averages))

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        """Return points of averaged usage, which follows the usage; without the lower-boundary mode."""
        averages, threshold = self._advance(snapshot, restore_averages(snapshot, state)), self._threshold

        def is_reached(points: float) -> bool:
            raised = averages.copy()
            raised[broker] += points / 100
            return bool(raised[broker] >= _mean(raised) + threshold)

        return least_points(is_reached)

    def _advance(self, snapshot: Snapshot, previous: FloatArray) -> FloatArray:
        """Return the moving averages (M,) after one more sample of the usage."""
        usage = usage_per_broker(snapshot, self.settings.resource_weights)
        history = self.settings.history_resource_percentage
        return np.where(np.isnan(previous), usage, previous * history + (1 - history) * usage)

    @property
    def _threshold(self) -> float:
        return self.settings.broker_threshold_shedder_percentage / 100

    @property
    def _least_need(self) -> float:
        """Return the bytes/s below which a need is not worth a move."""
        return self.settings.bundle_unload_min_throughput_threshold * MIB

    def _find_hot(self, snapshot: Snapshot, averages: FloatArray, mean: float) -> tuple[list[Hot], dict[str, Verdict]]:
        threshold = self._threshold
        with np.errstate(all="ignore"):
            need = throughput_per_broker(snapshot) * (averages - mean - threshold + MARGIN)
        hot: list[Hot] = []
        verdicts: dict[str, Verdict] = {}
        for broker, bytes_per_s in enumerate(need.tolist()):
            why = self._why(averages[broker], mean)
            if averages[broker] < mean + threshold:
                refusal: Reason = SheddingReason.BELOW_THRESHOLD
            else:
                why |= self._why_need(bytes_per_s)
                is_below_minimum = bytes_per_s < self._least_need
                if not is_below_minimum:  # also NaN, as in Pulsar
                    hot.append(Hot(broker, bytes_per_s, why))
                    continue
                refusal = SheddingReason.NEED_BELOW_MINIMUM
            name = snapshot.brokers.ids[broker]
            verdicts[name] = Verdict(name, refusal, acted=False, why=why)
        return hot, verdicts

    def _shed_from_most_used(self, snapshot: Snapshot, averages: FloatArray) -> tuple[list[Pick], list[Verdict]]:
        """Apply the lower-boundary mode: shed only if a broker is far below the average and another can shed to it."""
        threshold, mean = self._threshold, _mean(averages)
        candidates = np.flatnonzero((snapshot.brokers.bundle_count > 1) & (averages > mean - threshold))
        if not len(candidates) or not np.any(averages < mean - threshold):
            return [], []
        broker = int(candidates[np.argmax(averages[candidates])])
        with np.errstate(all="ignore"):
            need = float(throughput_per_broker(snapshot)[broker] * threshold * 0.5)
        why = {**self._why(averages[broker], mean), **self._why_need(need)}
        if self._least_need > need:
            name = snapshot.brokers.ids[broker]
            return [], [Verdict(name, SheddingReason.NEED_BELOW_MINIMUM, acted=False, why=why)]
        return relieve(snapshot, [Hot(broker, need, why)], ThresholdReason.LOWER_BOUNDARY)

    def _why(self, average: float, mean: float) -> dict[str, Figure]:
        return {
            "usage_percent": float(average) * 100,
            "average_percent": mean * 100,
            **self.settings.as_figures("broker_threshold_shedder_percentage"),
        }

    def _why_need(self, bytes_per_s: float) -> dict[str, Figure]:
        minimum = self.settings.as_figures("bundle_unload_min_throughput_threshold")
        return {"need_mib_per_s": bytes_per_s / MIB, **minimum}


def _mean(averages: FloatArray) -> float:
    """Return the mean of (M,), 0 for none; summed sequentially, not pairwise, so that it is the same everywhere."""
    return float(np.cumsum(averages)[-1]) / len(averages) if len(averages) else 0.0


_NAME = ThresholdShedder.__name__


def before_round(state: State, snapshot: Snapshot, settings: PlannerSettings) -> State:
    """Return the strategies' memory at the start of a round, with the averages of overloaded brokers reset."""
    if _NAME not in state:
        return state
    overloaded = are_overloaded(usage_per_broker(snapshot, settings.resource_weights), settings)
    return reset_averages(state, {snapshot.brokers.ids[row] for row in np.flatnonzero(overloaded).tolist()})


def are_overloaded(usage: FloatArray, settings: PlannerSettings) -> BoolArray:
    """Return a mask of usages (fractions) that are too high to wait for an average."""
    return usage * 100 > settings.broker_overloaded_threshold_percentage


def after_round(state: State, plan: Plan, snapshot: Snapshot) -> State:
    """Return the strategies' memory after a round, with the averages of sources and destinations reset."""
    if _NAME not in state:
        return state
    brokers = snapshot.brokers
    waiting = ~brokers.settled | (brokers.preallocated != 0).any(axis=1)
    moving = {brokers.ids[row] for row in np.flatnonzero(waiting).tolist()}
    for step in plan.steps:
        if isinstance(step, Unload):
            moving.add(step.source.broker)
        if step.destination is not None:
            moving.add(step.destination.broker)
    return reset_averages(state, moving)


def reset_averages(state: State, brokers: AbstractSet[str]) -> State:
    """Return the strategies' memory without the averages of these brokers."""
    usage = state.get(_NAME, {}).get("usage", {})
    if brokers.isdisjoint(usage):
        return state
    return {**state, _NAME: {"usage": {broker: entry for broker, entry in usage.items() if broker not in brokers}}}
