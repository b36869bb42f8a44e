"""Pulsar's strategies word by word over plain dictionaries: slow, and nothing but what the specification says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.model.load import CPU, THROUGHPUT_IN, THROUGHPUT_OUT
from loadmanager.core.model.snapshot import LONG_TERM, Snapshot


@dataclass
class Broker:
    usage: float
    throughput: float
    own: int
    eligible: dict[str, float] = field(default_factory=dict)


def build_brokers(snapshot: Snapshot) -> dict[str, Broker]:
    """Input of shedding; usage is the CPU's alone, so give weight to nothing else."""
    columns, bundles = snapshot.brokers, snapshot.bundles
    found = {}
    for row, name in enumerate(columns.ids):
        load = columns.load[row]
        usage = float(columns.usage_percent[row, CPU]) / 100
        found[str(name)] = Broker(
            usage, float(load[THROUGHPUT_IN] + load[THROUGHPUT_OUT]), int(columns.bundle_count[row])
        )
    for row, bundle in enumerate(bundles.names):
        if bundles.movable[row] and not bundles.recently_unloaded[row]:
            load = bundles.short[row]
            owner = columns.ids[bundles.broker[row]]
            found[owner].eligible[bundle] = float(load[THROUGHPUT_IN] + load[THROUGHPUT_OUT])
    return found


def take(broker: Broker, need: float) -> list[str]:
    taken: list[str] = []
    moved = 0.0
    for name in sorted(broker.eligible, key=lambda name: (-broker.eligible[name], name)):
        if moved < need or not taken:
            taken.append(name)
            moved += broker.eligible[name]
    return taken


def overload(brokers: Mapping[str, Broker], threshold_percent: float) -> dict[str, list[str]]:
    threshold = threshold_percent / 100
    plan = {}
    for name, broker in brokers.items():
        if broker.usage < threshold:
            continue
        need = broker.throughput * (broker.usage - threshold + 0.05)
        if broker.own > 1:
            plan[name] = take(broker, need)
    return {name: taken for name, taken in plan.items() if taken}


class Threshold:
    """ThresholdShedder with its moving averages, in place."""

    def __init__(self, percent: float, history: float, min_mib_per_s: float, *, lower_boundary: bool) -> None:
        self.threshold = percent / 100
        self.history = history
        self.minimum = min_mib_per_s * 1048576.0
        self.lower_boundary = lower_boundary
        self.ema: dict[str, float] = {}

    def refresh(self, brokers: Mapping[str, Broker]) -> float:
        total = 0.0
        for name, broker in brokers.items():
            previous = self.ema.get(name)
            if previous is None:
                self.ema[name] = broker.usage
            else:
                self.ema[name] = previous * self.history + (1 - self.history) * broker.usage
            total += self.ema[name]
        return total / len(brokers) if brokers else 0.0

    def find(self, brokers: Mapping[str, Broker]) -> dict[str, list[str]]:
        average = self.refresh(brokers)
        if average == 0:
            return {}
        plan = {}
        for name, broker in brokers.items():
            if self.ema[name] < average + self.threshold:
                continue
            need = broker.throughput * (self.ema[name] - average - self.threshold + 0.05)
            if need < self.minimum:
                continue
            if broker.own > 1 and broker.eligible:
                plan[name] = take(broker, need)
        if not plan and self.lower_boundary:
            plan = self.find_below(brokers)
        return plan

    def find_below(self, brokers: Mapping[str, Broker]) -> dict[str, list[str]]:
        average = self.refresh(brokers)
        highest, most_used, low = average - self.threshold, "", False
        for name, broker in brokers.items():
            if self.ema[name] > highest and broker.own > 1:
                highest, most_used = self.ema[name], name
            if self.ema[name] < average - self.threshold:
                low = True
        if not low or not most_used:
            return {}
        need = brokers[most_used].throughput * self.threshold * 0.5
        taken = [] if self.minimum > need else take(brokers[most_used], need)
        return {most_used: taken} if taken else {}


def least_long_term_message_rate(
    snapshot: Snapshot, candidates: Iterable[int], overloaded_percent: float, planned: Mapping[int, float]
) -> set[int]:
    """The candidates among which chance decides; the usage is the CPU's alone."""
    columns = snapshot.brokers
    scores = {}
    for row in candidates:
        if float(columns.usage_percent[row, CPU]) / 100 > overloaded_percent / 100:
            scores[row] = np.inf
            continue
        given, average = columns.preallocated[row], columns.time_average[row, LONG_TERM]
        scores[row] = float(given[0] + given[1]) + float(average[0] + average[1]) + planned.get(row, 0.0)
    finite = {row: score for row, score in scores.items() if score < np.inf}
    if not finite:
        return set(scores)
    return {row for row, score in finite.items() if score == min(finite.values())}
