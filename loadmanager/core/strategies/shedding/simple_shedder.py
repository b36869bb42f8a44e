"""SimpleLoadManagerImpl as shedding: take one bundle off each overloaded broker, if some broker is below the comfort
level.

Source: Pulsar's SimpleLoadManagerImpl (doLoadShedding). A broker is overloaded when its CPU, direct memory or bandwidth
is above the overloaded threshold. It sheds its top bundle by its most used resource. For CPU that is the message rate,
in steps of 100; for heap the number of topics, producers and consumers, in steps of 500; for bandwidth the bytes/s one
way, in steps of 100,000. It does so if some broker that the policies allow for the bundle's namespace has CPU, heap and
bandwidth below the comfort level. Only the top bundle is considered: if it moved recently, the broker sheds nothing. It
is stateless.

Differs from Pulsar: bundles equal in these steps leave in the order of their names; self-test bundles of brokers are
ignored; a broker is skipped while a bundle is leaving it or has left it since its report; if shedding is disabled,
nothing is recorded as moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.filters import SIMPLE, PlacementQuestion, allowed_brokers
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import is_self_test_namespace, namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    MSG_RATE_IN,
    MSG_RATE_OUT,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    BoolArray,
    Float32Array,
    FloatArray,
)
from loadmanager.core.model.quotas import OBJECTS_PER_GROUP, Samples
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.placement.placement_strategy import Rows
from loadmanager.core.strategies.ranked_brokers import whole
from loadmanager.core.strategies.shedding.shedding_strategy import Pick, Shed, State, group_by_broker

_JUDGED = (CPU, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)
_BOTTLENECKS = (CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)
"""Tie-breaking order of equally used resources."""
_NAMES = {
    CPU: "CPU",
    MEMORY: "memory",
    DIRECT_MEMORY: "direct memory",
    BANDWIDTH_IN: "bandwidth in",
    BANDWIDTH_OUT: "bandwidth out",
}
_MESSAGES_PER_STEP = 100
_BYTES_PER_STEP = 100_000


class SimpleReason(Reason):
    TOP_BUNDLE_SHED = entry(
        "Shed {top_bundle}, the top one of {bundles} bundles by {bottleneck}, because usage {usage_percent} %"
        " ({resource}) is above {=broker_overloaded_threshold_percentage} %"
    )
    NO_COMFORTABLE_BROKER = entry(
        "No move because no broker that may own {top_bundle} is below"
        " {=broker_comfort_load_level_percentage} % in all resources"
    )
    TOP_BUNDLE_MOVED_RECENTLY = entry(
        "No move because {top_bundle}, the top one of {bundles} bundles by {bottleneck}, moved recently"
    )


@dataclass(frozen=True, slots=True)
class SimpleLoadManagerImpl:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        settings, percent = self.settings, snapshot.brokers.usage_percent
        judged = percent[:, _JUDGED]
        hottest = np.fmax.reduce(judged, axis=1, initial=np.float32(-np.inf))
        over = np.float32(math.trunc(settings.broker_overloaded_threshold_percentage))
        comfort = np.float32(math.trunc(settings.broker_comfort_load_level_percentage))
        comfortable = np.asarray((judged < comfort).all(axis=1))
        picks, verdicts = [], []
        for broker, (name, used) in enumerate(zip(snapshot.brokers.ids, hottest, strict=True)):
            resource = _JUDGED[int(np.argmax(judged[broker] == used))]
            why: dict[str, Figure] = {
                "resource": _NAMES[resource],
                "usage_percent": float(used),
                **settings.as_figures("broker_overloaded_threshold_percentage"),
            }
            reason, bundle = (
                self._find_bundle(snapshot, broker, comfortable, why)
                if used > over
                else (SheddingReason.BELOW_THRESHOLD, None)
            )
            if bundle is not None:
                picks.append(Pick(broker, (bundle,), reason))
            verdicts.append(Verdict(name, reason, bundle is not None, why))
        return Shed(tuple(picks), tuple(verdicts), state)

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:  # noqa: ARG002 - it remembers nothing
        used = float(np.fmax.reduce(snapshot.brokers.usage_percent[broker, _JUDGED], initial=np.float32(-np.inf)))
        over = math.trunc(self.settings.broker_overloaded_threshold_percentage)
        return {"usage_points": over - used} if used <= over else {}

    def _find_bundle(
        self, snapshot: Snapshot, broker: int, comfortable: BoolArray, why: dict[str, Figure]
    ) -> tuple[Reason, int | None]:
        """Find the bundle that leaves the broker, or the reason why none does; add the figures to `why`."""
        if not snapshot.brokers.settled[broker]:
            return SheddingReason.AWAITING_REPORT, None
        rows = _bundles_of(snapshot, broker)
        why["bundles"] = len(rows)
        if len(rows) <= 1:
            return SheddingReason.SINGLE_BUNDLE if len(rows) else SheddingReason.NO_BUNDLES, None
        resource = _bottleneck(snapshot.brokers.usage_percent[broker])
        top = int(rows[np.argmax(_steps(snapshot, rows, resource))])
        why |= {
            "bottleneck": _NAMES[resource],
            "top_bundle": snapshot.bundles.names[top],
            **self.settings.as_figures("broker_comfort_load_level_percentage"),
        }
        if not np.any(comfortable & self._find_allowed(snapshot, top)):
            return SimpleReason.NO_COMFORTABLE_BROKER, None
        if snapshot.bundles.recently_unloaded[top] or not snapshot.bundles.movable[top]:
            return SimpleReason.TOP_BUNDLE_MOVED_RECENTLY, None
        return SimpleReason.TOP_BUNDLE_SHED, top

    def _find_allowed(self, snapshot: Snapshot, bundle: int) -> BoolArray:
        namespace = namespace_of(snapshot.bundles.names[bundle])
        return allowed_brokers(SIMPLE, PlacementQuestion(namespace, Projection(snapshot), self.settings))[0]


def _bundles_of(snapshot: Snapshot, broker: int) -> Rows:
    """Return the bundles that the broker reports, without self-test bundles; grouped in one pass over all."""

    def find() -> tuple[Rows, Rows]:
        bundles = snapshot.bundles
        self_test = np.array([is_self_test_namespace(name) for name in bundles.namespaces], dtype=bool)
        return group_by_broker(snapshot, (bundles.broker >= 0) & ~self_test[bundles.namespace])

    rows, first = snapshot.derive("bundles by broker", find)
    return rows[first[broker] : first[broker + 1]]


def _bottleneck(percent: Float32Array) -> int:
    """Return the most used resource: a later one only if used more, NaN never."""
    found = _BOTTLENECKS[0]
    for resource in _BOTTLENECKS[1:]:
        if percent[resource] > percent[found]:
            found = resource
    return found


def _steps(snapshot: Snapshot, rows: Rows, resource: int) -> FloatArray:
    """Return the bundles' need of the resource, in steps within which they count as equal."""
    samples = Samples.of(snapshot)
    load = samples.load[rows]
    if resource == MEMORY:
        return np.asarray(samples.objects[rows] // OBJECTS_PER_GROUP, dtype=np.float64)
    if resource == CPU:
        return _round_half_up((load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]) / _MESSAGES_PER_STEP)
    column = THROUGHPUT_IN if resource == BANDWIDTH_IN else THROUGHPUT_OUT
    return _round_half_up(load[:, column] / _BYTES_PER_STEP)


def _round_half_up(number: FloatArray) -> FloatArray:
    """Round to integers, halves up, NaN to 0."""
    return whole(np.floor(number + 0.5))
