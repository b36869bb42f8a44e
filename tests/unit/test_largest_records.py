"""Each record in the metadata store at its maximum size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loadmanager.agent.host_usage import NOTHING_KNOWN
from loadmanager.agent.reporter import build_report, identity_of, pack_report
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.core.domain.bundles import MAX_BUNDLES, NamespaceBundles
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.core.model.load import BundleAverages, TimeMean
from loadmanager.leader.persistence import pack_averages, pack_within_limit
from loadmanager.store.metadata_store import MAX_ZNODE_BYTES
from loadmanager.store.znode_codec import decode, pack
from loadmanager.wire.average_records import decode_bundle_data
from loadmanager.wire.broker_data import MAX_BUNDLES_PER_REPORT, NamespaceBundleStats, decode_local_broker_data
from loadmanager.wire.store_records import decode_namespace, encode_namespace
from loadmanager.wire.strategy_state import StrategyStateRecord, parse_strategy_state

RNG = np.random.default_rng(1)
NAME = NamespaceName.parse("tenant/namespace")
SETTINGS = AgentSettings(broker_id="a:8080", broker_url="http://a:1", load_manager_urls=("http://n:8080",))
IDENTITY = identity_of(SETTINGS, "http://127.0.0.1:9090", "here/1")
BUNDLES = NamespaceBundles((0, *np.unique(RNG.integers(1, 2**32 - 1, MAX_BUNDLES - 1)).tolist(), 2**32 - 1))
RANGES = list(BUNDLES.range_texts())
NAMES = [f"{NAME}/{text}" for text in RANGES]


def loads(count: int) -> list[list[float]]:
    """Unrelated loads, from next to nothing to a whole host, with all digits."""
    rows: list[list[float]] = (10 ** RNG.uniform(-1, 9, (count, 4))).tolist()
    return rows


def a_namespace() -> bytes:
    """All bundles are being moved among many brokers with long names."""
    brokers = [Registration(BrokerId(f"broker-{n}.a-long-domain.example.com:8080"), n * 7_919_777) for n in range(500)]
    chosen = RNG.integers(500, size=(len(RANGES), 2)).tolist()
    ownerships = [
        Ownership(
            OwnershipState.RELEASING,
            brokers[owner],
            brokers[to],
            n * 37 % 9_973,
            12_345,
            1_753_000_000_000 + n**2,
            "shed",
        )
        for n, (owner, to) in enumerate(chosen)
    ]
    return pack(encode_namespace(NamespaceState(NAME, BUNDLES, tuple(ownerships))))


def averages() -> bytes:
    history = {
        name: BundleAverages(
            np.array(now), np.array(now) * 1.1, 10, 1_000 - n % 100, n % 5_000, TimeMean(np.array(now) / 3, now[0])
        )
        for n, (name, now) in enumerate(zip(NAMES, loads(len(NAMES)), strict=True))
    }
    return pack_averages(history)


def a_report() -> bytes:
    bundles = MAX_BUNDLES_PER_REPORT
    names = [f"tenant/ns-{n}/{text}" for n in range(bundles // len(RANGES) + 1) for text in RANGES][:bundles]
    stats = {
        name: NamespaceBundleStats(
            msgRateIn=load[0],
            msgRateOut=load[1],
            msgThroughputIn=load[2],
            msgThroughputOut=load[3],
            consumerCount=n * 7 % 5_000,
            producerCount=n * 11 % 5_000,
            topics=n * 13 % 2_000,
            cacheSize=0,
        )
        for n, (name, load) in enumerate(zip(names, loads(bundles), strict=True))
    }
    return pack_report(build_report(IDENTITY, NOTHING_KNOWN, stats, None, None, 1))


def what_strategies_remember() -> bytes:
    """Memory of strategies for 100,000 bundles."""
    names = [f"tenant/ns-{n}/{text}" for n in range(7) for text in RANGES][:100_000]
    states = {"large": {"quotas": dict(zip(names, loads(len(names)), strict=True))}, "churn": {"memory": {}}}
    unloaded = dict(zip(names, RNG.uniform(1.7e9, 1.8e9, len(names)).tolist(), strict=True))
    return pack_within_limit(StrategyStateRecord(states=states, recently_unloaded=unloaded, last_unloaded={"b:1": 1.0}))


def read_strategies(data: bytes) -> int:
    record, fault = parse_strategy_state(data, "here")
    assert fault is None
    return len(record.last_unloaded)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("write", "read", "entries"),
    [
        (a_namespace, lambda data: len(decode_namespace(NAME, data, "here").ownerships), len(RANGES)),
        (averages, lambda data: len(decode_bundle_data(str(NAME), data, "here")), len(RANGES)),
        (a_report, lambda data: len(decode_local_broker_data(data, "here")["lastStats"] or ()), 20_000),
        (what_strategies_remember, read_strategies, 1),
    ],
)
def test_largest_records_fit_a_znode(write: Callable[[], bytes], read: Callable[[bytes], int], entries: int) -> None:
    data = write()
    assert len(data) <= MAX_ZNODE_BYTES
    assert read(decode(data, "here")) == entries
