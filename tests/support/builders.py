"""Builders of planner inputs with defaults for everything a test does not set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.policies import NO_POLICIES, Policies
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    BrokerReport,
    BundleAverages,
    FloatArray,
)
from loadmanager.core.model.snapshot import Snapshot, build_snapshot

MIB = 1024 * 1024

Load = tuple[float, float, float, float]
"""Messages/s in and out, bytes/s in and out."""


def broker(name: str, incarnation: int = 1) -> Registration:
    """One life of `name`, an id or only its host."""
    return Registration(BrokerId(name if ":" in name else f"{name}:8080"), incarnation)


def bundle(number: int, namespace: str = "tenant/ns") -> str:
    """A bundle's name; those of a namespace sort by number."""
    return f"{namespace}/0x{number:08x}_0x{number + 1:08x}"


def throughput(mib_per_s: float) -> Load:
    """Return a throughput of this many MiB/s in, and as many out."""
    return (0.0, 0.0, mib_per_s * MIB, mib_per_s * MIB)


def usage_of(percent: Mapping[int, float | tuple[float, float]]) -> FloatArray:
    """A broker's usage: per resource (usage, limit), or the usage of 100; 0 of 0 for the others."""
    usage = np.zeros((5, 2))
    for resource, given in percent.items():
        usage[resource] = given if isinstance(given, tuple) else (given, 100.0)
    return usage


def report(
    bundles: Mapping[str, Load] | Sequence[str] = (),
    *,
    cpu: float | tuple[float, float] = (0, 0),
    memory: float | tuple[float, float] = (0, 0),
    direct_memory: float | tuple[float, float] = (0, 0),
    bandwidth_in: float | tuple[float, float] = (0, 0),
    bandwidth_out: float | tuple[float, float] = (0, 0),
    load: Load | None = None,
    num_bundles: int | None = None,
    topics: int = 0,
    topics_per_bundle: int = 1,
    last_update_ms: int = 0,
    persistent_enabled: bool = True,
    non_persistent_enabled: bool = True,
    version: str = "1.0.0",
    load_manager_class: str = "",
) -> BrokerReport:
    """A report of these bundles; the totals are what they add up to unless `load` and `num_bundles` say otherwise."""
    names = tuple(bundles)
    loads = [bundles[name] for name in names] if isinstance(bundles, Mapping) else [(0.0,) * 4 for _ in names]
    bundle_load = np.array(loads, dtype=np.float64).reshape(-1, 4)
    return BrokerReport(
        usage=usage_of(
            {
                CPU: cpu,
                MEMORY: memory,
                DIRECT_MEMORY: direct_memory,
                BANDWIDTH_IN: bandwidth_in,
                BANDWIDTH_OUT: bandwidth_out,
            }
        ),
        load=bundle_load.sum(axis=0) if load is None else np.array(load, dtype=np.float64),
        num_topics=topics,
        num_bundles=len(names) if num_bundles is None else num_bundles,
        num_consumers=0,
        num_producers=0,
        bundle_names=names,
        bundle_load=bundle_load,
        bundle_topics=np.full(len(names), topics_per_bundle, dtype=np.int64),
        bundle_sessions=np.zeros(len(names), dtype=np.int64),
        bundle_cache_bytes=np.zeros(len(names), dtype=np.int64),
        last_update_ms=last_update_ms,
        start_timestamp_ms=0,
        version=version,
        load_manager_class=load_manager_class,
        persistent_enabled=persistent_enabled,
        non_persistent_enabled=non_persistent_enabled,
    )


def averages(short: Load, long: Load | None = None, samples: int = 1, topics: int = 0) -> BundleAverages:
    """History of one bundle, the same in the short and the long term unless told."""
    return BundleAverages(np.array(short), np.array(long or short), samples, samples, topics)


def snapshot(
    reports: Mapping[str, BrokerReport],
    known: Mapping[str, BundleAverages] | None = None,
    recently_unloaded: Sequence[str] = (),
    taken_at_s: float = 0.0,
    policies: Policies = NO_POLICIES,
    preallocated: Mapping[str, str] | None = None,
) -> Snapshot:
    """Brokers by host or id, each owning what it reports; `preallocated` are bundles with the broker each was given."""
    registered = {broker(name): given for name, given in reports.items()}
    given = {name: broker(host).broker for name, host in (preallocated or {}).items()}
    return build_snapshot(taken_at_s, registered, known or {}, frozenset(recently_unloaded), policies, given)


def owned(owner: Registration, version: int = 1) -> Ownership:
    return Ownership(OwnershipState.OWNED, owner, None, version)


def releasing(source: Registration, destination: Registration | None = None, version: int = 2) -> Ownership:
    return Ownership(OwnershipState.RELEASING, source, destination, version)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)
