from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from support.dumps import answers
from support.pulsar_znodes import HISTORY, LOWER, STATS, UPPER, ZNODES, local_broker_data
from support.registrations import write
from support.stores import MemoryWorld

from loadmanager.errors import InvalidRecordError
from loadmanager.lab.decide.dump_validation import parse_bundle
from loadmanager.lab.decide.pulsar_dump import collect_pulsar
from loadmanager.lab.decide.record_collector import Collected
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.wire.dump_line import encode


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


async def test_every_input_of_decisions_is_dumped() -> None:
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


async def test_dump_of_pulsar_can_be_decided_on() -> None:
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
        ("/loadbalance/brokers/b3:8080", {"underLoaded": False}, "b3:8080: a report of SimpleLoadManagerImpl"),
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
        ("/namespace/t/c1/old/nonsense", {"brokerId": "b1:8080"}, "bundle 't/c1/old/nonsense'"),
        ("/admin/clusters/c1/namespaceIsolationPolicies", {"p": 3, "q": {"primary": 3}}, "isolationPolicies.q.primary"),
    ],
)
async def test_unusable_record_is_left_out_and_named(path: str, content: object, fault: str) -> None:
    found = await collected({path: content})
    line = found.finish()
    assert len(found.faults) == 1
    assert fault in found.faults[0]
    assert "public/default/" + LOWER in line["bundleData"]


FULL = "0x00000000_0xffffffff"
HEARTBEATS = ["pulsar/b1:8080/" + FULL, "pulsar/c1/b1:8080/" + FULL]
OLD = ["t/c1/old/" + LOWER, "t/c1/old/" + UPPER]


async def test_v1_namespaces_and_heartbeats_are_decided_as_by_pulsar() -> None:
    busy = local_broker_data(95.0, [LOWER, UPPER])
    named = HEARTBEATS + OLD
    busy["lastStats"] |= dict.fromkeys(named, STATS)
    busy["lastStats"][OLD[1]] = {**STATS, "msgThroughputIn": 9.0e8, "msgThroughputOut": 9.0e8}
    busy["bundles"] += named
    found = await collected(
        {
            "/loadbalance/brokers/b1:8080": busy,
            "/admin/local-policies/t/c1": b"",
            "/admin/local-policies/t/c1/old": ZNODES["/admin/local-policies/public/default"],
            "/namespace/pulsar/c1/b2:8080": b"",
            **{f"/namespace/{name}": {"brokerId": "b1:8080"} for name in named},
            **{f"/loadbalance/bundle-data/{name}": HISTORY for name in [HEARTBEATS[1], OLD[0]]},
        }
    )
    line = found.finish()
    assert found.faults == []
    assert line["namespaces"]["t/c1/old"] == line["namespaces"]["public/default"]
    assert "t/c1" not in line["namespaces"]
    assert line["namespaces"]["pulsar/c1/b1:8080"]["ownership"] == {FULL: {"state": "Owned", "owner": "b1:8080"}}
    assert set(named) <= set(line["brokers"]["b1:8080"]["lastStats"] or {})
    assert {HEARTBEATS[1], OLD[0]} <= set(line["bundleData"])
    dumped = json.loads(encode(line))
    quarter = "loadBalancerBundleUnloadMinThroughputThreshold=0.01"
    (answer,) = answers(dumped, "--shed", "ThresholdShedder", "--set", quarter)
    assert [each["bundle"] for each in answer["decisions"]] == [OLD[1]]
    (answer,) = answers(dumped, "--shed", "OverloadShedder")
    assert OLD[1] in (moved := {each["bundle"] for each in answer["decisions"]})
    assert not moved & set(HEARTBEATS)
    (answer,) = answers(dumped, "--place", "LeastLongTermMessageRate", "--bundle", OLD[0])
    assert answer["decisions"][0]["destination"] == "b2:8080"


@pytest.mark.parametrize(
    "name", ["t/c1/old/nonsense", "t/c1/old/more/" + LOWER, "t//old/" + LOWER, "t/c 1/old/" + LOWER]
)
def test_invalid_bundle_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRecordError, match="bundle"):
        parse_bundle(name, "here")


async def test_one_of_several_clusters_can_be_chosen() -> None:
    found = await collected({"/admin/clusters/c2": {}}, "c1")
    assert found.faults == []
    assert list(found.finish()["isolationPolicies"]) == ["p"]


async def test_broker_records_of_the_extensible_load_manager_are_read() -> None:
    found = await collected({"/loadbalance/brokers/b4:8080": {"brokerVersion": "5.0.0", "startTimestamp": 7}})
    assert found.finish()["brokers"]["b4:8080"] == {"brokerVersionString": "5.0.0", "startTimestamp": 7}
