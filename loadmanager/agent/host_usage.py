"""Usage and limits of the host, container or process, computed from kernel counters.

Units are Pulsar's: CPU in percent of one core, memory in MiB, bandwidth in kbit/s. This module only computes;
`loadmanager.agent.host_readings` takes the readings.

An unknown limit is published as 0, with the usage as measured. Every reader of Pulsar's format takes a limit of 0 as
"0 % used", so an unknown resource neither attracts nor repels bundles. A guess would. The log, /healthz and the metric
`loadmanager_agent_resource_limit_known` show unknown limits.

Differences from Pulsar: a NIC whose speed cannot be read makes the limit unknown (Pulsar adds 0 or -1 Mbit/s to the
sum). If there are only virtual NICs (a container), a declared speed applies to the one with the default route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmanager.wire.broker_data import ResourceUsage

_KBIT_PER_GBIT = 1_000_000
_KBIT_PER_MBIT = 1_000
_BITS_PER_KBIT = 1_000
_BITS_PER_BYTE = 8
_BYTES_PER_MIB = 1024 * 1024
_PERCENT = 100

PidAndStart = tuple[int, float]
"""A process: pid and start time, so that a reused pid is a different process."""


@dataclass(frozen=True, slots=True)
class Nic:
    """Network card; the speed is None if it is unreadable or invalid (-1 for a virtual card)."""

    name: str
    speed_mbit_per_s: int | None
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class HostReading:
    """Counters and gauges at one moment.

    `cpu_s`: CPU seconds used so far, by process (one entry for a whole host or container). `memory_limit_bytes` and
    `cores` are the tightest limits that apply. `nics` are the cards to count.
    """

    at_s: float
    cpu_s: Mapping[PidAndStart, float]
    cores: float
    memory_used_bytes: int
    memory_limit_bytes: int
    nics: tuple[Nic, ...] = ()


_UNKNOWN = ResourceUsage(usage=0.0, limit=0.0)

HostUsage = Mapping[str, ResourceUsage]
"""The five resources of a report, by their names there. Direct memory exists only in a JVM and stays unknown."""

NOTHING_KNOWN: HostUsage = dict.fromkeys(("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"), _UNKNOWN)


def unknown_limits(usage: HostUsage) -> tuple[str, ...]:
    """Return the names of the resources without a known limit."""
    return tuple(name for name, resource in usage.items() if resource["limit"] <= 0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per second in and out, if bandwidth is not taken from the NICs' own counters."""

    in_bytes_per_s: float
    out_bytes_per_s: float


def usage_between(
    previous: HostReading,
    current: HostReading,
    nic_speed_gbps: float | None,
    traffic: Traffic | None = None,
) -> HostUsage:
    """Return the usage from `previous` to `current`.

    `nic_speed_gbps` is the declared speed of each NIC and overrides the detected one. With `traffic`, bandwidth usage
    is the broker's own; the limit is the same.
    """
    elapsed_s = current.at_s - previous.at_s
    limit = bandwidth_limit(current.nics, nic_speed_gbps)
    if traffic is None:
        traffic = _nic_traffic(previous, current, elapsed_s)
    memory_limit = current.memory_limit_bytes / _BYTES_PER_MIB
    return {
        **NOTHING_KNOWN,
        "cpu": ResourceUsage(usage=_cpu_percent(previous, current, elapsed_s), limit=_PERCENT * current.cores),
        "memory": ResourceUsage(usage=current.memory_used_bytes / _BYTES_PER_MIB, limit=memory_limit),
        "bandwidthIn": ResourceUsage(usage=_kbit(traffic.in_bytes_per_s), limit=limit or 0.0),
        "bandwidthOut": ResourceUsage(usage=_kbit(traffic.out_bytes_per_s), limit=limit or 0.0),
    }


def why_bandwidth_is_unknown(nics: tuple[Nic, ...]) -> str:
    """Return a readable reason why `bandwidth_limit` is unknown."""
    silent = ", ".join(nic.name for nic in nics if nic.speed_mbit_per_s is None)
    return f"no speed is to be read of {silent}" if silent else "there is no physical network card, as in a container"


def bandwidth_limit(nics: tuple[Nic, ...], nic_speed_gbps: float | None) -> float | None:
    """Return the bandwidth of all NICs in one direction, in kbit/s; None if unknown."""
    if not nics:
        return None
    if nic_speed_gbps is not None:
        return nic_speed_gbps * _KBIT_PER_GBIT * len(nics)
    total = 0
    for nic in nics:
        if nic.speed_mbit_per_s is None:
            return None
        total += nic.speed_mbit_per_s
    return float(total * _KBIT_PER_MBIT)


def _cpu_percent(previous: HostReading, current: HostReading, elapsed_s: float) -> float:
    if elapsed_s <= 0:
        return 0.0
    used_s = 0.0
    for process, seconds in current.cpu_s.items():
        # A new process, such as a restarted broker, counts from zero.
        used_s += max(0.0, seconds - previous.cpu_s.get(process, 0.0))
    return _PERCENT * used_s / elapsed_s


def _nic_traffic(previous: HostReading, current: HostReading, elapsed_s: float) -> Traffic:
    if elapsed_s <= 0:
        return Traffic(0.0, 0.0)
    before = {nic.name: nic for nic in previous.nics}
    received = sent = 0
    for nic in current.nics:
        earlier = before.get(nic.name)
        if earlier is not None:  # a counter that went backwards was reset when the driver was reloaded
            received += max(0, nic.received_bytes - earlier.received_bytes)
            sent += max(0, nic.sent_bytes - earlier.sent_bytes)
    return Traffic(received / elapsed_s, sent / elapsed_s)


def _kbit(bytes_per_s: float) -> float:
    return bytes_per_s * _BITS_PER_BYTE / _BITS_PER_KBIT
