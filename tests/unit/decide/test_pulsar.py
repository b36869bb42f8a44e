"""A dump of a cluster of Pulsar's, from the znodes that its brokers write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.dumps import answers
from support.registrations import write
from support.stores import MemoryWorld

from loadmanager.decide.collecting import Collected
from loadmanager.decide.pulsar import collect_pulsar
from loadmanager.store.base import MetadataStore
from loadmanager.wire.dump import encode

LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"
STATS = {
    "msgRateIn": 1200.5,
    "msgThroughputIn": 2.0e8,
    "msgRateOut": 2401.0,
    "msgThroughputOut": 2.0e8,
    "consumerCount": 8,
    "producerCount": 4,
    "topics": 16,
    "cacheSize": 1048576,
    "new": 1,
}
AVERAGES = {"msgThroughputIn": 1.0e8, "msgThroughputOut": 1.0e8, "msgRateIn": 1.0, "msgRateOut": 1.0}
HISTORY = {
    "shortTermData": {"maxSamples": 10, "numSamples": 10, **AVERAGES},
    "longTermData": {"maxSamples": 1000, "numSamples": 412, **AVERAGES},
    "topics": 16,
}


def local_broker_data(cpu: object, bundles: list[str]) -> dict[str, Any]:
    return {
        "webServiceUrl": "http://b1:8080",
        "pulsarServiceUrl": "pulsar://b1:6650",
        "persistentTopicsEnabled": True,
        "cpu": {"usage": cpu, "limit": 100.0},
        "memory": {"usage": 1843.2, "limit": 4096.0},
        "bandwidthIn": {"usage": "NaN", "limit": 1.0e7},
        "msgThroughputIn": 4.0e8,
        "msgThroughputOut": 4.0e8,
        "lastStats": {f"public/default/{each}": STATS for each in bundles},
        "bundles": [f"public/default/{each}" for each in bundles],
        "numBundles": len(bundles),
        "brokerVersionString": "4.0.12",
        "protocols": {},
        "advertisedListeners": {"internal": {"brokerServiceUrl": "pulsar://b1:6650"}},
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
        "startTimestamp": 1753000000000,
        "maxResourceUsage": 0.17,
        "loadReportType": "LocalBrokerData",
        "someNewField": {"x": [1]},
    }


ZNODES: dict[str, object] = {
    "/loadbalance/brokers/b1:8080": local_broker_data(95.0, [LOWER, UPPER]),
    "/loadbalance/brokers/b2:8080": local_broker_data(5.0, []),
    "/loadbalance/bundle-data/public/default/" + LOWER: HISTORY,
    "/loadbalance/broker-time-average/b1:8080": {"longTermMsgRateIn": 0.0},
    "/loadbalance/broker-time-average/b2:8080": {"longTermMsgRateIn": 7.0},
    "/namespace/public/default/" + LOWER: {"nativeUrl": "pulsar://b1:6650", "httpUrl": "http://b1:8080"},
    "/namespace/public/default/" + UPPER: {"brokerId": "b1:8080", "disabled": False},
    "/namespace/pulsar/b1:8080/0x00000000_0xffffffff": {"brokerId": "b1:8080"},
    "/admin/local-policies/public/default": {
        "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
        "namespaceAntiAffinityGroup": "g1",
        "migrated": False,
    },
    "/admin/clusters/c1/namespaceIsolationPolicies": {
        "p": {
            "namespaces": ["other/.*"],
            "primary": ["b9"],
            "secondary": [],
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "1", "usage_threshold": "80"},
            },
            "unload_scope": "changed",
        }
    },
    "/admin/clusters/c1/failureDomain/d1": {"brokers": ["b1:8080"]},
    "/admin/configuration": {"loadBalancerBrokerThresholdShedderPercentage": "20", "dispatcherMaxReadBatchSize": "1"},
}


async def filled(store: MetadataStore, more: Mapping[str, object]) -> MetadataStore:
    for path, content in {**ZNODES, **more}.items():
        await write(store, path, content if isinstance(content, bytes) else json.dumps(content).encode())
    return store


async def collected(more: Mapping[str, object] | None = None, cluster: str | None = None) -> Collected:
    world = MemoryWorld()
    try:
        return await collect_pulsar(await filled(await world.connect(), more or {}), 1_753_000_060_000, cluster)
    finally:
        await world.close()


async def test_everything_that_decides_is_dumped() -> None:
    found = await collected()
    line = found.finish()
    assert found.faults == []
    assert line["takenAt"] == 1_753_000_060_000
    assert sorted(line["brokers"]) == ["b1:8080", "b2:8080"]
    assert (line["brokers"]["b1:8080"]["lastStats"] or {})["public/default/" + LOWER]["topics"] == 16
    assert line["bundleData"]["public/default/" + LOWER]["longTermData"]["numSamples"] == 412
    assert list(line["timeAverages"]) == ["b2:8080"]
    assert line["namespaces"]["public/default"] == {
        "hashFunction": "crc32",
        "boundaries": ["0x00000000", "0x80000000", "0xffffffff"],
        "antiAffinityGroup": "g1",
        "ownership": {each: {"state": "Owned", "owner": "b1:8080"} for each in (LOWER, UPPER)},
    }
    assert line["isolationPolicies"]["p"]["primary"] == ["b9"]
    assert line["failureDomains"] == {"d1": {"brokers": ["b1:8080"]}}
    assert line["configuration"] == {"loadBalancerBrokerThresholdShedderPercentage": "20"}


async def test_a_dump_of_pulsar_can_be_decided_on() -> None:
    line = json.loads(encode((await collected()).finish()))
    (answer,) = answers(line, "--shed", "ThresholdShedder")
    assert [each["bundle"] for each in answer["decisions"]] == ["public/default/" + UPPER]
    assert answer["state"]["ThresholdShedder"]["usage"]["b1:8080"][0] == 1753000000000


@pytest.mark.parametrize(
    ("path", "content", "fault"),
    [
        ("/loadbalance/brokers/b3:8080", b"{", "/loadbalance/brokers/b3:8080: not JSON"),
        ("/loadbalance/brokers/b3:8080", [], "/loadbalance/brokers/b3:8080: expected a JSON object"),
        ("/loadbalance/brokers/b3:8080", {"cpu": 3}, "/loadbalance/brokers/b3:8080: brokers.b3:8080.cpu: "),
        ("/loadbalance/brokers/b3:8080", {"underLoaded": 1, "name": 3}, "/loadbalance/brokers/b3:8080: name"),
        (
            "/loadbalance/brokers/b3:8080",
            {"loadManagerClassName": "x.ExtensibleLoadManagerImpl", "brokerVersion": "5.0.0"},
            "publishes no load in ZooKeeper",
        ),
        ("/admin/clusters/c2", {}, "--cluster: c1, c2"),
        ("/namespace/public/other/0x00000000_0xffffffff", {"brokerId": "gone:1"}, "owner 'gone:1' is not registered"),
        ("/namespace/public/other/0x00000000_0xffffffff", {"httpUrl": 3}, "owner '' is not registered"),
        ("/namespace/public/default/0x00000000_0xffffffff", {"brokerId": "b1:8080"}, "is no bundle of its namespace"),
        ("/loadbalance/bundle-data/public/default/0x00000000_0xffffffff", HISTORY, "is no bundle of its namespace"),
        ("/loadbalance/bundle-data/public/default/nonsense", HISTORY, "bundle 'public/default/nonsense'"),
        ("/admin/clusters/c1/namespaceIsolationPolicies", {"p": 3, "q": {"primary": 3}}, "isolationPolicies.q.primary"),
    ],
)
async def test_what_cannot_be_used_is_left_out_and_said(path: str, content: object, fault: str) -> None:
    found = await collected({path: content})
    line = found.finish()
    assert len(found.faults) == 1
    assert fault in found.faults[0]
    assert "public/default/" + LOWER in line["bundleData"]


async def test_of_several_clusters_one_is_named() -> None:
    found = await collected({"/admin/clusters/c2": {}}, "c1")
    assert found.faults == []
    assert list(found.finish()["isolationPolicies"]) == ["p"]


async def test_reports_of_the_simple_load_manager_and_identities_of_the_extensible_one_are_understood() -> None:
    report = {
        "name": "b3:8080",
        "timestamp": 5,
        "systemResourceUsage": {"cpu": {"usage": 9.0, "limit": 100.0}},
        "bundleStats": {},
        "underLoaded": False,
    }
    lookup_data = {"brokerVersion": "5.0.0", "startTimestamp": 7}
    found = await collected({"/loadbalance/brokers/b3:8080": report, "/loadbalance/brokers/b4:8080": lookup_data})
    brokers = found.finish()["brokers"]
    assert brokers["b3:8080"]["cpu"] == {"usage": 9.0, "limit": 100.0}
    assert brokers["b4:8080"] == {"brokerVersionString": "5.0.0", "startTimestamp": 7}
