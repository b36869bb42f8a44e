"""Stuck diagnosis: settings that keep the strategy from moving anything at the current load.

    finding                      reported
    ---------------------------  ------------------------------------------------------------------------------------
    a switch that is off         always
    all others                   while load is uneven, relative to capacity

Findings depend on the current load: a minimum above the entire load of the busiest broker, a threshold that one broker
could not reach with the load of all, equal usages despite uneven load. A strategy that could move something but chooses
not to is not stuck. Limits that expire or are shown elsewhere are not findings: a freeze, a dry run, the breaker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple

import numpy as np

from loadmanager.core.domain.names import broker_host
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.fleet_load import fit_thresholds
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, FloatArray, RowArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.movable_bundles import restrain
from loadmanager.core.strategies.level.level_load import LevelLoads
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.shedding_strategy import MIB, throughput_per_broker

UNEVEN = 1.5
"""Imbalance above which load counts as uneven."""
_ALIKE_PART = 0.05
"""Tolerance of equal usages, as a part of the highest."""
_ALIKE_ON_HOST, _ROUNDING = 0.2, 0.01
"""Tolerance for brokers of one host, and margin to a strategy's threshold."""
_FINEST = 1e-6
"""Resolution of unevenness."""

HOST_USAGE_SCOPE, NIC_SPEED, CPU_CORES = "hostUsageScope", "loadBalancerOverrideBrokerNicSpeedGbps", "cpuLimitCores"
"""Configuration keys of agents."""
PINS_AND_FREEZES = "controls"
"""Stands in for a key where operator controls keep bundles in place."""


def _set(key: str, value: str) -> str:
    """Return the command that changes a dynamic setting."""
    return f"loadmanager admin brokers update-dynamic-config --config {key} --value {value}"


_USE_LEVEL = _set("{#shedding_strategy}", "Level")
_AGENT = "loadmanager agent --config agent.yaml"


class StuckReason(Reason):
    SWITCHED_OFF = entry("Nothing can move because {switch} is {value}", remedy="{command}")
    NO_LIMIT_KNOWN = entry(
        "Nothing can move because no broker reports its limit of a weighted resource ({weights}), so all look idle,"
        " although the hottest carries {times} times its even share",
        remedy=(
            f"give each agent the limits of its broker: LOADMANAGER_{NIC_SPEED}=10 LOADMANAGER_{CPU_CORES}=4 {_AGENT}"
        ),
    )
    USAGE_ALIKE = entry(
        (
            "Nothing can move because {shared} brokers share the host {host} and all are used {usage_percent} %, as if"
            " each were the whole host, although the hottest carries {times} times its even share"
        ),
        (
            "Nothing can move because all {brokers} brokers are used {usage_percent} %, although the hottest carries"
            " {times} times its even share"
        ),
        remedy=(
            f"measure each broker alone: LOADMANAGER_{HOST_USAGE_SCOPE}=process {_AGENT}; or use Level: {_USE_LEVEL}"
        ),
    )
    THRESHOLD_OUT_OF_REACH = entry(
        (
            "Nothing can move because a broker with all load would be used {most_percent} %, and"
            " {=broker_threshold_shedder_percentage} points above the average are out of reach"
        ),
        (
            "Nothing can move because a broker with all load would be used {most_percent} %, below"
            " {=broker_overloaded_threshold_percentage}"
        ),
        (
            "Nothing can move because a broker with all load would be used {most_percent} %, and"
            " {=avg_shedder_low_threshold} points between two brokers are out of reach"
        ),
        remedy=f"lower {{key}}, or use Level: {_USE_LEVEL}",
    )
    FLOOR_TOO_HIGH = entry(
        (
            "Nothing can move because the busiest broker carries {mib_per_s} MiB/s, and a need below"
            " {=bundle_unload_min_throughput_threshold} MiB/s is not moved"
        ),
        (
            "Nothing can move because the busiest broker carries {msg_rate_per_s} messages/s and {mib_per_s} MiB/s, and"
            " a need below {=min_unload_message} and {=min_unload_message_throughput} bytes/s, which is at most"
            " {=max_unload_percentage} of that, is not moved"
        ),
        remedy=f"lower {{key}}, or use Level: {_USE_LEVEL}",
    )
    SINGLE_BUNDLES = entry(
        "Nothing can move because no broker has a second bundle, although the hottest carries {times} times its"
        " even share",
        remedy="split bundles: loadmanager admin namespaces split-bundle {namespace} -bt LARGEST",
    )
    ALL_KEPT = entry(
        "Nothing can move because all {bundles} bundles are pinned, frozen, or of namespaces in"
        " {#shedding_excluded_namespaces}",
        remedy="{command}",
    )


class StuckDiagnosis(NamedTuple):
    """One finding: the key of the setting to change, and a sentence that ends with the command to run."""

    key: str
    sentence: str


def find_stuck_causes(snapshot: Snapshot, settings: PlannerSettings) -> tuple[StuckDiagnosis, ...]:
    """Find the reasons why nothing can move; empty if moves are possible or needless. Raises `UnknownStrategyError`."""
    with np.errstate(all="ignore"):
        fitted = fit_thresholds(settings, snapshot)
        return tuple(
            StuckDiagnosis(key, f"{verdict.sentence()}; {verdict.remedy()}")
            for key, verdict in _reasons(snapshot, fitted)
        )


_Reasons = Iterator[tuple[str, Verdict]]


def _finding(reason: Reason, key: str, why: Mapping[str, Figure]) -> tuple[str, Verdict]:
    return key, Verdict("cluster", reason, acted=False, why={**why, "key": key})


def _reasons(snapshot: Snapshot, settings: PlannerSettings) -> _Reasons:
    strategy = shedding_strategy(settings)[0]
    yield from _switched_off(settings, strategy)
    uneven = _Uneven.of(restrain(snapshot), settings)
    if uneven is not None:
        for check in _CHECKS.get(strategy, ()):
            yield from check(uneven)
        yield from uneven.all_kept()


_SWITCHES = {
    "": {
        "load_balancer_enabled": "true",
        "shedding_enabled": "true",
        "max_load_moved_per_cycle_percentage": "50",
        "max_load_moved_per_hour_percentage": "100",
    },
    "UniformLoadShedder": {"max_unload_percentage": "0.2", "max_unload_bundle_num_per_shedding": "-1"},
    "AvgShedder": {"max_unload_percentage": "0.2"},
    "TransferShedder": {
        "max_number_of_broker_shedding_per_cycle": "3",
        "max_number_of_bundles_in_bundle_load_report": "10",
    },
}
"""Settings that turn moves off when false or 0, for all strategies and for one, with their usual values."""


def _switched_off(settings: PlannerSettings, strategy: str) -> _Reasons:
    for name, to in {**_SWITCHES[""], **_SWITCHES.get(strategy, {})}.items():
        value = getattr(settings, name)
        if not value:
            fixed = f"LOADMANAGER_{KEYS[name]}={to} loadmanager serve"
            command = fixed if name == "load_balancer_enabled" else _set(KEYS[name], to)
            why = {"switch": KEYS[name], "value": str(value).lower(), "command": command}
            yield _finding(StuckReason.SWITCHED_OFF, KEYS[name], why)


@dataclass(frozen=True, slots=True, eq=False)
class _Uneven:
    """A cluster with uneven load. `heat` (M,): load of each broker over its fair share."""

    snapshot: Snapshot
    settings: PlannerSettings
    loads: LevelLoads
    heat: FloatArray

    @classmethod
    def of(cls, snapshot: Snapshot, settings: PlannerSettings) -> _Uneven | None:
        """Analyse a cluster; None if its load is even."""
        loads = LevelLoads.of(snapshot, settings, hours=0)
        carried = throughput_per_broker(snapshot)
        heat = (
            loads.heat() if loads.usage.any() else carried / max(float(carried.sum()) / max(len(carried), 1), _FINEST)
        )
        return cls(snapshot, settings, loads, heat) if len(heat) > 1 and heat.max() >= UNEVEN else None

    @property
    def _times(self) -> dict[str, Figure]:
        return {"times": float(self.heat.max())}

    @property
    def _usage(self) -> FloatArray:
        """Return the usages (M,) that strategies compare, in per cent; 0 if unknown."""
        usage = usage_per_broker(self.snapshot, self.settings.resource_weights)
        return 100 * np.nan_to_num(usage, nan=0.0, posinf=0.0, neginf=0.0)

    def no_limit(self) -> _Reasons:
        """Check for usage-based strategies without any known usage."""
        if not self._usage.any():
            weights = self.settings.resource_weights
            counted = ", ".join(name for name in weights.__slots__ if getattr(weights, name) > 0) or "none"
            yield _finding(StuckReason.NO_LIMIT_KNOWN, NIC_SPEED, {**self._times, "weights": counted})

    def usage_alike(self, needed: str = "") -> _Reasons:
        """Check for equal usages despite uneven load, usually those of a shared host. `needed`: the setting with the
        minimum difference in points.
        """
        usage = self._usage
        (host, shared), *_ = Counter(map(broker_host, self.snapshot.brokers.ids)).most_common(1)
        alike = _ALIKE_PART * float(usage.max())
        if shared > 1 and needed:
            alike = max(alike, min(_ALIKE_ON_HOST * float(usage.max()), getattr(self.settings, needed) - _ROUNDING))
        if not usage.any() or np.ptp(usage) > alike:
            return
        why = {**self._times, "brokers": len(usage), "usage_percent": float(usage.mean())}
        why |= {"host": host, "shared": shared} if shared > 1 else {}
        yield _finding(StuckReason.USAGE_ALIKE, HOST_USAGE_SCOPE, why)

    def out_of_reach(self, name: str, above_average: float) -> _Reasons:
        """Check for a threshold above the average that a broker could not reach with the load of all."""
        usage, threshold = self._usage, getattr(self.settings, name)
        most = float(usage.sum())
        if usage.any() and most - above_average * most / len(usage) < threshold:
            why = {"most_percent": most, **self.settings.as_figures(name)}
            yield _finding(StuckReason.THRESHOLD_OUT_OF_REACH, KEYS[name], why)

    def floor_of_need(self) -> _Reasons:
        """Check for a minimum above the entire load of the busiest broker."""
        mib = float(throughput_per_broker(self.snapshot).max()) / MIB
        if mib < self.settings.bundle_unload_min_throughput_threshold:
            why = {"mib_per_s": mib, **self.settings.as_figures("bundle_unload_min_throughput_threshold")}
            yield _finding(StuckReason.FLOOR_TOO_HIGH, KEYS["bundle_unload_min_throughput_threshold"], why)

    def floors_of_difference(self) -> _Reasons:
        """Check for minimums above the share of a difference that is shed, by messages or bytes."""
        settings, load = self.settings, self.snapshot.brokers.load
        part = settings.max_unload_percentage
        rate = float((load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]).max())
        carried = float(throughput_per_broker(self.snapshot).max())
        if part * rate < settings.min_unload_message and part * carried < settings.min_unload_message_throughput:
            limits = settings.as_figures("min_unload_message", "min_unload_message_throughput", "max_unload_percentage")
            why = {"msg_rate_per_s": rate, "mib_per_s": carried / MIB, **limits}
            yield _finding(StuckReason.FLOOR_TOO_HIGH, KEYS["min_unload_message"], why)

    def single_bundles(self) -> _Reasons:
        """Check for brokers with a single bundle, whose move would take all load along."""
        if np.bincount(self._owners).max(initial=0) <= 1:
            bundles = self.snapshot.bundles
            namespace = bundles.namespaces[bundles.namespace[self._kept_row]]
            why = {**self._times, "namespace": namespace}
            yield _finding(StuckReason.SINGLE_BUNDLES, "defaultNumberOfNamespaceBundles", why)

    def all_kept(self) -> _Reasons:
        """Check for bundles that no strategy may move."""
        bundles, controls = self.snapshot.bundles, self.snapshot.controls
        excluded = self.settings.shedding_excluded_namespaces
        kept = controls.pinned.keys() | controls.frozen_bundles.keys()
        if all(
            bundles.names[row] in kept or bundles.namespaces[bundles.namespace[row]] in excluded
            for row in np.flatnonzero(bundles.assigned >= 0).tolist()
        ):
            key = KEYS["shedding_excluded_namespaces"] if excluded else PINS_AND_FREEZES
            name = bundles.names[self._kept_row]
            command = _set(key, "''")
            if name in controls.pinned:
                command = f"loadmanager admin bundles unpin {name}"
            if name in controls.frozen_bundles:
                command = f"loadmanager admin bundles unfreeze {name}"
            yield _finding(StuckReason.ALL_KEPT, key, {"bundles": len(self._owners), "command": command})

    @property
    def _kept_row(self) -> int:
        """Return an owned bundle, of the hottest broker that has one."""
        assigned = self.snapshot.bundles.assigned
        return int(np.argmax(np.where(assigned >= 0, self.heat[assigned], -1.0)))

    @property
    def _owners(self) -> RowArray:
        assigned = self.snapshot.bundles.assigned
        return assigned[assigned >= 0]


_CHECKS: Mapping[str, Sequence[Callable[[_Uneven], _Reasons]]] = {
    "ThresholdShedder": (
        _Uneven.no_limit,
        methodcaller("usage_alike", "broker_threshold_shedder_percentage"),
        methodcaller("out_of_reach", "broker_threshold_shedder_percentage", above_average=1),
        _Uneven.floor_of_need,
        _Uneven.single_bundles,
    ),
    "OverloadShedder": (
        _Uneven.no_limit,
        methodcaller("out_of_reach", "broker_overloaded_threshold_percentage", above_average=0),
        _Uneven.single_bundles,
    ),
    "UniformLoadShedder": (_Uneven.floors_of_difference, _Uneven.single_bundles),
    "AvgShedder": (
        _Uneven.no_limit,
        methodcaller("usage_alike", "avg_shedder_low_threshold"),
        methodcaller("out_of_reach", "avg_shedder_low_threshold", above_average=0),
        _Uneven.floors_of_difference,
    ),
    "TransferShedder": (_Uneven.no_limit, _Uneven.usage_alike),
    "SimpleLoadManagerImpl": (_Uneven.no_limit,),
}
"""Checks of each strategy; others use the common ones."""
