"""Bundle statistics, computed from the counters of a broker's topics. Pure functions, no I/O.

A counter that went backwards belongs to a topic that was closed and opened again, so it counts from zero. Elapsed
time comes from the broker's own clock (`monotonicS`), so network delay does not distort rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from loadmanager.agent.host_usage import Traffic
from loadmanager.wire.broker_data import NO_STATS, NamespaceBundleStats
from loadmanager.wire.http_bodies import BrokerStats, TopicStats

_SHORTEST_INTERVAL_S = 0.01
_SHORTEST_AGE_S = 10.0
"""Minimum age of an open topic in a rate: reconnecting clients send a backlog at once."""


def topic_loads(
    previous: BrokerStats | None, current: BrokerStats, ages_s: Mapping[str, float] = MappingProxyType({})
) -> dict[str, NamespaceBundleStats] | None:
    """Return the load of each topic since `previous`, or since it was opened if that is less than `ages_s` ago.

    Rates are 0 without `previous`, or if `previous` is from another process. Return None if no time has passed on the
    broker's clock; the previous result still holds then.
    """
    if previous is None or previous.process != current.process:
        return {entry.topic: _load(entry, entry, 1.0, 1.0) for entry in current.topics}
    elapsed_s = current.monotonic_s - previous.monotonic_s
    if elapsed_s < _SHORTEST_INTERVAL_S:
        return None
    before = {entry.topic: entry for entry in previous.topics}
    loads = {}
    for entry in current.topics:
        age_s = max(ages_s.get(entry.topic, elapsed_s), _SHORTEST_AGE_S)
        loads[entry.topic] = _load(before.get(entry.topic), entry, elapsed_s, min(age_s, elapsed_s))
    return loads


def bundle_loads(
    loads: Mapping[str, NamespaceBundleStats], find_bundle: Callable[[str], str | None]
) -> tuple[dict[str, NamespaceBundleStats], list[str]]:
    """Add the topics' loads by full bundle name, sorted; also return the topics for which `find_bundle` has no name."""
    bundles: dict[str, NamespaceBundleStats] = {}
    unmapped = []
    for topic, load in loads.items():
        bundle = find_bundle(topic)
        if bundle is None:
            unmapped.append(topic)
        else:
            total = bundles.setdefault(bundle, NO_STATS.copy())
            for name in load:
                total[name] += load[name]  # type: ignore[literal-required]  # a field of both
    return dict(sorted(bundles.items())), unmapped


def traffic(loads: Mapping[str, NamespaceBundleStats]) -> Traffic:
    """Return the total bytes per second of all topics of the broker."""
    return Traffic(
        in_bytes_per_s=sum(load["msgThroughputIn"] for load in loads.values()),
        out_bytes_per_s=sum(load["msgThroughputOut"] for load in loads.values()),
    )


def _load(before: TopicStats | None, now: TopicStats, elapsed_s: float, age_s: float) -> NamespaceBundleStats:
    """Return the load of a topic; `age_s` is the time since it was opened, for one that was not open before."""
    deltas = _counters(now)
    growth = None if before is None else tuple(new - old for new, old in zip(deltas, _counters(before), strict=True))
    # If one counter went backwards, all of them were reset.
    if growth is None or min(growth) < 0:
        elapsed_s = age_s
    else:
        deltas = growth
    messages_in, messages_out, bytes_in, bytes_out = deltas
    return NamespaceBundleStats(
        msgRateIn=messages_in / elapsed_s,
        msgRateOut=messages_out / elapsed_s,
        msgThroughputIn=bytes_in / elapsed_s,
        msgThroughputOut=bytes_out / elapsed_s,
        producerCount=now.producers,
        consumerCount=now.consumers,
        topics=1,
    )


def _counters(entry: TopicStats) -> tuple[int, ...]:
    return entry.messages_in, entry.messages_out, entry.bytes_in, entry.bytes_out
