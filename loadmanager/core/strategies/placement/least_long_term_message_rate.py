"""LeastLongTermMessageRate: the broker whose bundles have the lowest long-term message rate.

Source: Pulsar's LeastLongTermMessageRate. A broker's score is the long-term message rate, in and out, of the bundles it
reports, of those assigned to it since, and of those this plan assigns to it. A broker above the overload threshold has
no score; if none has one, every candidate is equal. Ties are broken at random. The bundle itself does not count.

Differs from Pulsar: bundles assigned to a broker count until it reports them, where Pulsar forgets them at the next
report of any broker; earlier choices of the same plan count; random numbers come from the generator passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State, draw


class LongTermRateReason(Reason):
    LEAST_LONG_TERM_MESSAGE_RATE = entry(
        "Placed because {broker} has the least long-term message rate, {msg_rate_per_s} messages/s, of {candidates}"
        " candidates"
    )


@dataclass(frozen=True, slots=True)
class LeastLongTermMessageRate:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle  # only what brokers carry is compared
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        load = projection.load
        planned = load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]
        key = ("long-term rates", self.settings.broker_overloaded_threshold_percentage, self.settings.resource_weights)
        known = projection.snapshot.derive(key, lambda: self._scores(projection.snapshot))
        scores = (known + planned)[candidates]
        least = np.fmin.reduce(scores, initial=np.inf)
        if least == np.inf:
            why = {"candidates": len(candidates), **self.settings.as_figures("broker_overloaded_threshold_percentage")}
            return Placement(draw(candidates, rng), candidates, PlacementReason.ALL_BROKERS_OVERLOADED, why, state)
        best = candidates[scores == least]
        why = {"msg_rate_per_s": float(least), "candidates": len(candidates), "equals": len(best)}
        return Placement(draw(best, rng), best, LongTermRateReason.LEAST_LONG_TERM_MESSAGE_RATE, why, state)

    def _scores(self, snapshot: Snapshot) -> FloatArray:
        """Return the scores (M,) before this plan, infinite for overloaded brokers."""
        brokers = snapshot.brokers
        given, long_term = brokers.preallocated, brokers.long_term((MSG_RATE_IN, MSG_RATE_OUT))
        rate = given[:, MSG_RATE_IN] + given[:, MSG_RATE_OUT] + (long_term[:, 0] + long_term[:, 1])
        usage = usage_per_broker(snapshot, self.settings.resource_weights)
        return np.where(usage > self.settings.broker_overloaded_threshold_percentage / 100, np.inf, rate)
