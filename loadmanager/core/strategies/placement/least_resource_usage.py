"""LeastResourceUsageWithWeight: a random broker among those well below the average usage.

Source: Pulsar's LeastResourceUsageWithWeight of the modular load manager. A broker's usage is an exponential moving
average of its weighted maximum, with weight `history` for the past; it restarts at the current usage while the broker
has no bundles or no messages. The candidates at or below the mean of all candidates minus the difference threshold are
drawn from; all of them if there is none. The state holds the moving averages: `{"usage": {broker: [incarnation,
fraction]}}`.

As in Pulsar, averages advance with each choice among their brokers, not with time. So with a burst of lookups they
follow the current usage. A placed bundle counts in its broker's usage only once it is reported.

Differs from Pulsar: a re-registered broker starts with its first usage, as a new one; random numbers come from the
generator passed in; an average that is NaN is dropped at once. Pulsar keeps it while the broker is busy, and then no
broker counts as below the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.plan import Figure
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State, draw

_NOTHING = (None, np.nan)
"""Memory of a new broker."""

THRESHOLD = KEYS["average_resource_usage_difference_threshold_percentage"]


class ResourceUsageReason(Reason):
    RESOURCE_USAGE_BELOW_AVERAGE = entry(
        "Placed on {broker}: usage {usage_percent} % is at most average {average_percent} %"
        f" - {{{THRESHOLD}}} %; {{equals}} of {{candidates}} candidates qualified ({THRESHOLD})"
    )
    RESOURCE_USAGE_NEAR_AVERAGE = entry(
        "Placed on {broker} at random: none of {candidates} candidates is at most average"
        f" {{average_percent}} % - {{{THRESHOLD}}} % ({THRESHOLD})"
    )


@dataclass(frozen=True, slots=True)
class LeastResourceUsageWithWeight:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle  # only the brokers' usage is compared
        snapshot = projection.snapshot
        remembered = restore_averages(snapshot, state)
        if not len(candidates):
            following = remember_averages(snapshot, remembered) if "usage" in state else state
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, following)
        averages = self._advance(candidates, snapshot, remembered)
        following = remember_averages(snapshot, averages)
        return choose(candidates, averages[candidates], candidates, self.settings, following, rng)

    def _advance(self, candidates: Rows, snapshot: Snapshot, remembered: FloatArray) -> FloatArray:
        """Return the moving averages (M,) after one more sample of the candidates' usage."""
        usage = usage_per_broker(snapshot, self.settings.resource_weights)[candidates]
        history = self.settings.history_resource_percentage
        with np.errstate(invalid="ignore"):
            averaged = remembered[candidates] * history + (1 - history) * usage
        starts = np.isnan(remembered[candidates]) | _idle(snapshot)[candidates]
        averages = remembered.copy()
        averages[candidates] = np.where(starts, usage, averaged)
        return averages


def choose(
    known: Rows,
    usage: FloatArray,
    candidates: Rows,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
) -> Placement:
    """Choose one of the `known` candidates with usage (k,; fractions) well below the mean, else any candidate.

    The usage is summed sequentially, not pairwise, so that the mean is the same everywhere.
    """
    threshold_percentage = settings.average_resource_usage_difference_threshold_percentage
    mean = float(np.cumsum(usage)[-1]) / len(usage) if len(usage) else float("nan")
    with np.errstate(invalid="ignore"):
        best = known[usage + threshold_percentage / 100 <= mean]
    why: dict[str, Figure] = {
        "average_percent": mean * 100,
        THRESHOLD: threshold_percentage,
        "candidates": len(candidates),
        "equals": len(best) or len(candidates),
    }
    if not len(best):
        return Placement(draw(candidates, rng), candidates, ResourceUsageReason.RESOURCE_USAGE_NEAR_AVERAGE, why, state)
    broker = draw(best, rng)
    why["usage_percent"] = float(usage[known == broker][0]) * 100
    return Placement(broker, best, ResourceUsageReason.RESOURCE_USAGE_BELOW_AVERAGE, why, state)


def _idle(snapshot: Snapshot) -> BoolArray:
    """Return a mask of brokers whose usage does not reflect bundles: without any, or without messages."""
    load = snapshot.brokers.load
    silent = (load[:, MSG_RATE_IN] == 0) & (load[:, MSG_RATE_OUT] == 0)
    return np.asarray((snapshot.brokers.bundle_count == 0) | silent)


def _incarnations(snapshot: Snapshot) -> list[int]:
    return snapshot.derive("incarnations", lambda: [each.incarnation for each in snapshot.brokers.registrations])


def restore_averages(snapshot: Snapshot, state: State) -> FloatArray:
    """Return each broker's moving average (M,), NaN for a new or re-registered one."""
    remembered = state.get("usage", {})
    pairs = [remembered.get(broker, _NOTHING) for broker in snapshot.brokers.ids]
    averages = np.array([average for _, average in pairs], dtype=np.float64)
    changed = [pair[0] != incarnation for pair, incarnation in zip(pairs, _incarnations(snapshot), strict=True)]
    averages[np.array(changed, dtype=bool)] = np.nan
    return averages


def remember_averages(snapshot: Snapshot, averages: FloatArray) -> State:
    """Return the state that holds the known averages of (M,)."""
    pairs = map(list, zip(_incarnations(snapshot), averages.tolist(), strict=True))
    known = np.isfinite(averages).tolist()
    return {"usage": dict(compress(zip(snapshot.brokers.ids, pairs, strict=True), known))}
