"""Pulsar's UniformLoadShedder and AvgShedder word by word over plain dictionaries: slow, and nothing but the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.model.load import CPU
from loadmanager.core.model.snapshot import Snapshot

MAX_INT = 2147483647


@dataclass
class Broker:
    """`rate` and `throughput` are its report's; `eligible` maps each bundle to its short-term rate and throughput."""

    usage: float
    rate: float
    throughput: float
    own: int
    eligible: dict[str, tuple[float, float]] = field(default_factory=dict)


def build_brokers(snapshot: Snapshot) -> dict[str, Broker]:
    """Input of shedding; usage is the CPU's alone, so give weight to nothing else."""
    columns, bundles = snapshot.brokers, snapshot.bundles
    found = {}
    for row, name in enumerate(columns.ids):
        rate_in, rate_out, bytes_in, bytes_out = columns.load[row].tolist()
        usage = float(columns.usage_percent[row, CPU]) / 100
        found[str(name)] = Broker(usage, rate_in + rate_out, bytes_in + bytes_out, int(columns.bundle_count[row]))
    for row, bundle in enumerate(bundles.names):
        if bundles.movable[row] and not bundles.recently_unloaded[row]:
            rate_in, rate_out, bytes_in, bytes_out = bundles.short[row].tolist()
            found[columns.ids[bundles.broker[row]]].eligible[bundle] = rate_in + rate_out, bytes_in + bytes_out
    return found


def java_int(value: float) -> int:
    if value != value:  # noqa: PLR0124 - not a number is the only value that differs from itself
        return 0
    return int(min(max(value, -MAX_INT - 1), MAX_INT))


def descending(broker: Broker, metric: int) -> list[tuple[str, float]]:
    loads = {name: load[metric] for name, load in broker.eligible.items()}
    return sorted(loads.items(), key=lambda item: (-item[1], item[0]))


@dataclass
class Uniform:
    rate_percent: float
    multiplier: float
    min_rate: int
    min_throughput: int
    max_unload: float
    max_bundles: int

    def find(self, brokers: Mapping[str, Broker]) -> dict[str, list[str]]:
        max_rate = max_throughput = -1.0
        min_rate = min_throughput = float(MAX_INT)
        most_rate = most_throughput = ""
        for name, broker in brokers.items():
            if broker.rate > max_rate:
                max_rate, most_rate = broker.rate, name
            if broker.throughput > max_throughput:
                max_throughput, most_throughput = broker.throughput, name
            min_rate = min(min_rate, broker.rate)
            min_throughput = min(min_throughput, broker.throughput)
        min_rate = 1.0 if abs(min_rate) <= 1e-6 else min_rate
        min_throughput = 1.0 if abs(min_throughput) <= 1e-6 else min_throughput
        if self.rate_percent > 0 and (max_rate - min_rate) * 100 / min_rate > self.rate_percent:
            need, metric, chosen = java_int((max_rate - min_rate) * self.max_unload), 0, most_rate
            enough = need >= self.min_rate
        elif self.multiplier > 0 and max_throughput / min_throughput > self.multiplier:
            need, metric, chosen = java_int((max_throughput - min_throughput) * self.max_unload), 1, most_throughput
            enough = need >= self.min_throughput
        else:
            return {}
        taken = self.take(descending(brokers[chosen], metric), need) if enough and brokers[chosen].own > 1 else []
        return {chosen: taken} if taken else {}

    def take(self, bundles: list[tuple[str, float]], need: int) -> list[str]:
        taken: list[str] = []
        for name, load in bundles:
            if self.max_bundles != -1 and len(taken) >= self.max_bundles:
                break
            if load <= need:
                taken.append(name)
                need -= java_int(load)
        return taken


@dataclass
class Avg:
    """AvgShedder with its hit counts, in place."""

    low_points: float
    high_points: float
    low_hits: int
    high_hits: int
    min_rate: int
    min_throughput: int
    max_unload: float
    hit_low: dict[str, int] = field(default_factory=dict)
    hit_high: dict[str, int] = field(default_factory=dict)

    def find(self, brokers: Mapping[str, Broker]) -> list[tuple[str, str, list[str]]]:
        """Source, destination and bundles."""
        pairs = self.count(brokers)
        if not pairs:
            self.hit_low.clear()
            self.hit_high.clear()
        moves = []
        for low, high in pairs:
            hit = [self.hit_high.get(each, 0) >= self.high_hits for each in (low, high)]
            hit += [self.hit_low.get(each, 0) >= self.low_hits for each in (low, high)]
            if not any(hit):
                continue
            for each in (low, high):
                self.hit_low.pop(each, None)
                self.hit_high.pop(each, None)
            taken = self.take(brokers[low], brokers[high])
            if taken:
                moves.append((high, low, taken))
        return moves

    def count(self, brokers: Mapping[str, Broker]) -> list[tuple[str, str]]:
        def score(name: str) -> float:
            return brokers[name].usage * 100

        order = sorted(brokers, key=lambda name: (score(name), name))
        pairs = []
        i, j = 0, len(order) - 1
        while i <= j:
            low, high = order[i], order[j]
            difference = score(high) - score(low)
            if difference < self.low_points:
                for each in (low, high):
                    self.hit_low.pop(each, None)
                    self.hit_high.pop(each, None)
            else:
                pairs.append((low, high))
                for each in (low, high):
                    self.hit_low[each] = self.hit_low.get(each, 0) + 1
                    if difference < self.high_points:
                        self.hit_high.pop(each, None)
                    else:
                        self.hit_high[each] = self.hit_high.get(each, 0) + 1
            i, j = i + 1, j - 1
        return pairs

    def take(self, low: Broker, high: Broker) -> list[str]:
        need_rate = (high.rate - low.rate) * self.max_unload
        need_throughput = (high.throughput - low.throughput) * self.max_unload
        if need_rate > self.min_rate:
            metric, need = 0, need_rate
        elif need_throughput > self.min_throughput:
            metric, need = 1, need_throughput
        else:
            return []
        taken = []
        for name, load in descending(high, metric):
            if 0 < load <= need:
                taken.append(name)
                need -= load
        return taken
