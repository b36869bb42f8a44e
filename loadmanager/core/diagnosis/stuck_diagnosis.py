"""Why nothing can be moved, whatever the strategy thinks of the load: a switch, a floor, or a figure that is missing.

    told                         when
    ---------------------------  ------------------------------------------------------------------------------------
    what is switched off         always
    all else                     while the load lies unevenly, by what brokers carry of what they have

What is told holds for the present load: a floor above all that the busiest broker carries, a threshold above what one
broker would use with all load, usage that is alike although the load is not. A strategy that could move something and
does not want to is no standstill; nor is what ends by itself, or is shown elsewhere: a freeze, a dry run, the breaker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from loadmanager.core.domain.names import broker_host
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, FloatArray, RowArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.movable_bundles import restrain
from loadmanager.core.strategies.level.level_load import LevelLoads
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.shedding_strategy import MIB, throughput_per_broker

UNEVEN = 1.5
"""The load lies unevenly when the hottest broker carries so many times what it would if all were alike."""
_ALIKE_PERCENT, _ALIKE_PART = 1.0, 0.05
"""Usages that differ by no more than so many points, or this part of the highest, are alike."""
_ALIKE_ON_HOST, _ROUNDING = 0.2, 0.01
"""So are those of brokers of one host, by this part, but for what a strategy would act on."""
_FINEST = 1e-6
"""What is uneven is seen however little it is."""

HOST_USAGE_SCOPE, NIC_SPEED, CPU_CORES = "hostUsageScope", "loadBalancerOverrideBrokerNicSpeedGbps", "cpuLimitCores"
"""Keys of agents."""
PINS_AND_FREEZES = "controls"
"""Named in place of a key, as it is operators' word that keeps bundles."""


class StuckReason(Reason):
    SWITCHED_OFF = entry("switched_off", "Nothing can move because {switch} is {value}", remedy="set {switch} to {to}")
    NO_LIMIT_KNOWN = entry(
        "no_limit_known",
        (
            "Nothing can move because no broker says what it has of a resource that counts ({weights}), so that all"
            " look idle, although the hottest carries {times} times what it would if all were alike"
        ),
        remedy=(
            f"let each agent see its broker's process (one pid namespace), set {NIC_SPEED} and {CPU_CORES} of the"
            " agents, or give a weight to a resource that is known"
        ),
    )
    USAGE_ALIKE = entry(
        "usage_alike",
        (
            "Nothing can move because {shared} brokers share the host {host} and all are used {usage_percent} %, as if"
            " each were the whole host, although the hottest carries {times} times what it would if all were alike"
        ),
        (
            "Nothing can move because all {brokers} brokers are used {usage_percent} %, although the hottest carries"
            " {times} times what it would if all were alike"
        ),
        remedy=f"set {HOST_USAGE_SCOPE} of the agents to process, or go by what they carry: UniformLoadShedder, Level",
    )
    THRESHOLD_OUT_OF_REACH = entry(
        "threshold_out_of_reach",
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
        remedy="lower {key}, or use Level with the settings for small fleets",
    )
    FLOOR_TOO_HIGH = entry(
        "floor_too_high",
        (
            "Nothing can move because the busiest broker carries {mib_per_s} MiB/s, and a need below"
            " {=bundle_unload_min_throughput_threshold} MiB/s is not moved"
        ),
        (
            "Nothing can move because the busiest broker carries {msg_rate_per_s} messages/s and {mib_per_s} MiB/s, and"
            " a need below {=min_unload_message} and {=min_unload_message_throughput} bytes/s, which is at most"
            " {=max_unload_percentage} of that, is not moved"
        ),
        remedy="lower {key}",
    )
    IDLE_FOR_LEVEL = entry(
        "idle_for_level",
        (
            "Nothing can move because all load, lying evenly, would use {level_percent} % of every broker, less than"
            " {=level_least_usage_percentage}"
        ),
        remedy="lower {#level_least_usage_percentage}",
    )
    SINGLE_BUNDLES = entry(
        "single_bundles",
        (
            "Nothing can move because no broker has a second bundle, although the hottest carries {times} times what it"
            " would if all were alike"
        ),
        remedy="split bundles, and create namespaces with more of them ({key})",
    )
    ALL_KEPT = entry(
        "all_kept",
        (
            "Nothing can move because all {bundles} bundles are pinned, frozen, or of namespaces in"
            " {#shedding_excluded_namespaces}"
        ),
        remedy="take pins and freezes back, or namespaces out of {#shedding_excluded_namespaces}",
    )


class StuckDiagnosis(NamedTuple):
    """One reason: the key of the setting to change, and a sentence for people that says how."""

    key: str
    sentence: str


def find_standstill(snapshot: Snapshot, settings: PlannerSettings) -> tuple[StuckDiagnosis, ...]:
    """Why nothing can move; nothing when something can, or need not. Raises `UnknownStrategyError`."""
    with np.errstate(all="ignore"):
        return tuple(StuckDiagnosis(key, _said(verdict)) for key, verdict in _reasons(snapshot, settings))


_Reasons = Iterator[tuple[str, Verdict]]


def _said(verdict: Verdict) -> str:
    return f"{verdict.sentence()}; {verdict.remedy()}"


def _because(reason: Reason, key: str, why: Mapping[str, Figure]) -> tuple[str, Verdict]:
    return key, Verdict("cluster", reason, acted=False, why={**why, "key": key})


def _reasons(snapshot: Snapshot, settings: PlannerSettings) -> _Reasons:
    strategy = shedding_strategy(settings)[0]
    yield from _switched_off(settings, strategy)
    uneven = _Uneven.of(restrain(snapshot), settings)
    if uneven is not None:
        yield from _OF_STRATEGY.get(strategy, _nothing_of_its_own)(uneven)
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
"""What switches moves off when it is false or 0, of all strategies and of one; and to what it is usually set."""


def _switched_off(settings: PlannerSettings, strategy: str) -> _Reasons:
    for name, to in {**_SWITCHES[""], **_SWITCHES.get(strategy, {})}.items():
        value = getattr(settings, name)
        if not value:
            why = {"switch": KEYS[name], "value": str(value).lower(), "to": to}
            yield _because(StuckReason.SWITCHED_OFF, KEYS[name], why)


@dataclass(frozen=True, slots=True, eq=False)
class _Uneven:
    """A cluster whose load lies unevenly. `heat` (M,): how many times what it would if all were alike each carries."""

    snapshot: Snapshot
    settings: PlannerSettings
    loads: LevelLoads
    heat: FloatArray

    @classmethod
    def of(cls, snapshot: Snapshot, settings: PlannerSettings) -> _Uneven | None:
        """None for one whose load does not."""
        loads = LevelLoads.of(snapshot, replace(settings, level_least_usage_percentage=_FINEST, level_forecast_hours=0))
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
        """The usages (M,) that strategies go by, in per cent; 0 of one that says none."""
        usage = usage_per_broker(self.snapshot, self.settings.resource_weights)
        return 100 * np.nan_to_num(usage, nan=0.0, posinf=0.0, neginf=0.0)

    def no_limit(self) -> _Reasons:
        """Strategies go by usage, and none is known."""
        if not self._usage.any():
            weights = self.settings.resource_weights
            counted = ", ".join(name for name in weights.__slots__ if getattr(weights, name) > 0) or "none"
            yield _because(StuckReason.NO_LIMIT_KNOWN, NIC_SPEED, {**self._times, "weights": counted})

    def usage_alike(self, needed: str = "") -> _Reasons:
        """Strategies go by usage, and it says nothing of who carries what: that of one host, as a rule, as it was when
        each of its brokers looked. `needed`: the setting that says from how many points on usages are apart.
        """
        usage = self._usage
        (host, shared), *_ = Counter(map(broker_host, self.snapshot.brokers.ids)).most_common(1)
        alike = max(_ALIKE_PERCENT, _ALIKE_PART * float(usage.max()))
        if shared > 1 and needed:
            alike = max(alike, min(_ALIKE_ON_HOST * float(usage.max()), getattr(self.settings, needed) - _ROUNDING))
        if not usage.any() or np.ptp(usage) > alike:
            return
        why = {**self._times, "brokers": len(usage), "usage_percent": float(usage.mean())}
        why |= {"host": host, "shared": shared} if shared > 1 else {}
        yield _because(StuckReason.USAGE_ALIKE, HOST_USAGE_SCOPE, why)

    def out_of_reach(self, name: str, above_average: float) -> _Reasons:
        """Strategies act from so many points on, above this part of the average: more than one broker could have."""
        usage, threshold = self._usage, getattr(self.settings, name)
        most = float(usage.sum())
        if usage.any() and most - above_average * most / len(usage) < threshold:
            why = {"most_percent": most, **self.settings.said(name)}
            yield _because(StuckReason.THRESHOLD_OUT_OF_REACH, KEYS[name], why)

    def floor_of_need(self) -> _Reasons:
        """A broker never needs to give more than all that it carries."""
        mib = float(throughput_per_broker(self.snapshot).max()) / MIB
        if mib < self.settings.bundle_unload_min_throughput_threshold:
            why = {"mib_per_s": mib, **self.settings.said("bundle_unload_min_throughput_threshold")}
            yield _because(StuckReason.FLOOR_TOO_HIGH, KEYS["bundle_unload_min_throughput_threshold"], why)

    def floors_of_difference(self) -> _Reasons:
        """Nor more than a part of that, by messages or by bytes."""
        settings, load = self.settings, self.snapshot.brokers.load
        part = settings.max_unload_percentage
        rate = float((load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]).max())
        carried = float(throughput_per_broker(self.snapshot).max())
        if part * rate < settings.min_unload_message and part * carried < settings.min_unload_message_throughput:
            said = settings.said("min_unload_message", "min_unload_message_throughput", "max_unload_percentage")
            why = {"msg_rate_per_s": rate, "mib_per_s": carried / MIB, **said}
            yield _because(StuckReason.FLOOR_TOO_HIGH, KEYS["min_unload_message"], why)

    def idle_for_level(self) -> _Reasons:
        """No broker is above the level that counts for the least."""
        settings = self.settings
        least = settings.level_least_usage_percentage * (1 + settings.level_evenness_percentage / 100)
        if 100 * float(self.loads.usage.max(initial=0.0)) < least:
            why = {"level_percent": 100 * self.loads.level, **settings.said("level_least_usage_percentage")}
            yield _because(StuckReason.IDLE_FOR_LEVEL, KEYS["level_least_usage_percentage"], why)

    def single_bundles(self) -> _Reasons:
        """A broker's only bundle would take all of its load along."""
        if np.bincount(self._owners).max(initial=0) <= 1:
            yield _because(StuckReason.SINGLE_BUNDLES, "defaultNumberOfNamespaceBundles", self._times)

    def all_kept(self) -> _Reasons:
        """Whatever the strategy, nothing may leave its broker."""
        bundles, controls = self.snapshot.bundles, self.snapshot.controls
        excluded = self.settings.shedding_excluded_namespaces
        kept = controls.pinned.keys() | controls.frozen_bundles.keys()
        if all(
            bundles.names[row] in kept or bundles.namespaces[bundles.namespace[row]] in excluded
            for row in np.flatnonzero(bundles.assigned >= 0).tolist()
        ):
            key = KEYS["shedding_excluded_namespaces"] if excluded else PINS_AND_FREEZES
            yield _because(StuckReason.ALL_KEPT, key, {"bundles": len(self._owners)})

    @property
    def _owners(self) -> RowArray:
        """Of the bundles that have any."""
        assigned = self.snapshot.bundles.assigned
        return assigned[assigned >= 0]


def _nothing_of_its_own(_: _Uneven) -> _Reasons:
    return iter(())


def _threshold_shedder(uneven: _Uneven) -> _Reasons:
    yield from uneven.no_limit()
    yield from uneven.usage_alike("broker_threshold_shedder_percentage")
    yield from uneven.out_of_reach("broker_threshold_shedder_percentage", above_average=1)
    yield from uneven.floor_of_need()
    yield from uneven.single_bundles()


def _overload_shedder(uneven: _Uneven) -> _Reasons:
    yield from uneven.no_limit()
    yield from uneven.out_of_reach("broker_overloaded_threshold_percentage", above_average=0)
    yield from uneven.single_bundles()


def _uniform_load_shedder(uneven: _Uneven) -> _Reasons:
    yield from uneven.floors_of_difference()
    yield from uneven.single_bundles()


def _avg_shedder(uneven: _Uneven) -> _Reasons:
    yield from uneven.no_limit()
    yield from uneven.usage_alike("avg_shedder_low_threshold")
    yield from uneven.out_of_reach("avg_shedder_low_threshold", above_average=0)
    yield from uneven.floors_of_difference()


def _transfer_shedder(uneven: _Uneven) -> _Reasons:
    yield from uneven.no_limit()
    yield from uneven.usage_alike()


_OF_STRATEGY: Mapping[str, Callable[[_Uneven], _Reasons]] = {
    "ThresholdShedder": _threshold_shedder,
    "OverloadShedder": _overload_shedder,
    "UniformLoadShedder": _uniform_load_shedder,
    "AvgShedder": _avg_shedder,
    "TransferShedder": _transfer_shedder,
    "SimpleLoadManagerImpl": _Uneven.no_limit,
    "Level": _Uneven.idle_for_level,
}
"""What each goes by. A strategy that is not here is told what holds for all."""
