"""Selection of candidate brokers by Pulsar's two load managers, transcribed over dictionaries and sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Broker:
    """`ranges` maps a namespace to the number of its bundles that the broker has or was given."""

    topics: int
    version: str
    persistent: bool
    non_persistent: bool
    ranges: Mapping[str, int]


@dataclass(frozen=True)
class Isolation:
    namespaces: str
    primary: str
    secondary: str
    min_limit: int


@dataclass(frozen=True)
class World:
    brokers: Mapping[str, Broker]
    isolation: Mapping[str, Isolation] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    max_topics: int = 50_000
    evenly: bool = True
    later_versions: bool = False
    failure_domains: bool = False


class UnreadableVersionError(Exception):
    pass


def apply_namespace_policies(world: World, namespace: str, *, non_persistent: bool) -> set[str]:
    return _with_policies(world, namespace, set(world.brokers), non_persistent=non_persistent)


def _with_policies(world: World, namespace: str, available: set[str], *, non_persistent: bool) -> set[str]:
    matching = [world.isolation[name] for name in sorted(world.isolation)]
    policy = next((each for each in matching if re.fullmatch(each.namespaces, namespace)), None)
    primaries, secondaries, shared = set(), set(), set()
    for broker in available:
        host = broker[: broker.rindex(":")]
        if policy is not None:
            if re.fullmatch(policy.primary, host):
                primaries.add(broker)
            elif re.fullmatch(policy.secondary, host):
                secondaries.add(broker)
            continue
        if non_persistent and not world.brokers[broker].non_persistent:
            continue
        if not non_persistent and not world.brokers[broker].persistent:
            continue
        if not any(re.fullmatch(each.primary, host) for each in world.isolation.values()):
            shared.add(broker)
    if policy is None:
        return shared
    return primaries | secondaries if len(primaries) < policy.min_limit else primaries


def filter_topics(world: World, candidates: set[str]) -> set[str]:
    kept = {broker for broker in candidates if world.brokers[broker].topics <= world.max_topics}
    return kept or candidates


def filter_anti_affinity(
    world: World, namespace: str, candidates: set[str], counted: Callable[[Mapping[str, int], str], int]
) -> set[str]:
    group = world.groups.get(namespace, "").strip().lower()
    if not group or not candidates:
        return candidates
    members = [name for name, each in world.groups.items() if each.strip().lower() == group]
    count = {
        broker: sum(counted(world.brokers[broker].ranges, member) for member in members) for broker in world.brokers
    }
    kept = set(candidates)
    if world.failure_domains and world.domains:
        total: dict[str, int] = {}
        for broker in candidates:
            domain = world.domains.get(broker, "default")
            total[domain] = total.get(domain, 0) + count[broker]
        kept = {broker for broker in kept if total[world.domains.get(broker, "default")] == min(total.values())}
    least = min(count[broker] for broker in kept)
    if least == 0:
        return {broker for broker in kept if not count[broker] > 0}
    return {broker for broker in kept if count[broker] == least}


def distinct_namespaces(ranges: Mapping[str, int], member: str) -> int:
    return 1 if ranges.get(member, 0) else 0


def number_of_bundles(ranges: Mapping[str, int], member: str) -> int:
    return ranges.get(member, 0)


def filter_even(world: World, namespace: str, candidates: set[str]) -> set[str]:
    if not candidates or not (world.evenly or namespace == "pulsar/system"):
        return candidates
    fewest = min(world.brokers[broker].ranges.get(namespace, 0) for broker in candidates)
    return {broker for broker in candidates if not world.brokers[broker].ranges.get(namespace, 0) > fewest}


def filter_versions(world: World, candidates: set[str]) -> set[str]:
    """For versions of three numbers and `-SNAPSHOT` alone."""
    if not world.later_versions:
        return candidates
    if not candidates:
        raise UnreadableVersionError
    read = {}
    for broker in candidates:
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(-SNAPSHOT)?", world.brokers[broker].version)
        if found is None:
            raise UnreadableVersionError
        read[broker] = (int(found[1]), int(found[2]), int(found[3]), found[4] is None)
    latest = max(read.values())
    return {broker for broker in candidates if read[broker] == latest}


@dataclass(frozen=True)
class Selection:
    """Candidates after the limits, and in the end; `failed`: a filter failed, and Pulsar started over."""

    limited: set[str]
    candidates: set[str]
    failed: bool


def select_broker(world: World, namespace: str, *, non_persistent: bool = False) -> Selection:
    """Steps 1 to 6 of the modular load manager."""
    candidates = apply_namespace_policies(world, namespace, non_persistent=non_persistent)
    candidates = filter_topics(world, candidates)
    candidates = limited = filter_anti_affinity(world, namespace, candidates, distinct_namespaces)
    candidates = filter_even(world, namespace, candidates)
    failed = False
    try:
        candidates = filter_versions(world, candidates)
    except UnreadableVersionError:
        failed = True
    if failed or not candidates:
        candidates = candidates | apply_namespace_policies(world, namespace, non_persistent=non_persistent)
    return Selection(limited, candidates, failed)


def select_async(world: World, namespace: str, excluded: str | None, *, non_persistent: bool = False) -> set[str]:
    """The filters of the extensible load manager."""
    candidates = set(world.brokers) - {excluded or ""}
    candidates = {broker for broker in candidates if not world.brokers[broker].topics >= world.max_topics}
    with suppress(UnreadableVersionError):
        candidates = filter_versions(world, candidates)
    candidates = filter_anti_affinity(world, namespace, candidates, number_of_bundles)
    return _with_policies(world, namespace, candidates, non_persistent=non_persistent)


def may_unload(world: World, namespace: str, current: str) -> bool:
    """Return true if anti-affinity lets a bundle go, and isolation leaves a destination."""
    candidates = apply_namespace_policies(world, namespace, non_persistent=False)
    if not candidates - {current}:
        return False
    group = world.groups.get(namespace, "").strip().lower()
    if not group:
        return True
    members = [name for name, each in world.groups.items() if each.strip().lower() == group]
    count = {
        broker: sum(distinct_namespaces(world.brokers[broker].ranges, member) for member in members)
        for broker in world.brokers
    }
    if not any(count.values()):
        return True
    least = min(count[broker] for broker in candidates)
    own = count[current] if current in candidates else 0
    if least == 0 or own > least:
        return True
    return not all(count[broker] == least for broker in candidates)


def least_resource_usage(
    usage: Mapping[str, float],
    idle: Mapping[str, bool],
    ema: dict[str, float],
    history: float,
    difference_percent: float,
) -> set[str]:
    """The modular rule over the candidates in their order; `ema` is what it remembers."""
    total = 0.0
    for broker, now in usage.items():
        before = None if idle[broker] else ema.get(broker)
        ema[broker] = now if before is None else before * history + (1 - history) * now
        total += ema[broker]
    mean = total / len(usage)
    best = {broker for broker in usage if ema[broker] + difference_percent / 100 <= mean}
    return best or set(usage)


class RoundRobin:
    """The selector with its counter and its list."""

    def __init__(self) -> None:
        self.counter = 0
        self.cache: list[str] = []

    def select(self, candidates: list[str]) -> str | None:
        if not candidates:
            return None
        i = self.counter % len(candidates)
        self.counter = 0 if self.counter == 2147483647 else self.counter + 1
        if len(self.cache) <= i or len(self.cache) != len(candidates):
            self.cache = list(candidates)
        chosen = self.cache[i]
        if chosen not in candidates:
            self.cache = list(candidates)
            chosen = self.cache[i]
        return chosen
