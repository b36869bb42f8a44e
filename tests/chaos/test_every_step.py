"""A leader, owner, destination or server dies at each step of a split, unload, transfer and merge.

The operation is completed or undone, and topics are served. Leader, owner and destination die on a metadata store in
memory; the leading one of three ZooKeeper servers is killed in an ensemble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.cluster import probing
from support.deep import deep_except
from support.memory_store import MemoryStore
from support.steps import STEPS, a_stepped_cluster, in_memory
from support.stores import ZooKeeperWorld
from support.waiting import eventually
from support.zookeeper_ensemble import EmbeddedEnsemble

from loadmanager.core.domain.bundles import equal_boundaries
from loadmanager.core.domain.ownership import NamespaceState

# A connection accepted while a server inside this process is killed is lost by asyncio.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

UNDECIDED = ("topics asked", "topics named", "write 1 ready")
"""The steps before anything is written."""

BEFORE = equal_boundaries(4)
EVERY_STEP = [(operation, step) for operation, steps in STEPS.items() for step in steps]
DEATHS = [
    (operation, step, victim)
    for operation, step in EVERY_STEP
    for victim in ("leader", "owner", "destination")
    if victim != "destination" or operation == "transfer"
]
QUICK_STEPS = {
    ("split", "write 1 committed"),
    ("unload", "write 1 committed"),
    ("transfer", "write 1 ready"),
    ("merge", "write 1 ready"),
}
QUICK_DEATHS = {
    ("split", "topics named", "leader"),
    ("split", "write 1 committed", "leader"),
    ("split", "write 1 ready", "owner"),
    ("unload", "write 1 committed", "leader"),
    ("unload", "write 1 ready", "owner"),
    ("transfer", "write 1 committed", "leader"),
    ("transfer", "write 1 committed", "owner"),
    ("transfer", "write 1 committed", "destination"),
    ("merge", "write 1 committed", "leader"),
    ("merge", "boundaries told", "owner"),
}


WITH_SERVERS = [
    ("split", "topics asked"),
    ("split", "write 1 committed"),
    ("split", "boundaries told"),
    ("unload", "write 1 committed"),
    ("unload", "unload obeyed"),
    ("unload", "write 2 ready"),
    ("transfer", "topics named"),
    ("transfer", "write 1 ready"),
    ("transfer", "unload asked"),
    ("transfer", "write 2 committed"),
    ("merge", "write 1 ready"),
]
"""Each step of any operation: the session with real servers is the same in all of them."""
assert {step for _, step in WITH_SERVERS} == {step for steps in STEPS.values() for step in steps}


@pytest.mark.parametrize("operation", STEPS)
async def test_operation_has_exactly_the_listed_steps(operation: str) -> None:
    async with a_stepped_cluster(in_memory()) as cluster:
        cluster.steps.hold(STEPS[operation][-1])
        acting = asyncio.create_task(cluster.act(operation))
        await cluster.steps.reached()
        assert cluster.steps.log == list(STEPS[operation])
        cluster.steps.go_on()
        assert await acting in (200, 204)
        assert cluster.steps.log == list(STEPS[operation])
        state = await cluster.settled()
    assert has_happened(operation, state)


@pytest.mark.parametrize(("operation", "step", "victim"), deep_except(QUICK_DEATHS, DEATHS))
async def test_step_is_completed_or_undone_after_a_death(operation: str, step: str, victim: str) -> None:
    async with a_stepped_cluster(in_memory()) as cluster:
        urls = [cluster.standby.url] if victim == "leader" else [cluster.leader.url, cluster.standby.url]
        async with probing(cluster.http, urls, lambda _: cluster.uninvolved) as prober:
            cluster.steps.hold(step)
            acting = asyncio.create_task(cluster.act(operation))
            await cluster.steps.reached()
            if victim == "leader":
                await cluster.leader.crash()
            else:
                await (cluster.source if victim == "owner" else cluster.destination).die()
            cluster.steps.go_on()
            state = await cluster.settled()
            await acting
    assert {(probe.status, probe.broker) for probe in prober.probes} == {(200, cluster.bystander.broker_id)}
    assert cluster.violations() == []
    if victim == "leader":
        assert has_happened(operation, state) == (step not in UNDECIDED)
    elif step not in UNDECIDED and operation in ("split", "merge"):
        assert has_happened(operation, state)
    if operation == "transfer" and step not in UNDECIDED:
        owner = state.ownerships[0].owner
        assert owner is not None
        assert (owner.broker == cluster.destination.broker_id) == (victim != "destination")


@pytest.mark.parametrize(("operation", "step"), deep_except(QUICK_STEPS, EVERY_STEP))
async def test_step_is_completed_or_undone_after_a_broken_connection(operation: str, step: str) -> None:
    """A short interruption: the same leader goes on and finishes pending operations at once."""
    world = in_memory()
    async with a_stepped_cluster(world) as cluster:
        cluster.steps.hold(step)
        acting = asyncio.create_task(cluster.act(operation))
        await cluster.steps.reached()
        broken = cluster.leader.session
        assert isinstance(broken, MemoryStore)
        world.cluster.partition(broken, noticed=True)
        cluster.steps.go_on()
        await eventually(lambda: not cluster.leader.node.mirror.is_fresh)
        world.cluster.heal(broken)
        await cluster.settled()
        await acting
        assert cluster.leader.node.election.terms_won == 1
    assert cluster.violations() == []


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EmbeddedEnsemble]:
    with EmbeddedEnsemble(3) as servers:
        yield servers


@pytest.mark.zookeeper
@pytest.mark.parametrize(("operation", "step"), deep_except(QUICK_STEPS, WITH_SERVERS))
async def test_step_survives_a_dead_server(ensemble: EmbeddedEnsemble, chroot: str, operation: str, step: str) -> None:
    async with a_stepped_cluster(ZooKeeperWorld(ensemble, chroot)) as cluster:
        urls = [cluster.leader.url, cluster.standby.url]
        async with probing(cluster.http, urls, lambda _: cluster.uninvolved) as prober:
            cluster.steps.hold(step)
            acting = asyncio.create_task(cluster.act(operation))
            await cluster.steps.reached()
            victim = await asyncio.to_thread(ensemble.find_leader)
            assert victim is not None
            cluster.steps.go_on()  # the held request is under way when the server dies
            await asyncio.to_thread(victim.kill)
            try:
                await eventually(lambda: asyncio.to_thread(ensemble.find_leader), "ZooKeeper has a leader")
                await cluster.settled()
                await acting
            finally:
                await asyncio.to_thread(victim.start)
    assert {(probe.status, probe.broker) for probe in prober.probes} == {(200, cluster.bystander.broker_id)}
    assert cluster.violations() == []


def has_happened(operation: str, state: NamespaceState) -> bool:
    """Return true if the record has the result of the operation; it never has half of it."""
    if operation in ("split", "merge"):
        boundaries = state.bundles.boundaries
        parted = [*BEFORE, *boundaries[1:2]] if operation == "split" else [*BEFORE[:1], *BEFORE[2:]]
        assert boundaries in (BEFORE, tuple(sorted(parted)))
        return boundaries != BEFORE
    assert state.bundles.boundaries == BEFORE
    return state.ownerships[0].version > 1 and state.ownerships[0].reason != "unload_failed"
