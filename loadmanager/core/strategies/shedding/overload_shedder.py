"""OverloadShedder: relieve every broker whose usage has reached the overload threshold.

Source: Pulsar's OverloadShedder. A broker at or above the threshold sheds enough throughput to bring its usage
5 points below the threshold. It is stateless.

Differs from Pulsar: bundles of equal throughput leave in the order of their names; a broker is skipped while a bundle
is leaving it or has left it since its report.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.shedding.shedding_strategy import (
    MARGIN,
    MIB,
    Hot,
    Shed,
    State,
    relieve,
    throughput_per_broker,
)


class OverloadReason(Reason):
    BROKER_OVERLOADED = entry(
        "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below"
        " {=broker_overloaded_threshold_percentage} %: need {need_mib_per_s} MiB/s"
    )


@dataclass(frozen=True, slots=True)
class OverloadShedder:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        threshold = self.settings.broker_overloaded_threshold_percentage / 100
        limit = self.settings.as_figures("broker_overloaded_threshold_percentage")
        usage = usage_per_broker(snapshot, self.settings.resource_weights)
        with np.errstate(all="ignore"):
            need = throughput_per_broker(snapshot) * (usage - threshold + MARGIN)
        hot, verdicts = [], []
        for broker, (used, bytes_per_s) in enumerate(zip(usage.tolist(), need.tolist(), strict=True)):
            why = {"usage_percent": used * 100, **limit}
            if used >= threshold:
                hot.append(Hot(broker, bytes_per_s, {**why, "need_mib_per_s": bytes_per_s / MIB}))
            else:
                verdicts.append(
                    Verdict(snapshot.brokers.ids[broker], SheddingReason.BELOW_THRESHOLD, acted=False, why=why)
                )
        picks, decided = relieve(snapshot, hot, OverloadReason.BROKER_OVERLOADED)
        return Shed(tuple(picks), (*decided, *verdicts), state)

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:  # noqa: ARG002 - it remembers nothing
        used = float(usage_per_broker(snapshot, self.settings.resource_weights)[broker]) * 100
        points = self.settings.broker_overloaded_threshold_percentage - used
        return {"usage_points": points} if points > 0 else {}
