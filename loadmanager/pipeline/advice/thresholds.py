"""On limits and thresholds that decided nothing, or that were exceeded in every hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from loadmanager.core.plan import Figure
from loadmanager.core.reasons import SplitReason
from loadmanager.core.settings import KEYS, PlannerSettings, short_class_name
from loadmanager.core.splitting.base import MIB
from loadmanager.core.splitting.finder import LIMIT_KEYS, SplitCandidate, find_reason
from loadmanager.pipeline.advice.pieces import ALWAYS, CLUSTER, NEVER, Advice


@dataclass(frozen=True, slots=True)
class Extent:
    """Of the highest value of each hour: the highest of all of them, and the lowest."""

    highest: float
    lowest: float


_BUNDLE_LIMITS = {
    SplitReason.TOPICS: ("topics", "namespace_bundle_max_topics", "topics"),
    SplitReason.SESSIONS: ("sessions", "namespace_bundle_max_sessions", "sessions"),
    SplitReason.MSG_RATE: ("msg_rate", "namespace_bundle_max_msg_rate", "messages/s"),
    SplitReason.BANDWIDTH: ("throughput", "namespace_bundle_max_bandwidth_mbytes", "MiB/s"),
}
"""The limits of a bundle: what of it they limit, the setting, and its unit."""


def advise_on_bundle_limits(extents: Mapping[str, Extent], hours: int, settings: PlannerSettings) -> list[Advice]:
    """On limits that no bundle, or that in each hour some bundle was above. `extents` by what is limited."""
    found = []
    for reason, (what, setting, unit) in _BUNDLE_LIMITS.items():
        extent = extents[what]
        above_by = [find_reason(_with_only(what, each), settings) for each in (extent.highest, extent.lowest)]
        kind = ALWAYS if above_by[1] is reason else None if above_by[0] is reason else NEVER
        if kind is not None:
            scale = MIB if what == "throughput" else 1
            shown = Extent(extent.highest / scale, extent.lowest / scale)
            threshold = Threshold(LIMIT_KEYS[reason], getattr(settings, setting), "the largest bundle of an hour", unit)
            found.append(_on_threshold(kind, threshold, shown, hours))
    return found


def _with_only(what: str, amount: float) -> SplitCandidate:
    """A bundle that carries nothing else."""
    of = defaultdict(float, {what: amount})
    return SplitCandidate("", None, round(of["topics"]), round(of["sessions"]), of["msg_rate"], of["throughput"])


@dataclass(frozen=True, slots=True)
class Threshold:
    """A setting and its value, what is compared with it, and the unit of both."""

    key: str
    value: float
    what: str
    unit: str


def thresholds_of(settings: PlannerSettings) -> dict[str, Threshold]:
    """Those on brokers that decide something with the configured strategies, by what is compared with them."""
    found = {
        "usage": Threshold(
            KEYS["broker_overloaded_threshold_percentage"],
            settings.broker_overloaded_threshold_percentage,
            "the usage of the most used broker of an hour",
            "%",
        )
    }
    strategy = short_class_name(settings.shedding_strategy)
    if strategy == "ThresholdShedder":
        found["above_mean"] = Threshold(
            KEYS["broker_threshold_shedder_percentage"],
            settings.broker_threshold_shedder_percentage,
            "what the most used broker of an hour used more than the mean",
            "points",
        )
    if strategy == "TransferShedder":
        found["deviation"] = Threshold(
            KEYS["broker_load_target_std"],
            settings.broker_load_target_std,
            "the standard deviation of the brokers' usage in an hour",
            "",
        )
    return found


def advise_on_brokers(extents: Mapping[str, Extent], hours: int, settings: PlannerSettings) -> list[Advice]:
    """On thresholds that nothing, or that something in each hour was above. `extents` by what `thresholds_of` names."""
    found = []
    for what, threshold in thresholds_of(settings).items():
        extent = extents[what]
        if extent.lowest > threshold.value:
            found.append(_on_threshold(ALWAYS, threshold, extent, hours))
        elif extent.highest <= threshold.value:
            found.append(_on_threshold(NEVER, threshold, extent, hours))
    return found


def _on_threshold(kind: str, threshold: Threshold, extent: Extent, hours: int) -> Advice:
    unit = f" {threshold.unit}".rstrip()
    much = f"{threshold.key} {threshold.value:g}{unit}"
    if kind == NEVER:
        text = f"Nothing was above {much} in {hours} hours: {threshold.what} was at most {extent.highest:.4g}{unit}"
    else:
        text = f"In each of {hours} hours {threshold.what} was above {much}: at least {extent.lowest:.4g}{unit}"
    evidence: dict[str, Figure] = {
        threshold.key: threshold.value,
        "unit": threshold.unit,
        "highest": extent.highest,
        "lowest": extent.lowest,
        "hours": hours,
    }
    return Advice(kind, CLUSTER, text, evidence)
