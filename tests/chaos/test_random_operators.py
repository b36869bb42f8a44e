"""Operators who do whatever comes to their minds, while brokers restart and leaders come and go: seeded walks.

After each action the record is whole and no version has fallen; at the end every topic is served by one broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from support.deep import deep_except
from support.scripted_broker import ScriptedBroker, asking
from support.steps import NAME, MortalNode, MortalStore, SteppedCluster, Steps, a_stepped_cluster, in_memory
from support.stores import MemoryWorld
from support.waiting import eventually, patience

from loadmanager.core.diagnosis.invariants import ownership_violations, succession_violations
from loadmanager.core.domain.ownership import NamespaceState

# A connection may be accepted in the very moment in which a server inside this process is killed; asyncio loses it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

_Action = Callable[[], Coroutine[Any, Any, None]]
ACTIONS = 40
EXPECTED = {0, 200, 202, 204, 307, 400, 404, 409, 412, 503, 504}
"""0: the node died over it."""


class Walk:
    """One walk. `nodes` are alive; what is begun may still be under way when the next action comes."""

    def __init__(self, seed: int, cluster: SteppedCluster, world: MemoryWorld, stack: AsyncExitStack) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster
        self.nodes = [cluster.leader, cluster.standby]
        self.states: list[NamespaceState] = []
        self.statuses: set[int] = set()
        self._world = world
        self._stack = stack
        self._under_way: set[asyncio.Task[None]] = set()

    async def go(self) -> None:
        often: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.split,
            self.merge,
            self.unload,
            self.transfer,
            self.look_up,
        ]
        seldom = [self.drain, self.drain_no_more, self.pin, self.unpin, self.freeze, self.exclude, self.include]
        for _ in range(ACTIONS):
            rare = [self.broker_restarts, self.leader_dies, self.leader_stops] if self.chance.random() < 0.4 else []
            action = self.chance.choice([*often * 2, *seldom, *rare])
            task = asyncio.create_task(action())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            if action in rare or self.chance.random() < 0.6:
                await task
            await self.check()
        await asyncio.gather(*self._under_way)

    async def check(self) -> None:
        state = await self.cluster.state()
        assert ownership_violations(state.bundles.ranges(), state.ownerships) == []
        if self.states:
            assert succession_violations(self.states[-1], state) == []
        self.states.append(state)
        assert self.statuses <= EXPECTED

    async def ends_well(self) -> None:
        """Everything is allowed again: all topics are found and served."""
        await eventually(lambda: any(node.node.leading.is_set() for node in self.nodes))
        for broker in self.cluster.brokers:
            for what in ("drain", "exclusion"):
                await self._ask("DELETE", f"/loadbalance/v1/brokers/{broker.broker_id}/{what}")
        self.cluster.standby = self.nodes[-1]
        await self.cluster.settled()
        await self.check()

    async def _ask(self, method: str, path: str, body: object = None) -> None:
        url = f"{self.chance.choice(self.nodes).url}{path}"
        timeout = aiohttp.ClientTimeout(total=patience())
        try:
            async with self.cluster.http.request(method, url, json=body, timeout=timeout) as answer:
                self.statuses.add(answer.status)
        except aiohttp.ClientError:
            self.statuses.add(0)

    def _bundle(self) -> str:
        """Mostly one of the bundles that there are now, now and then one of a while ago."""
        state = self.chance.choice(self.states[-3:]) if self.states else None
        return self.chance.choice(state.bundle_names()) if state else f"{NAME}/0x00000000_0x40000000"

    def _broker(self) -> ScriptedBroker:
        return self.chance.choice(self.cluster.brokers)

    # Operators

    async def split(self) -> None:
        algorithm = self.chance.choice(["range_equally_divide", "topic_count_equally_divide"])
        unload = self.chance.choice(["true", "false"])
        query = f"splitAlgorithmName={algorithm}&unload={unload}"
        await self._ask("PUT", f"/admin/v2/namespaces/{self._bundle()}/split?{query}")

    async def merge(self) -> None:
        await self._ask("POST", f"/loadbalance/v1/bundles/{self._bundle()}/merge")

    async def unload(self) -> None:
        await self._ask("PUT", f"/admin/v2/namespaces/{self._bundle()}/unload")

    async def transfer(self) -> None:
        query = f"destinationBroker={self._broker().broker_id}"
        await self._ask("PUT", f"/admin/v2/namespaces/{self._bundle()}/unload?{query}")

    async def look_up(self) -> None:
        topic = self.chance.choice([*self.cluster.subjects, self.cluster.uninvolved])
        await self._ask("GET", f"/lookup/v2/topic/persistent/{topic}")

    async def drain(self) -> None:
        await self._ask("PUT", f"/loadbalance/v1/brokers/{self._broker().broker_id}/drain")

    async def drain_no_more(self) -> None:
        await self._ask("DELETE", f"/loadbalance/v1/brokers/{self._broker().broker_id}/drain")

    async def pin(self) -> None:
        body = {"broker": self._broker().broker_id}
        await self._ask("PUT", f"/loadbalance/v1/bundles/{self._bundle()}/pin", body)

    async def unpin(self) -> None:
        await self._ask("DELETE", f"/loadbalance/v1/bundles/{self._bundle()}/pin")

    async def freeze(self) -> None:
        await self._ask("PUT", f"/loadbalance/v1/bundles/{self._bundle()}/freeze", {"reason": "a walk"})

    async def exclude(self) -> None:
        await self._ask("PUT", f"/loadbalance/v1/brokers/{self._broker().broker_id}/exclusion")

    async def include(self) -> None:
        await self._ask("DELETE", f"/loadbalance/v1/brokers/{self._broker().broker_id}/exclusion")

    # Misfortune

    async def broker_restarts(self) -> None:
        await self._broker().register_again()

    async def leader_dies(self) -> None:
        await self._replace_leader(MortalNode.crash)

    async def leader_stops(self) -> None:
        await self._replace_leader(MortalNode.stop)

    async def _replace_leader(self, end: Callable[[MortalNode], Awaitable[None]]) -> None:
        """End the leader, and start another node, so that there are always two."""
        leader = next((node for node in self.nodes if node.node.leading.is_set()), self.nodes[0])
        self.nodes.remove(leader)
        await end(leader)
        node = MortalNode(MortalStore(await self._world.connect(), Steps()))
        await node.start()
        self._stack.push_async_callback(node.stop)
        topics = [*self.cluster.subjects, self.cluster.uninvolved]
        asked = asking(self.cluster.http, self.cluster.brokers, [node.url], topics)
        await self._stack.enter_async_context(asked)
        self.nodes.append(node)


@pytest.mark.parametrize("seed", deep_except(range(3), range(8)))
async def test_whatever_operators_do_no_bundle_is_lost_or_owned_twice(seed: int) -> None:
    world = in_memory()
    async with a_stepped_cluster(world) as cluster, AsyncExitStack() as stack:
        walk = Walk(seed, cluster, world, stack)
        await walk.check()
        await walk.go()
        await walk.ends_well()
    assert {200, 204} & walk.statuses
    assert cluster.violations() == []
