from __future__ import annotations

import pytest
import structlog
from support.delays import a_memory_cluster
from support.nodes import Cluster, in_memory
from support.waiting import eventually

from loadmanager.store import paths

TOPIC = "persistent://t/ns/topic"
WHY = "the ACL of it says no"


@pytest.mark.parametrize(
    "path", [paths.EPOCH, paths.BROKERS, paths.broker("b1:8080"), paths.namespace("t/ns"), paths.STRATEGY_STATE]
)
async def test_denied_znode_is_reported_and_the_node_recovers(path: str) -> None:
    memory = a_memory_cluster()
    async with Cluster(in_memory(memory)) as cluster:
        node = await cluster.start_leader(load_balancer_resource_quota_update_interval_minutes=0.001)
        agent = await cluster.a_broker()
        await cluster.a_namespace()
        with structlog.testing.capture_logs() as logs:
            memory.shut[path] = WHY
            node.node.intake.mark_dirty(path)
            lookup = await node.lookup(TOPIC)
            assert lookup.status in {200, 503}
            node.node.election.deposed()
            await eventually(lambda: any(entry["event"] == "term_ended" for entry in logs))
            reply = await node.get("/readyz")
            assert WHY in reply.json().get("reason", "") or reply.json()["faults"] == {path: WHY}
            metrics = (await node.get("/metrics")).body.decode()
            assert "loadmanager_faulty_znodes{" in metrics
            del memory.shut[path]
        assert len(logs) < 50, "reported without repetition"
        await eventually(lambda: node.leads)
        await agent.report(agent.record)
        assert (await node.lookup(TOPIC)).status == 200
        assert (await node.get("/readyz")).json()["faults"] == {}
        assert not node.node.failure.done()
