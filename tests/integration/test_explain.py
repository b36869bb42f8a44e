"""An operator's questions to real nodes: the answers foretell what the next decisions are."""

from __future__ import annotations

import pytest
from support.nodes import Cluster, on_zookeeper, topics_by_bundle
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

EXPLAIN = "/loadbalance/v1/explain"


async def test_explanation_equals_the_next_shedding_round(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        leader, standby = await cluster.start_nodes(2)
        hot = await cluster.a_broker("b1:8080")
        bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 8})
        for topic in topics_by_bundle(leader, "t/ns", 8).values():
            await leader.lookup(topic)
        await cluster.a_broker("b2:8080")
        await cluster.a_broker("b3:8080")
        loads = {bundle: load_of(10.0 + position) for position, bundle in enumerate(bundles)}
        await hot.report(a_record("b1:8080", loads, agent_url=hot.url, cpu=60.0))
        await cluster.known_everywhere(lambda node: node.node.planner.snapshot().brokers.usage_percent.max() > 59)
        expected = {}
        for bundle in bundles:
            shedding = (await standby.get(f"{EXPLAIN}/bundle/{bundle}")).json()["shedding"]
            if shedding["wouldMove"]:
                expected[bundle] = shedding["destination"]
        broker = (await standby.get(f"{EXPLAIN}/broker/b1:8080")).json()
        assert {move["bundle"]: move["destination"] for move in broker["wouldShed"]} == expected
        assert 0 < len(expected) < 8
        await leader.node.shedding.run_round()
        await eventually(
            lambda: {bundle: str(leader.ownership(bundle).owner).split()[0] for bundle in expected} == expected
        )
        moved = next(iter(expected))
        after = (await standby.get(f"{EXPLAIN}/bundle/{moved}")).json()
        assert after["shedding"]["stays"]["reason"] == "not_reported"
        assert "unload" in {decision["kind"] for decision in after["decisions"]}
        back = (await standby.get(f"{EXPLAIN}/why-not?bundle={moved}&broker=b1:8080")).json()
        assert back["answer"]["reason"] == "owns_more_of_namespace"
        assert "loadBalancerDistributeBundlesEvenlyEnabled" in back["answer"]["change"]
