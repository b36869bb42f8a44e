"""A leader, source or destination dies during a drain; the drain still completes."""

from __future__ import annotations

import pytest
from support.cluster import probing
from support.deep import deep_except
from support.scripted_broker import ScriptedBroker
from support.steps import UNLOAD, SteppedCluster, a_stepped_cluster, in_memory
from support.waiting import eventually

QUICK = {"write 1 committed", "unload obeyed"}
"""The steps that `make test` runs."""

# A connection accepted while a server inside this process is killed is lost by asyncio.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.mark.parametrize("step", deep_except(QUICK, UNLOAD))
async def test_successor_continues_the_drain_of_a_killed_leader(step: str) -> None:
    async with a_stepped_cluster(in_memory()) as cluster:
        async with probing(cluster.http, [cluster.standby.url], lambda _: cluster.uninvolved) as prober:
            await begin_to_drain(cluster, step)
            await cluster.leader.crash()
            cluster.steps.go_on()
            await gives_all_away(cluster, cluster.source)
            await cluster.settled()
            await eventually(lambda: is_done(cluster), what="the drain is done")
        assert cluster.source.broker_id in cluster.standby.node.mirror.operator_config.controls.draining
    assert prober.failures() == []
    assert cluster.violations() == []


@pytest.mark.parametrize("step", deep_except(QUICK, UNLOAD))
async def test_drain_of_a_dead_broker_completes(step: str) -> None:
    async with a_stepped_cluster(in_memory()) as cluster:
        await begin_to_drain(cluster, step)
        await cluster.source.die()
        cluster.steps.go_on()
        await cluster.settled()
        await eventually(lambda: is_done(cluster), what="the drain is done")
    assert cluster.violations() == []


@pytest.mark.parametrize("step", deep_except(QUICK, UNLOAD))
async def test_bundles_move_elsewhere_when_a_destination_dies(step: str) -> None:
    async with a_stepped_cluster(in_memory()) as cluster:
        await begin_to_drain(cluster, step)
        await cluster.destination.die()
        cluster.steps.go_on()
        await gives_all_away(cluster, cluster.source)
        state = await cluster.settled()
        assert {o.owner.broker for o in state.ownerships if o.owner} == {cluster.bystander.broker_id}
    assert cluster.violations() == []


async def begin_to_drain(cluster: SteppedCluster, step: str) -> None:
    """Drain `source` until the step is reached."""
    cluster.steps.hold(step)
    async with cluster.http.put(f"{cluster.leader.url}{_drain(cluster)}") as answer:
        assert answer.status == 202, await answer.text()
    await cluster.steps.reached()


async def gives_all_away(cluster: SteppedCluster, broker: ScriptedBroker) -> None:
    async def owns_nothing() -> bool:
        owners = [ownership.owner for ownership in (await cluster.state()).ownerships]
        return broker.broker_id not in {owner.broker for owner in owners if owner}

    await eventually(owns_nothing, what="the broker owns nothing")


async def is_done(cluster: SteppedCluster) -> bool:
    async with cluster.http.get(f"{cluster.standby.url}{_drain(cluster)}") as answer:
        assert answer.status == 200, await answer.text()
        progress = await answer.json()
        return (progress["state"], progress["bundlesLeft"]) == ("done", 0)


def _drain(cluster: SteppedCluster) -> str:
    return f"/loadbalance/v1/brokers/{cluster.source.broker_id}/drain"
