from __future__ import annotations

import asyncio
import io

import pytest
from support.memory_store import MemoryStore
from support.nodes import Cluster, RunningNode
from support.waiting import eventually

from loadmanager.core.domain.ownership import OwnershipState

NAMESPACE = "/admin/v2/namespaces/t/ns"
TOPIC = "persistent://t/ns/x"
QUARTERS = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


@pytest.fixture
async def owned(cluster: Cluster, node: RunningNode) -> str:
    """A bundle that b1 owns."""
    await cluster.a_broker()
    await cluster.a_namespace()
    await node.lookup(TOPIC)
    return node.bundle_of(TOPIC)


@pytest.mark.parametrize(
    ("body", "boundaries"),
    [
        (b"", QUARTERS),
        (b" \n", QUARTERS),
        (b"{}", QUARTERS),
        (b'{"bundles":null}', QUARTERS),
        (b'{"bundles":{"numBundles":0}}', QUARTERS),
        (b'{"bundles":{"boundaries":[],"numBundles":0}}', QUARTERS),
        (b'{"bundles":{"numBundles":1}}', ["0x00000000", "0xffffffff"]),
        (
            b'{"bundles":{"numBundles":3},"replication_clusters":["c1"]}',
            ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"],
        ),
        (
            b'{"bundles":{"boundaries":["0xffffffff","0X8","0x00000000"]}}',
            ["0x00000000", "0x00000008", "0xffffffff"],
        ),
        (
            b'{"bundles":{"boundaries":["0x0","0x80000000","0x80000000","0xffffffff"],"numBundles":3}}',
            ["0x00000000", "0x80000000", "0xffffffff"],
        ),
    ],
)
async def test_requested_number_of_bundles(node: RunningNode, body: bytes, boundaries: list[str]) -> None:
    created = await node.put(NAMESPACE, data=body)
    assert (created.status, created.body) == (204, b"")
    reply = await node.get(f"{NAMESPACE}/bundles")
    assert (reply.status, reply.json()) == (200, {"boundaries": boundaries, "numBundles": len(boundaries) - 1})


@pytest.mark.parametrize("function", ["crc32", "murmur3_32"])
async def test_namespace_keeps_its_hash_function(node: RunningNode, function: str) -> None:
    assert (await node.put(NAMESPACE, json={"hashFunction": function})).status == 204
    policies = (await node.get(NAMESPACE)).json()
    assert policies == {
        "bundles": {"boundaries": QUARTERS, "numBundles": 4},
        "hashFunction": function,
        "isAvailable": False,
    }


async def test_namespace_is_available_while_the_setting_names_it(node: RunningNode) -> None:
    configuration = "/admin/v2/brokers/configuration/availableNamespaces"
    assert (await node.put(NAMESPACE)).status == 204
    assert (await node.ask("POST", f"{configuration}/t%2Fother,t%2Fns")).status == 200
    assert (await node.get(NAMESPACE)).json()["isAvailable"]
    assert (await node.get("/loadbalance/v1/fleet")).json()["availableNamespaces"] == ["t/ns", "t/other"]
    matches = (await node.get("/loadbalance/v1/matches?setting=availableNamespaces")).json()
    assert [(each["pattern"], each["count"]) for each in matches] == [("t/ns", 1), ("t/other", 0)]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{garbage", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[]", "Input should be an object"),
        (b'{"bundles":4}', "bundles: Input should be an object"),
        (b'{"bundles":{"numBundles":"many"}}', "bundles.numBundles: Input should be a valid integer"),
        (b'{"bundles":{"numBundles":-1}}', "numBundles -1: expected 1 to"),
        (b'{"bundles":{"numBundles":9999999999}}', "numBundles 9999999999: expected 1 to"),
        (b'{"bundles":{"numBundles":2,"boundaries":["0x0","0x1","0x2","0xffffffff"]}}', "numBundles: 2 does not fit 4"),
        (b'{"bundles":{"boundaries":["0x0","0x80000000"]}}', "span 0x00000000..0xffffffff, got 0x00000000..0x80000000"),
        (b'{"bundles":{"boundaries":["0x1","0xffffffff"]}}', "span 0x00000000..0xffffffff"),
        (b'{"bundles":{"boundaries":["0x0"]}}', "expected at least 2"),
        (b'{"bundles":{"boundaries":["0x0","zz","0xffffffff"]}}', "'zz': expected 0x and up to 8 hexadecimal"),
        (b'{"bundles":{"boundaries":["0x0","0x1ffffffff"]}}', "'0x1ffffffff': expected 0x"),
        (b'{"bundles":{"boundaries":[0,4294967295]}}', "bundles.boundaries.0: Input should be a valid string"),
        (b'{"hashFunction":"md5"}', "hashFunction: Input should be 'murmur3_32' or 'crc32' (got 'md5')"),
    ],
)
async def test_bad_body_is_400_and_names_the_field(node: RunningNode, body: bytes, complaint: str) -> None:
    reply = await node.put(NAMESPACE, data=body)
    assert reply.status == 400
    assert complaint in reply.reason
    assert (await node.get(NAMESPACE)).status == 404


async def test_too_large_body_is_413(node: RunningNode) -> None:
    reply = await node.put(NAMESPACE, data=io.BytesIO(b" " * (9 * 1024 * 1024)))
    assert (reply.status, reply.reason) == (413, "body: larger than 1048576 bytes")


async def test_too_many_bundles_are_400_and_nothing_is_created(node: RunningNode) -> None:
    many = [f"0x{number:08x}" for number in range(20_000)]
    by_number = await node.put(NAMESPACE, json={"bundles": {"numBundles": 20_000}})
    by_boundaries = await node.put(NAMESPACE, json={"bundles": {"boundaries": [*many, "0xffffffff"]}})
    assert (by_number.status, by_number.reason) == (400, "bundles: numBundles 20000: expected 1 to 16384")
    assert (by_boundaries.status, by_boundaries.reason) == (400, "bundles.boundaries: 20000 bundles, at most 16384 fit")
    assert (await node.get(NAMESPACE)).status == 404


async def test_existing_namespace_is_409_and_unchanged(node: RunningNode) -> None:
    await node.put(NAMESPACE)
    reply = await node.put(NAMESPACE, json={"bundles": {"numBundles": 9}})
    assert (reply.status, reply.reason) == (409, "namespace t/ns exists already")
    assert (await node.get(f"{NAMESPACE}/bundles")).json()["numBundles"] == 4


@pytest.mark.parametrize("path", ["t%20t/ns", "t/n%2Fs", "t/n%20s", "%C3%BC/ns", "%F0%9D%90%80/ns"])
async def test_invalid_name_is_412(node: RunningNode, path: str) -> None:
    reply = await node.put(f"/admin/v2/namespaces/{path}")
    assert reply.status == 412
    assert "expected letters, digits" in reply.reason


@pytest.mark.parametrize("suffix", ["", "/bundles", "/unload", "/0x00000000_0x40000000/unload"])
async def test_unknown_namespace_is_404(node: RunningNode, suffix: str) -> None:
    reply = await node.ask("PUT" if "unload" in suffix else "GET", f"/admin/v2/namespaces/t/other{suffix}")
    assert (reply.status, reply.reason) == (404, "namespace t/other not found")


async def test_namespaces_of_a_tenant_are_listed(cluster: Cluster, node: RunningNode) -> None:
    for name in ("t/b", "t/a", "tt/c"):
        await cluster.a_namespace(name)
    reply = await node.get("/admin/v2/namespaces/t")
    assert (reply.status, reply.json()) == (200, ["t/a", "t/b"])


async def test_unload_frees_the_bundle_and_is_idempotent(node: RunningNode, owned: str) -> None:
    for _ in range(2):
        reply = await node.put(f"/admin/v2/namespaces/{owned}/unload")
        assert (reply.status, reply.body) == (204, b"")
        assert node.ownership(owned).state is OwnershipState.FREE
    assert node.ownership(owned).version == 3


@pytest.mark.parametrize("prefix", ["", "http://", "https://"])
async def test_unload_with_a_destination(cluster: Cluster, node: RunningNode, owned: str, prefix: str) -> None:
    target = await cluster.a_broker("b2:8080")
    reply = await node.put(f"/admin/v2/namespaces/{owned}/unload?destinationBroker={prefix}b2:8080&authoritative=false")
    assert reply.status == 204
    assert node.ownership(owned).owner == target.registration


async def test_unload_of_a_free_bundle_with_a_destination(cluster: Cluster, node: RunningNode, owned: str) -> None:
    target = await cluster.a_broker("b2:8080")
    unload = f"/admin/v2/namespaces/{owned}/unload"
    assert (await node.put(unload)).status == 204
    assert (await node.put(f"{unload}?destinationBroker=b2:8080")).status == 204
    assert node.ownership(owned).owner == target.registration
    decisions = (await node.get("/loadbalance/v1/decisions?kind=assign")).json()["decisions"]
    assert (owned, "b2:8080") in {(each["subject"], each["destination"]) for each in decisions}


async def test_moves_under_load_reach_their_destination(cluster: Cluster, node: RunningNode, owned: str) -> None:
    target = await cluster.a_broker("b2:8080")
    path, is_over = f"/admin/v2/namespaces/{owned}/unload", asyncio.Event()

    async def look_up() -> list[int]:
        statuses = []
        while not is_over.is_set():
            statuses.append((await node.lookup(TOPIC)).status)
        return statuses

    clients = [asyncio.create_task(look_up()) for _ in range(20)]
    for _ in range(10):
        moved = node.put(f"{path}?destinationBroker=b2:8080")
        statuses = [reply.status for reply in await asyncio.gather(node.put(path), moved)]
        assert statuses == [204, 204]
        assert (await node.put(f"{path}?destinationBroker=b2:8080")).status == 204
        assert node.ownership(owned).owner == target.registration
        assert (await node.put(f"{path}?destinationBroker=b1:8080")).status == 204
    is_over.set()
    assert {status for each in await asyncio.gather(*clients) for status in each} == {200}


async def test_misspelt_parameter_is_400_and_changes_nothing(node: RunningNode, owned: str) -> None:
    before = node.ownership(owned)
    reply = await node.put(f"/admin/v2/namespaces/{owned}/unload?destination=b2:8080")
    assert reply.status == 400
    assert reply.reason == "query parameter 'destination': unknown; known: destinationBroker, force"
    assert node.ownership(owned) == before


async def test_unknown_destination_is_409_and_moves_nothing(node: RunningNode, owned: str) -> None:
    reply = await node.put(f"/admin/v2/namespaces/{owned}/unload?destinationBroker=b9:8080")
    assert (reply.status, reply.reason) == (409, "destinationBroker 'b9:8080' is not registered; known: b1:8080")
    assert node.ownership(owned).version == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0x00000000_0x20000000", "is not a current bundle of namespace t/ns"),
        ("0x00000000_0xffffffff", "is not a current bundle of namespace t/ns"),
        ("0x40000000_0x00000000", "expected 0x00000000 <= lower < upper"),
        ("0x0_0x4", "expected 0xLLLLLLLL_0xUUUUUUUU"),
        ("everything", "bundle range 'everything': expected 0xLLLLLLLL_0xUUUUUUUU"),
    ],
)
async def test_outdated_range_is_412(node: RunningNode, owned: str, text: str, complaint: str) -> None:
    reply = await node.put(f"{NAMESPACE}/{text}/unload")
    assert reply.status == 412
    assert complaint in reply.reason
    assert node.ownership(owned).version == 1


async def test_range_may_be_in_capitals(node: RunningNode, owned: str) -> None:
    namespace, _, text = owned.rpartition("/")
    assert (await node.put(f"/admin/v2/namespaces/{namespace}/{text.upper()}/unload")).status == 204
    assert node.ownership(owned).state is OwnershipState.FREE


async def test_slow_owner_is_504_and_keeps_the_bundle(cluster: Cluster, node: RunningNode, owned: str) -> None:
    cluster.brokers["b1:8080"].may_answer.clear()
    node.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "300"})
    reply = await node.put(f"/admin/v2/namespaces/{owned}/unload")
    assert reply.status == 504
    assert f"{owned} stays with b1:8080" in reply.reason
    assert node.ownership(owned).state is OwnershipState.OWNED


async def test_namespace_unload_unloads_every_bundle(cluster: Cluster, node: RunningNode) -> None:
    broker = await cluster.a_broker()
    bundles = await cluster.a_namespace()
    for bundle in bundles:
        await node.node.assigner.request(bundle)
    assert (await node.put(f"{NAMESPACE}/unload")).status == 204
    assert {node.ownership(bundle).state for bundle in bundles} == {OwnershipState.FREE}
    assert len(broker.unloads) == 4


async def test_namespace_unload_with_one_slow_bundle_is_504(cluster: Cluster, node: RunningNode) -> None:
    slow = await cluster.a_broker("b1:8080")
    await cluster.a_broker("b2:8080")
    bundles = await cluster.a_namespace()
    for bundle in bundles:
        await node.node.assigner.request(bundle)
    slow.status = 500
    node.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "3000"})
    reply = await node.put(f"{NAMESPACE}/unload")
    assert reply.status == 504
    owners = {entry.owner for entry in map(node.ownership, bundles)}
    assert owners == {slow.registration, None}


async def test_registered_brokers_are_listed_for_any_cluster(cluster: Cluster, node: RunningNode) -> None:
    await cluster.a_broker("b2:8080")
    await cluster.a_broker("b1:8080")
    for path in ("/admin/v2/brokers", "/admin/v2/brokers/standalone"):
        reply = await node.get(path)
        assert (reply.status, reply.json()) == (200, ["b1:8080", "b2:8080"])


async def test_pulsar_paths_of_one_broker_are_404(node: RunningNode) -> None:
    reply = await node.get("/admin/v2/brokers/internal-configuration")
    assert (reply.status, reply.reason) == (404, "no such path: /admin/v2/brokers/internal-configuration")


async def test_leader_is_named_in_the_form_of_pulsar(node: RunningNode) -> None:
    await eventually(lambda: node.node.mirror.leader)
    reply = await node.get("/admin/v2/brokers/leaderBroker")
    assert reply.status == 200
    assert list(reply.json().items()) == [("serviceUrl", node.node.service_url), ("brokerId", node.node.node_id)]


async def test_node_without_a_lease_names_no_leader(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await eventually(lambda: node.node.mirror.leader)
    monkeypatch.setattr(MemoryStore, "lease_valid_until_s", property(lambda _: 0.0))
    reply = await node.get("/admin/v2/brokers/leaderBroker")
    assert (reply.status, reply.reason) == (503, "the session with ZooKeeper may be over")


async def test_no_leader_is_404(node: RunningNode) -> None:
    await node.node.election.resign()
    await eventually(lambda: node.node.mirror.leader is None)
    reply = await node.get("/admin/v2/brokers/leaderBroker")
    assert (reply.status, reply.reason) == (404, "no node leads at the moment")
