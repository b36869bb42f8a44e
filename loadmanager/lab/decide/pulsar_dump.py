"""Dump of a Pulsar cluster, read from its ZooKeeper. Nothing is written.

Source: the znodes of Pulsar's brokers. Brokers with ExtensibleLoadManagerImpl publish no load in ZooKeeper. The state
of shedders is in the memory of Pulsar's leader alone, so a dump of Pulsar has no `state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from loadmanager.lab.decide.decision_settings import known_settings, usable_settings
from loadmanager.lab.decide.dump_validation import is_range
from loadmanager.lab.decide.record_collector import Collected, below, walk, without_empty_averages
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.pulsar_detection import (
    CLUSTERS,
    DYNAMIC_CONFIGURATION,
    LOCAL_POLICIES,
    OWNERSHIP,
    failure_domains,
    isolation_policies,
)
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats
from loadmanager.wire.pulsar_records import (
    HASH_FUNCTION,
    NO_LOAD,
    anti_affinity_group_in,
    boundaries_in,
    isolation_in,
    only,
    owner_in,
    parse_record,
    publishes_no_load,
)

_EVERYWHERE = "global"
"""Entry in the list of clusters that is not a cluster."""

_Record = tuple[str, str, dict[str, Any]]


async def collect_pulsar(store: MetadataStore, taken_at_ms: int, cluster: str | None) -> Collected:
    """Read the state of the Pulsar cluster in this ZooKeeper, with the policies of `cluster` or of the only one."""
    collected = Collected({"takenAt": taken_at_ms, "brokers": {}, "bundleData": {}, "namespaces": {}})
    await _brokers(store, collected)
    await _namespaces(store, collected)
    await _ownership(store, collected)
    await _averages(store, collected)
    await _policies(store, collected, cluster)
    await _configuration(store, collected)
    return collected


async def _records(
    store: MetadataStore, collected: Collected, named: Mapping[str, str], empty: list[str] | None = None
) -> list[_Record]:
    """Return name, path and JSON object of each readable znode of `named`; see `Collected.read`."""
    read = collected.read(store, named, lambda _, text, path: parse_record(text, path), empty)
    return [(name, path, record) async for name, path, _, record in read]


async def _records_of_namespaces(store: MetadataStore, collected: Collected, root: str) -> list[_Record]:
    """Read the record of each namespace below `root`. An empty znode is a cluster of a V1 name
    (`tenant/cluster/namespace`), which has namespaces below it.
    """
    clusters: list[str] = []
    names = await walk(store, root, 2)
    found = await _records(store, collected, {name: f"{root}/{name}" for name in names}, clusters)
    names = [*chain.from_iterable((await below(store, root, clusters)).values())]
    return found + await _records(store, collected, {name: f"{root}/{name}" for name in names}, [])


async def _records_of_bundles(store: MetadataStore, collected: Collected, root: str) -> list[_Record]:
    """Read the record of each bundle below `root`. In V1 names, the namespace is at the level of a range and its
    bundles are one level below.
    """
    names = await walk(store, root, 3)
    of_namespaces = await below(store, root, [name for name in names if not is_range(name.rpartition("/")[2])])
    bundles = [each for name in names for each in of_namespaces.get(name) or [name]]
    return await _records(store, collected, {name: f"{root}/{name}" for name in bundles}, [])


async def _brokers(store: MetadataStore, collected: Collected) -> None:
    """Collect the brokers and their reports."""
    names = await store.children(paths.BROKERS)
    for name, path, record in await _records(store, collected, {name: paths.broker(name) for name in names}):
        if "underLoaded" in record:
            collected.faults.append(f"{path}: a report of SimpleLoadManagerImpl, which a dump cannot hold")
            continue
        collected.add("brokers", name, _broker(record), path)
        if publishes_no_load(record):
            collected.faults.append(f"{path}: {NO_LOAD}")


def _broker(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a broker record that a dump holds; unknown fields are dropped, as Pulsar does."""
    content = only(record, LocalBrokerData.__annotations__)
    if "brokerVersion" in record:
        content["brokerVersionString"] = record["brokerVersion"]
    stats = content.get("lastStats")
    if isinstance(stats, dict):
        content["lastStats"] = {
            name: only(each, NamespaceBundleStats.__annotations__) if isinstance(each, dict) else each
            for name, each in stats.items()
        }
    return content


async def _namespaces(store: MetadataStore, collected: Collected) -> None:
    for name, path, record in await _records_of_namespaces(store, collected, LOCAL_POLICIES):
        namespace: dict[str, Any] = {"hashFunction": HASH_FUNCTION}
        found = {"boundaries": boundaries_in(record), "antiAffinityGroup": anti_affinity_group_in(record)}
        namespace |= {key: value for key, value in found.items() if value is not None}
        collected.add("namespaces", name, namespace, path)


async def _ownership(store: MetadataStore, collected: Collected) -> None:
    namespaces = collected.content["namespaces"]
    for name, path, record in await _records_of_bundles(store, collected, OWNERSHIP):
        owner = owner_in(record)
        if owner not in collected.content["brokers"]:
            collected.faults.append(f"{path}: owner {owner!r} is not registered")
            continue
        namespace, _, bundle_range = name.rpartition("/")
        known = namespaces.get(namespace, {"hashFunction": HASH_FUNCTION})
        ownership = {**known.get("ownership", {}), bundle_range: {"state": "Owned", "owner": owner}}
        namespaces[namespace] = {**known, "ownership": ownership}


async def _averages(store: MetadataStore, collected: Collected) -> None:
    for name, path, record in await _records_of_bundles(store, collected, paths.BUNDLE_DATA):
        collected.add("bundleData", name, only(record, ("shortTermData", "longTermData", "topics")), path)
    brokers = collected.content["brokers"]
    named = {name: paths.broker_time_average(name) for name in brokers}
    for name, path, record in await _records(store, collected, named):
        averages = without_empty_averages(record, brokers[name])
        if averages is not None:
            collected.add("timeAverages", name, averages, path)


async def _policies(store: MetadataStore, collected: Collected, cluster: str | None) -> None:
    local = [cluster] if cluster else [name for name in await store.children(CLUSTERS) if name != _EVERYWHERE]
    if len(local) > 1:
        collected.faults.append(f"{CLUSTERS}: of which cluster are the policies? --cluster: {', '.join(local)}")
        return
    for name in local:
        path = isolation_policies(name)
        for _, _, policies in await _records(store, collected, {name: path}):
            for policy, data in policies.items():
                collected.add("isolationPolicies", policy, isolation_in(data), path)
        domains = failure_domains(name)
        named = {domain: f"{domains}/{domain}" for domain in await store.children(domains)}
        for domain, path, record in await _records(store, collected, named):
            collected.add("failureDomains", domain, only(record, ("brokers",)), path)


async def _configuration(store: MetadataStore, collected: Collected) -> None:
    """Collect the known keys of dynamic configuration. Pulsar accepts any text there; its brokers ignore invalid
    values, and so does this function.
    """
    for _, path, record in await _records(store, collected, {"": DYNAMIC_CONFIGURATION}):
        texts = {key: value for key, value in known_settings(record).items() if isinstance(value, str)}
        values, faults = usable_settings(texts, path)
        collected.faults += faults
        if values:
            collected.content["configuration"] = values
