"""Pulsar's TransferShedder and its list of busiest bundles word by word, over plain dictionaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Stats = tuple[float, float, float, float, int, int]
"""Messages/s in and out, bytes/s in and out, topics and sessions, bytes in the cache."""


@dataclass
class Load:
    ema: float
    throughput_ema: float
    throughput: float
    updated_at: int


@dataclass
class Store:
    """Input of the rule: published loads, owners, and times of unloads in milliseconds."""

    now: int
    available: list[str]
    loads: dict[str, Load]
    top: dict[str, list[tuple[str, float]]]
    owner: dict[str, str]
    recent: set[str] = field(default_factory=set)
    unloaded_from: dict[str, int] = field(default_factory=dict)


@dataclass
class Rule:
    target: float = 0.25
    hit_threshold: int = 0
    transfer: bool = True
    per_cycle: int = 3
    delay_s: int = 180
    ttl_s: int = 1800
    overloaded: int = 85
    excluded: frozenset[str] = frozenset()
    debug: bool = True


Decision = tuple[str, str, str | None, str]


@dataclass
class Shedder:
    """`outcome` is what the last cycle is counted under when it does nothing."""

    rule: Rule
    hits: int = 0
    outcome: str = ""
    std: float = math.nan

    def find(self, store: Store) -> set[Decision]:  # noqa: C901, PLR0912, PLR0915 - the rule in one piece
        rule = self.rule
        loads = store.loads
        missing = set(store.available)
        total = squares = 0.0
        n = 0
        outdated = False
        fresh = []
        for broker, load in loads.items():
            missing.discard(broker)
            if store.now - load.updated_at > rule.ttl_s * 1000:
                outdated = True
                continue
            if broker in store.unloaded_from and load.updated_at - store.unloaded_from[broker] < rule.delay_s * 1000:
                return self._skip("CoolDown")
            fresh.append(broker)
            total += load.ema
            squares += load.ema * load.ema
            n += 1
        if n == 0:
            return self._skip("OutDatedData" if outdated else "NoBrokers")
        if missing:
            return self._skip("NoLoadData")
        average = total / n
        variance = squares / n - average * average
        self.std = math.sqrt(variance) if variance >= 0 else math.nan
        order = sorted(fresh, key=lambda broker: (loads[broker].ema, broker))
        least, most, count, empty, few = 0, len(order) - 1, 0, 0, 0

        def under(broker: str) -> bool:
            k = min(max(rule.target / 2, 0), 0.5)
            low_usage = loads[broker].ema < average * k
            return low_usage or loads[broker].throughput_ema < loads[order[most]].throughput_ema * k

        def over(broker: str) -> bool:
            ema = loads[broker].ema
            return ema > rule.overloaded / 100 and ema > average + rule.target

        def transferable(bundle: str, source: str) -> bool:
            owned = store.owner.get(bundle) == source
            return owned and bundle.rpartition("/")[0] not in rule.excluded and bundle not in store.recent

        self.hits = self.hits + 1 if self.std > rule.target or under(order[least]) or over(order[most]) else 0
        if self.hits <= rule.hit_threshold:
            return self._skip("HitCount")
        decisions: set[Decision] = set()
        while count < rule.per_cycle and least < most:
            if self.std > rule.target:
                reason = "overloaded"
            elif under(order[least]):
                reason = "underloaded"
            elif over(order[most]):
                reason = "overloaded"
            else:
                break
            source, destination = order[most], order[least]
            most -= 1
            busy, idle = loads[source], loads[destination]
            want = busy.throughput * ((busy.ema - idle.ema) / 2) / busy.ema if busy.ema > 0 else 0.0
            bundles = store.top.get(source, [])
            if not bundles:
                empty += 1
                continue
            if len(bundles) == 1:
                few += 1
                continue
            back = iter(store.top.get(destination, []))
            out = gain = 0.0
            left = len(bundles)
            for bundle, carried in bundles:
                if not transferable(bundle, source):
                    continue
                if left <= 1:
                    break
                if carried == 0:
                    continue
                swaps: list[tuple[str, float]] = []
                swap = False
                if out - gain + carried > want:
                    if rule.transfer:
                        at_source = busy.throughput - out + gain - carried
                        at_destination = idle.throughput + out - gain + carried
                        for returned, carries in back:
                            if not transferable(returned, destination) or carries == 0:
                                continue
                            if at_source + carries < busy.throughput and at_destination - carries < busy.throughput:
                                swaps.append((returned, carries))
                                at_source += carries
                                at_destination -= carries
                                if at_destination <= at_source < busy.throughput * 0.75:
                                    swap = True
                                    break
                    if not swap:
                        break
                if rule.transfer:
                    if swap:
                        decisions |= {(destination, returned, source, reason) for returned, _ in swaps}
                        for _, carries in swaps if rule.debug else ():
                            gain += carries
                    decisions.add((source, bundle, destination, reason))
                else:
                    decisions.add((source, bundle, None, reason))
                out += carried
                left -= 1
            if out > 0:
                moved = (out - gain) * busy.ema / busy.throughput
                squares += max(0.0, busy.ema - moved) ** 2 + (idle.ema + moved) ** 2 - busy.ema**2 - idle.ema**2
                self.std = math.sqrt(abs(squares / n - average * average))
                count += 1
                least += 1
            else:
                few += 1
        if not decisions:
            return self._skip("NoLoadData" if empty > 0 else "NoBundles" if few > 0 else "HitCount")
        self.hits = 0
        self.outcome = ""
        return decisions

    def _skip(self, label: str) -> set[Decision]:
        self.outcome = label
        return set()


def top_bundles(stats: Mapping[str, Stats], most: int, unlisted: Iterable[str] = ()) -> list[str]:
    """The least busy of the busiest first; `unlisted` are namespaces. Bundles come in the order of their names."""
    dropped = {"pulsar/system", *unlisted}
    candidates = [
        name
        for name, (_, _, size_in, size_out, _, _) in sorted(stats.items())
        if size_in + size_out != 0 and name.rpartition("/")[0] not in dropped
    ]
    if not candidates or most <= 0:
        return []

    def key(name: str) -> tuple[int, ...]:
        rate_in, rate_out, size_in, size_out, count, cache = stats[name]
        return (
            math.floor(size_in / 1e5 + 0.5),
            math.floor(size_out / 1e5 + 0.5),
            math.floor((rate_in + rate_out) / 100 + 0.5),
            count // 500,
            cache // 100_000,
        )

    a = candidates
    most = min(most, len(a))
    start, end, target = 0, len(a) - 1, most - 1
    while start < end:
        lo, hi, mid, pivot = start, end, start, key(a[end])
        while mid <= hi:
            if key(a[mid]) > pivot:
                a[lo], a[mid] = a[mid], a[lo]
                lo += 1
                mid += 1
            elif key(a[mid]) < pivot:
                a[mid], a[hi] = a[hi], a[mid]
                hi -= 1
            else:
                mid += 1
        if lo <= target < mid:
            end = lo
            break
        if target < lo:
            end = lo - 1
        else:
            start = mid
    a[:end] = sorted(a[:end], key=key, reverse=True)
    return a[:most][::-1]
