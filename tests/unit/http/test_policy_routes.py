from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from support.nodes import Cluster, RunningNode, a_leader
from support.registrations import write
from support.waiting import eventually

from loadmanager.leader.mirror.cluster_mirror import OperatorConfig
from loadmanager.store.metadata_store import MetadataStore, Op

ISOLATION = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
DOMAINS = "/admin/v2/clusters/standalone/failureDomains"
POLICY: dict[str, Any] = {
    "namespaces": ["t/.*"],
    "primary": ["b1"],
    "secondary": ["b2"],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}},
}
TOPIC = "persistent://t/ns/x"


async def post(node: RunningNode, path: str, **options: Any) -> int:  # noqa: ANN401 - aiohttp's options
    return (await node.ask("POST", path, **options)).status


async def test_isolation_policy_is_stored_listed_and_removed() -> None:
    async with a_leader() as (_, leader):
        assert (await leader.get(ISOLATION)).json() == {}
        assert await post(leader, f"{ISOLATION}/p", json=POLICY) == 204
        assert (await leader.get(f"{ISOLATION}/p")).json() == POLICY
        assert (await leader.get(ISOLATION)).json() == {"p": POLICY}
        assert (await leader.ask("DELETE", f"{ISOLATION}/p")).status == 204
        missing = await leader.get(f"{ISOLATION}/p")
        assert (missing.status, missing.reason) == (404, "isolation policy 'p' not found; there are: none")
        assert (await leader.ask("DELETE", f"{ISOLATION}/p")).status == 404


async def test_bundle_is_placed_by_a_new_policy() -> None:
    async with a_leader() as (cluster, leader):
        for number in (1, 2, 3):
            await cluster.a_broker(f"b{number}:8080")
        assert await post(leader, f"{ISOLATION}/p", json={**POLICY, "primary": ["b3"]}) == 204
        await cluster.a_namespace()
        assert (await leader.lookup(TOPIC)).json()["brokerId"] == "b3:8080"


async def test_backtracking_pattern_does_not_delay_lookups() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        policy = {**POLICY, "namespaces": ["([a-z]+-?)+/staging"], "primary": ["b2"]}
        assert await post(leader, f"{ISOLATION}/p", json=policy) == 204
        tenant = "a" * 60
        await cluster.a_namespace(f"{tenant}/production")
        reply = await leader.lookup(f"persistent://{tenant}/production/x")
        assert (reply.status, reply.json()["brokerId"]) == (200, "b1:8080")


@pytest.mark.parametrize(
    ("scope", "unloaded"), [(None, True), ("changed", True), ("all_matching", True), ("none", False)]
)
async def test_bundles_of_a_new_policy_are_unloaded_by_its_scope(scope: str | None, unloaded: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        await leader.lookup(TOPIC)
        bundle = leader.bundle_of(TOPIC)
        await cluster.a_broker("b3:8080")
        policy = {**POLICY, "primary": ["b3"], "secondary": []} | ({"unload_scope": scope} if scope else {})
        assert await post(leader, f"{ISOLATION}/p", json=policy) == 204
        assert (leader.ownership(bundle).owner is None) == unloaded
        assert (await leader.lookup(TOPIC)).json()["brokerId"] == ("b3:8080" if unloaded else "b1:8080")


async def test_policy_that_leaves_no_broker_is_refused_unless_forced() -> None:
    async with a_leader() as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        await leader.lookup(TOPIC)
        bundle = leader.bundle_of(TOPIC)
        stranding = {**POLICY, "primary": ["http://b1"], "secondary": []}
        refused = await leader.ask("POST", f"{ISOLATION}/p", json=stranding)
        assert (refused.status, broker.unloads) == (409, [])
        assert "No broker may own t/ns: isolation policy 'p' matches no registered broker" in refused.reason
        assert (await leader.get(ISOLATION)).json() == {}
        assert await post(leader, f"{ISOLATION}/p", json={**stranding, "unload_scope": "none"}) == 204
        (said,) = (await leader.get("/readyz")).json()["unplaceable"]
        assert (said["policy"], said["namespaces"], said["count"]) == ("p", ["t/ns"], 1)
        assert (await leader.get("/loadbalance/v1/fleet")).json()["unplaceable"] == [said]
        assert 'namespaces_unplaceable{cluster="standalone"} 1.0' in (await leader.get("/metrics")).body.decode()
        for path in ("t/ns", bundle):
            unload = f"/admin/v2/namespaces/{path}/unload"
            assert (await leader.put(unload)).status == 409
            assert (await leader.lookup(TOPIC)).status == 200
        split = f"/admin/v2/namespaces/{bundle}/split"
        assert [(await leader.put(f"{split}?unload={each}")).status for each in ("true", "false")] == [409, 204]
        unload = f"/admin/v2/namespaces/{leader.bundle_of(TOPIC)}/unload"
        assert (await leader.put(unload)).status == 409
        assert (await leader.put(f"{unload}?destinationBroker=b1:8080")).status == 204
        assert (await leader.put(f"{unload}?force=true")).status == 204
        assert leader.ownership(leader.bundle_of(TOPIC)).owner is None


async def test_matches_of_patterns_and_names_are_counted() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 8})
        assert await post(leader, f"{ISOLATION}/p?force=true", json={**POLICY, "primary": ["c.*"]}) == 204
        assert await post(leader, f"{DOMAINS}/d", json={"brokers": ["b1:8080", "c1:8080"]}) == 204
        key = "loadBalancerSheddingExcludedNamespaces"
        assert await post(leader, f"/admin/v2/brokers/configuration/{key}/t%2Fns%2Ct%2Fx") == 200

        async def told(query: str) -> list[tuple[str, str, int, int | None]]:
            rows = (await leader.get(f"/loadbalance/v1/matches?{query}")).json()
            return [(row["kind"], row["pattern"], row["count"], row["bundles"]) for row in rows]

        policy = [("namespaces", "t/.*", 1, 8), ("primary", "c.*", 0, None), ("secondary", "b2", 0, None)]
        stranded = [("no broker", "p", 1, 8)]
        assert await told("policy=p") == [*policy, *stranded]
        domain = [("brokers", "b1:8080", 1, None), ("brokers", "c1:8080", 0, None)]
        assert await told("failureDomain=d") == [*domain, *stranded]
        excluded = [("namespaces", "t/ns", 1, 8), ("namespaces", "t/x", 0, 0)]
        assert await told(f"setting={key}") == [*excluded, *stranded]
        assert await told("setting=availableNamespaces") == stranded
        assert (await leader.get("/loadbalance/v1/matches?policy=q")).status == 404
        assert (await leader.get("/loadbalance/v1/matches?setting=x")).status == 400


async def test_standby_without_a_policy_asks_the_leader_for_its_matches(cluster: Cluster, node: RunningNode) -> None:
    leader, other = node, await cluster.start_node()
    assert await post(leader, f"{ISOLATION}/p?force=true", json=POLICY) == 204
    await cluster.known_everywhere(lambda node: "p" in node.node.mirror.operator_config.isolation)
    other.node.mirror.operator_config = OperatorConfig()
    assert (await other.get("/loadbalance/v1/matches?policy=p")).status == 200


async def test_unchanged_policy_and_policy_of_others_unload_nothing() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns")
        assert await post(leader, f"{ISOLATION}/p", json=POLICY) == 204
        await leader.lookup(TOPIC)
        assert await post(leader, f"{ISOLATION}/p", json=POLICY) == 204
        assert await post(leader, f"{ISOLATION}/q", json={**POLICY, "namespaces": ["u/.*"]}) == 204
        assert cluster.brokers["b1:8080"].unloads == []


async def test_policy_with_failed_unloads_is_stored_and_the_answer_says_so() -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=200) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns")
        await leader.lookup(TOPIC)
        broker.status = 503
        reply = await leader.ask("POST", f"{ISOLATION}/p?force=true", json={**POLICY, "primary": ["b3"]})
        assert reply.status == 504
        assert reply.reason.startswith("isolation policy 'p' is stored, but not every bundle of t/ns was unloaded: ")
        assert list((await leader.get(ISOLATION)).json()) == ["p"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"not json", "body: Invalid JSON"),
        (b"", "body: Invalid JSON"),
        (b"[]", "body: "),
        (b'{"namespaces": ["t/.*"], "primary": ["b1"], "primery": []}', "primery"),
        (b'{"namespaces": ["t/.*"], "primary": []}', "primary: at least one pattern is needed"),
        (b'{"primary": ["b1"]}', "namespaces: at least one pattern is needed"),
        (b'{"namespaces": ["("], "primary": ["b1"]}', "isolation policy 'p': namespaces '('"),
        (b'{"namespaces": ["t/.*"], "primary": ["[a&&b]"]}', "character classes cannot be combined"),
        (b'{"namespaces": ["(.)\\\\1"], "primary": ["b1"]}', "what a group has matched cannot be referred to"),
        (b'{"namespaces": ["t/(?!a).*"], "primary": ["b1"]}', "it cannot look ahead or behind"),
        (b'{"namespaces": ["t/a*+"], "primary": ["b1"]}', "bad repetition operator: *+"),
        (orjson.dumps({"namespaces": ["t/" + "a" * 1000], "primary": ["b1"]}), "longer than 1000 characters"),
        (orjson.dumps({"namespaces": ["t/"] * 1000, "primary": ["b1"]}), "isolation policies: 1001 patterns; all have"),
        (b'{"namespaces": ["t/.*"], "primary": ["b1"], "unload_scope": "some"}', "unload_scope"),
        (b'{"namespaces": ["t/.*"], "primary": ["b1"], "auto_failover_policy": {"policy_type": "x"}}', "policy_type"),
        (b'{"namespaces": "t/.*", "primary": ["b1"]}', "namespaces"),
    ],
)
async def test_invalid_policy_is_rejected_and_the_old_one_kept(body: bytes, message: str) -> None:
    async with a_leader() as (_, leader):
        assert await post(leader, f"{ISOLATION}/p", json=POLICY) == 204
        reply = await leader.ask("POST", f"{ISOLATION}/p", data=body)
        assert reply.status == 400
        assert message in reply.reason
        assert (await leader.get(f"{ISOLATION}/p")).json() == POLICY


async def test_pattern_limit_is_over_all_policies() -> None:
    async with a_leader() as (_, leader):
        half = {**POLICY, "primary": [f"b{number}" for number in range(498)]}
        assert await post(leader, f"{ISOLATION}/p", json=half) == 204
        assert await post(leader, f"{ISOLATION}/q", json=half) == 204
        reply = await leader.ask("POST", f"{ISOLATION}/r", json=POLICY)
        assert (reply.status, reply.reason) == (
            400,
            "body: isolation policies: 1003 patterns; all have 1000 together at most",
        )
        assert list((await leader.get(ISOLATION)).json()) == ["p", "q"]


async def test_brokers_are_listed_with_the_first_policy_that_names_them() -> None:
    async with a_leader() as (cluster, leader):
        for number in (1, 2, 3):
            await cluster.a_broker(f"b{number}:8080")
        assert await post(leader, f"{ISOLATION}/p", json=POLICY) == 204
        assert await post(leader, f"{ISOLATION}/q", json={**POLICY, "primary": ["b.*"], "secondary": []}) == 204
        named = {"policyName": "p", "namespaceRegex": ["t/.*"]}
        listed = (await leader.get(f"{ISOLATION}/brokers")).json()
        assert listed == [
            {"brokerName": "b1:8080", "primary": True, **named},
            {"brokerName": "b2:8080", "primary": False, **named},
            {"brokerName": "b3:8080", "primary": True, "policyName": "q", "namespaceRegex": ["t/.*"]},
        ]
        assert (await leader.get(f"{ISOLATION}/brokers/b2:8080")).json() == listed[1]
        assert (await leader.ask("DELETE", f"{ISOLATION}/q")).status == 204
        unnamed = (await leader.get(f"{ISOLATION}/brokers/b3:8080")).json()
        assert unnamed == {"brokerName": "b3:8080", "primary": False}
        assert (await leader.get(f"{ISOLATION}/brokers/b9:8080")).status == 404


@pytest.mark.parametrize("path", ["namespaceIsolationPolicies", "failureDomains", "namespaceIsolationPolicies/brokers"])
async def test_policies_of_another_cluster_are_404(path: str) -> None:
    async with a_leader(cluster_name="mine") as (_, leader):
        assert (await leader.get(f"/admin/v2/clusters/mine/{path}")).status == 200
        reply = await leader.get(f"/admin/v2/clusters/other/{path}")
        assert (reply.status, reply.reason) == (404, "cluster 'other' not found; this one is 'mine'")


async def test_failure_domain_is_stored_listed_and_removed() -> None:
    async with a_leader() as (_, leader):
        east = {"brokers": ["b1:8080", "b2:8080"]}
        assert await post(leader, f"{DOMAINS}/east", json=east) == 204
        assert (await leader.get(f"{DOMAINS}/east")).json() == east
        assert (await leader.get(DOMAINS)).json() == {"east": east}
        assert (await leader.ask("DELETE", f"{DOMAINS}/east")).status == 204
        assert (await leader.get(f"{DOMAINS}/east")).status == 404
        assert (await leader.ask("DELETE", f"{DOMAINS}/east")).status == 404


async def test_broker_is_in_at_most_one_failure_domain() -> None:
    async with a_leader() as (_, leader):
        assert await post(leader, f"{DOMAINS}/east", json={"brokers": ["b1:8080"]}) == 204
        reply = await leader.ask("POST", f"{DOMAINS}/west", json={"brokers": ["b2:8080", "b1:8080"]})
        assert (reply.status, reply.reason) == (409, "broker b1:8080 is in failure domain 'east' already")
        assert await post(leader, f"{DOMAINS}/east", json={"brokers": ["b2:8080"]}) == 204
        assert await post(leader, f"{DOMAINS}/west", json={"brokers": ["b1:8080"]}) == 204


@pytest.mark.parametrize("body", [b"{", b'{"brokers": ["nowhere"]}', b'{"broker": []}'])
async def test_invalid_failure_domain_is_rejected(body: bytes) -> None:
    async with a_leader() as (_, leader):
        assert await post(leader, f"{DOMAINS}/east", data=body) == 400
        assert (await leader.get(DOMAINS)).json() == {}


async def test_anti_affinity_group_is_plain_text_and_case_insensitive() -> None:
    async with a_leader() as (cluster, leader):
        for name in ("t/a", "t/b", "u/c"):
            await cluster.a_namespace(name)
        path = "/admin/v2/namespaces/{}/antiAffinity"
        assert (await leader.get(path.format("t/a"))).status == 204
        for name, group in (("t/a", "Group"), ("t/b", "group"), ("u/c", "group")):
            assert await post(leader, path.format(name), data=group) == 204
        assert (await leader.get(path.format("t/a"))).body == b"Group"
        members = "/admin/v2/namespaces/standalone/antiAffinity/GROUP"
        assert (await leader.get(f"{members}?tenant=t")).json() == ["t/a", "t/b"]
        assert (await leader.get(members)).status == 400
        assert (await leader.get("/admin/v2/namespaces/other/antiAffinity/group?tenant=t")).status == 404
        assert (await leader.ask("DELETE", path.format("t/a"))).status == 204
        assert (await leader.ask("DELETE", path.format("t/a"))).status == 204
        assert (await leader.get(f"{members}?tenant=t")).json() == ["t/b"]
        assert leader.node.mirror.model.snapshot(0.0, 0.0).policies.find_group("u/c") == "group"


@pytest.mark.parametrize(
    ("namespace", "body", "status"),
    [("t/a", b" ", 412), ("t/a", b"\xff", 400), ("t/a", b"g" * 201, 400), ("t/a", b"a\nb", 400), ("t/no", b"g", 404)],
)
async def test_invalid_group_is_rejected(namespace: str, body: bytes, status: int) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_namespace("t/a")
        assert await post(leader, f"/admin/v2/namespaces/{namespace}/antiAffinity", data=body) == status
        assert leader.node.mirror.operator_config.anti_affinity == {}


async def test_repeated_write_conflicts_are_409(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader() as (cluster, leader):
        commit = leader.store.commit

        async def meddle(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
            other = await cluster.store.get(ops[-1].path)
            await write_again(cluster.store, ops[-1].path, 0 if other is None else other.version + 1)
            return await commit(ops, session_id=session_id)

        monkeypatch.setattr(leader.store, "commit", meddle)
        reply = await leader.ask("POST", f"{DOMAINS}/east", json={"brokers": ["b1:8080"]})
        assert reply.status == 409
        assert reply.reason.startswith("Concurrent modification of /loadbalance/policies/failure-domains")
        monkeypatch.undo()
        await eventually(lambda: "n" in str(leader.node.mirror.operator_config.failure_domains))


async def write_again(store: MetadataStore, path: str, number: int) -> None:
    await write(store, path, b'{"n%d": {"brokers": []}}' % number)
