"""Records of brokers, and the znodes that hold them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore, Op, Put
from loadmanager.wire.broker_data import (
    AGENT_PROTOCOL,
    LocalBrokerData,
    NamespaceBundleStats,
    ResourceUsage,
    encode_local_broker_data,
)

MIB = 1024 * 1024


def a_record(
    broker_id: str = "b1:8080",
    stats: Mapping[str, NamespaceBundleStats] | None = None,
    *,
    agent_url: str | None = None,
    cpu: float = 0.0,
) -> LocalBrokerData:
    """The record of a broker that reports `stats` (by bundle) and `cpu` per cent; without `agent_url` it has none."""
    host = broker_id.rpartition(":")[0]
    stats = dict(stats or {})
    unused = ResourceUsage(usage=0.0, limit=100.0)
    return LocalBrokerData(
        brokerId=broker_id,
        webServiceUrl=f"http://{broker_id}",
        pulsarServiceUrl=f"pulsar://{host}:6650",
        persistentTopicsEnabled=True,
        nonPersistentTopicsEnabled=True,
        cpu=ResourceUsage(usage=cpu, limit=100.0),
        memory=unused,
        directMemory=unused,
        bandwidthIn=unused,
        bandwidthOut=unused,
        msgThroughputIn=sum(entry.get("msgThroughputIn", 0.0) for entry in stats.values()),
        msgThroughputOut=sum(entry.get("msgThroughputOut", 0.0) for entry in stats.values()),
        msgRateIn=sum(entry.get("msgRateIn", 0.0) for entry in stats.values()),
        msgRateOut=sum(entry.get("msgRateOut", 0.0) for entry in stats.values()),
        lastUpdate=time.time_ns() // 1_000_000,  # an old report is not believed
        lastStats=stats,
        numTopics=sum(entry.get("topics", 0) for entry in stats.values()),
        numBundles=len(stats),
        numConsumers=0,
        numProducers=0,
        bundles=list(stats),
        protocols={AGENT_PROTOCOL: agent_url} if agent_url else {},
        advertisedListeners={"internal": {"brokerServiceUrl": f"pulsar://{host}.internal:6650"}},
    )


def load_of(mib_per_s: float, msg_rate: float = 100.0, topics: int = 1) -> NamespaceBundleStats:
    """A bundle with so many MiB/s in and as many out."""
    return NamespaceBundleStats(
        msgRateIn=msg_rate,
        msgRateOut=msg_rate,
        msgThroughputIn=mib_per_s * MIB,
        msgThroughputOut=mib_per_s * MIB,
        topics=topics,
        consumerCount=topics,
        producerCount=topics,
    )


async def register(store: MetadataStore, broker_id: str, record: LocalBrokerData | bytes) -> Registration:
    """Register a broker in the session of `store`, with its record or whatever bytes stand in its place."""
    data = record if isinstance(record, bytes) else encode_local_broker_data(record)
    path = paths.broker(broker_id)
    await store.commit([Create(path, data, ephemeral=True)])
    znode = await store.get(path)
    assert znode is not None
    return Registration(BrokerId(broker_id), znode.czxid)


async def write(store: MetadataStore, path: str, data: bytes) -> None:
    """Write a znode as an operator with a shell would: created if it is missing, replaced if it is there."""
    await store.ensure_path(path.rpartition("/")[0])
    op: Op = Create(path, data) if await store.get(path) is None else Put(path, data)
    await store.commit([op])


async def read(store: MetadataStore, path: str) -> bytes:
    znode = await store.get(path)
    assert znode is not None, f"no znode {path}"
    return znode.data
