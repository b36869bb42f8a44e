"""Processes beside a Pulsar, and whatever may go wrong, by chance: once nothing does any more, all is well."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster
from support.nodes import in_memory
from support.pulsar_harness import NAMESPACE, Harness, pulsar_harness
from support.stores import in_memory as as_memory
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.errors import LoadManagerError
from loadmanager.pulsar.pulsar_service import PulsarService

STEPS = 30
OFTEN = {
    "loadBalancerSheddingIntervalMinutes": "0.005",
    "loadBalancerSheddingGracePeriodMinutes": "0",
    "minUnloadMessageThroughput": "0",
    "loadBalancerSplitIntervalMinutes": "0.01",
    "loadBalancerNamespaceBundleMaxTopics": "10",
}
SWITCHED_OFF = {"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "false"}
CALLS = ("/unload", "/lookup", "/split")

ADMIN_TIMEOUT_S = 10.0
"""Timeout of the product. A broker that is killed with a request never answers it, and several waits may follow."""


class Mishaps:
    """Faults of a Pulsar, of the processes beside it, and of their store."""

    def __init__(self, harness: Harness, cluster: MemoryCluster, chance: random.Random) -> None:
        self.harness = harness
        self.pulsar = harness.pulsar
        self.chance = chance
        self.alive: list[PulsarService] = []
        self._cluster = cluster
        self._cut_off: list[PulsarService] = []
        self.all: list[Callable[[], Awaitable[object]]] = [
            self.pulsar_refuses,
            self.pulsar_never_answers,
            self.a_bundle_is_to_land_elsewhere,
            self.a_broker_dies,
            self.a_broker_joins,
            self.another_broker_leads,
            self.pulsar_moves_a_bundle,
            self.load_changes,
            self.load_changes,
            self.pulsars_own_shedding_is_switched,
            self.a_process_is_cut_off,
            self.all_are_connected,
            self.a_process_ends,
            self.a_process_starts,
            self.a_broker_is_drained,
            self.no_broker_is_drained,
            self.a_bundle_is_pinned,
            self.an_operator_resumes,
        ]

    async def bundle(self) -> str:
        return self.chance.choice(await self.bundles())

    async def bundles(self) -> list[str]:
        return [f"{NAMESPACE}/{text}" for text in (await self.pulsar.bundles(NAMESPACE)).range_texts()]

    def broker(self) -> BrokerId:
        return self.chance.choice(self.pulsar.brokers).broker_id

    def leader(self) -> PulsarService:
        """A process that takes itself for the one that acts; `IndexError` without one."""
        return [node for node in self.alive if node.is_leading][0]  # noqa: RUF015 - see above

    # Pulsar

    async def pulsar_refuses(self) -> None:
        status = self.chance.choice([401, 404, 409, 412, 500, 503])
        self.pulsar.faults.refuse(self.chance.choice(CALLS), status, times=self.chance.randint(1, 3))

    async def pulsar_never_answers(self) -> None:
        self.pulsar.faults.hold(self.chance.choice(CALLS), done=self.chance.random() < 0.5)

    async def a_bundle_is_to_land_elsewhere(self) -> None:
        self.pulsar.lands[await self.bundle()] = self.chance.choice([None, self.broker()])

    async def a_broker_dies(self) -> None:
        if len(self.pulsar.brokers) > 2:
            await self.pulsar.kill(self.chance.choice(self.pulsar.brokers))

    async def a_broker_joins(self) -> None:
        if len(self.pulsar.brokers) < 5:
            await self.pulsar.join()

    async def another_broker_leads(self) -> None:
        await self.pulsar.elect(self.chance.choice(self.pulsar.brokers))

    async def pulsar_moves_a_bundle(self) -> None:
        await self.pulsar.move(await self.bundle(), self.broker())

    async def load_changes(self) -> None:
        for bundle in await self.bundles():
            rate, topics = self.chance.choice([50.0, 100.0, 400.0]), self.chance.choice([5, 5, 5, 20])
            self.pulsar.load(bundle, rate, bytes_each=100 * 1024.0, topics=topics)
        await self.pulsar.report()

    async def pulsars_own_shedding_is_switched(self) -> None:
        is_on = self.chance.choice(["true", "false"])
        await self.pulsar.set_dynamic({**SWITCHED_OFF, "loadBalancerSheddingEnabled": is_on})

    # Processes, and their store

    async def a_process_is_cut_off(self) -> None:
        """Its session may end meanwhile, with or without its knowledge."""
        node = self.chance.choice(self.alive)
        self._cut_off.append(node)
        self._cluster.partition(as_memory(node.store), noticed=self.chance.random() < 0.5)
        if self.chance.random() < 0.5:
            self._cluster.expire(as_memory(node.store))

    async def all_are_connected(self) -> None:
        while self._cut_off:
            self._cluster.heal(as_memory(self._cut_off.pop().store))

    async def a_process_ends(self) -> None:
        node = self.chance.choice(self.alive)
        if len(self.alive) > 1 and node not in self._cut_off:
            self.alive.remove(node)
            await node.stop()

    async def a_process_starts(self) -> None:
        if len(self.alive) < 3:
            changes = {"overrides": OFTEN, "splits_enabled": True, "move_timeout_ms": 1_500}
            self.alive.append(await self.harness.start(**changes))

    # Operators

    async def a_broker_is_drained(self) -> None:
        await self.leader().drains.start(self.broker())

    async def no_broker_is_drained(self) -> None:
        await self.leader().operators.update_controls(lambda controls: replace(controls, draining={}))

    async def a_bundle_is_pinned(self) -> None:
        bundle, home = await self.bundle(), self.broker()
        await self.leader().operators.update_controls(lambda controls: replace(controls, pinned={bundle: home}))

    async def an_operator_resumes(self) -> None:
        await self.leader().resume()

    # In the end

    async def nothing_more(self) -> None:
        self.pulsar.faults.forgive()
        self.pulsar.lands.clear()
        await self.pulsar.set_dynamic(SWITCHED_OFF)
        await self.all_are_connected()

    async def find_what_is_not_well(self) -> str | None:
        """None once nothing is under way, the picture is Pulsar's, and what operators wanted is so."""
        await self.pulsar.report()
        node = self.leader()
        if node.status().stopped:
            await node.resume()
        if (await self.harness.move_history()).in_progress:
            return f"something is under way: {(await self.harness.move_history()).in_progress}"
        for bundle in await self.bundles():
            owner, seen = await self.pulsar.owner(bundle), node.mirror.find_ownership(bundle)
            if seen is None or seen.state is OwnershipState.RELEASING:
                return f"{bundle} is seen as {seen}"
            if (seen.owner.broker if seen.owner else None) != owner:
                return f"{bundle} is seen as {seen}, and {owner} has it"
        controls = node.mirror.operator_config.controls
        takers = [broker.broker_id for broker in self.pulsar.brokers if controls.takes_bundles(broker.broker_id)]
        for broker in self.pulsar.brokers:
            if takers and broker.broker_id in controls.draining and await broker.owned():
                return f"{broker.broker_id} is not drained"
        for bundle, home in controls.pinned.items():
            is_current = bundle in await self.bundles()
            if home in takers and is_current and await self.pulsar.owner(bundle) not in (home, None):
                return f"{bundle} is not at home, on {home}"
        return None


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[tuple[Harness, MemoryCluster]]:
    cluster = a_memory_cluster()
    async with pulsar_harness(tmp_path, bundles=8) as harness:
        harness.connect = in_memory(cluster)
        harness.admin_timeout_s = ADMIN_TIMEOUT_S
        harness.store = await harness.connect()
        yield harness, cluster


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cluster_recovers_once_faults_stop(harness: tuple[Harness, MemoryCluster], seed: int) -> None:
    mishaps = Mishaps(*harness, random.Random(seed))
    for _ in range(2):
        await mishaps.a_process_starts()
    for _ in range(STEPS):
        await asyncio.sleep(mishaps.chance.choice([0.01, 0.05, 0.2]))
        with contextlib.suppress(LoadManagerError, IndexError):  # nobody leads, or what is wanted cannot be now
            await mishaps.chance.choice(mishaps.all)()
    await mishaps.nothing_more()
    why_not: list[str | None] = [None]

    async def is_well() -> bool:
        with contextlib.suppress(LoadManagerError, IndexError):
            why_not[0] = await mishaps.find_what_is_not_well()
            return why_not[0] is None
        return False

    try:
        # A move that Pulsar gives back to its source is given up after a minute (`moveTimeoutMs`).
        await eventually(is_well, least_s=150)
    except AssertionError:
        pytest.fail(f"in the end {why_not[0]}")
    assert not [node.failure for node in mishaps.alive if node.failure.done()]
