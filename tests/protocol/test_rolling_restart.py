"""Whole cluster: every broker restarts, drained or held off, and no client's request fails.

Clients use `loadmanager.client`: nodes push owners to them, and they report brokers that refuse them. A request fails
if no broker serves it within its timeout.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
import pytest
from protocol.network import ClientSession
from protocol.parties import Party
from protocol.schedules import begin, calm, live, stop
from protocol.world import BROKER_PORT, NAMESPACE, Shape, World
from support.deep import deep_except

from loadmanager.client import LookupClient
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.errors import LoadManagerError

BROKERS = int(os.environ.get("RESTARTED_BROKERS") or 12)
"""Number of brokers that restart, one after the other; a hundred take two minutes."""

_BUNDLES_PER_BROKER, _TOPICS_PER_BROKER = 2, 4
_CLIENTS = 3
_SENT_EVERY_S = 0.25
_LONG_S = 60.0


@dataclass
class Client:
    """Sequential requests for one topic; `waited_s` has the duration of each, failed ones included."""

    world: World
    topic: str
    owners: LookupClient
    timeout_s: float
    waited_s: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            began_s = self.world.loop.now_s
            while not await self._is_served():
                if self.world.loop.now_s - began_s > self.timeout_s:
                    self.failed.append(began_s)
                    break
            self.waited_s.append(self.world.loop.now_s - began_s)
            await asyncio.sleep(_SENT_EVERY_S)

    async def _is_served(self) -> bool:
        try:
            owner = await self.owners.lookup(self.topic, self.timeout_s)
        except LoadManagerError:
            return False
        if await self._status_at(owner.broker_id) == HTTPStatus.NO_CONTENT:
            return True
        self.owners.refused(self.topic, owner.broker_id)
        return False

    async def _status_at(self, broker: str) -> int:
        try:
            url = f"http://{broker}/serve?topic={self.topic}"
            async with ClientSession().get(url, timeout=aiohttp.ClientTimeout(total=5.0)) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0


class Fleet:
    """The brokers of a world and their clients; `moves` counts the changes of each bundle's broker."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self.world = world
        self.timeout_s = timeout_s
        self.clients: list[Client] = []
        self.moves: Counter[str] = Counter()
        self._owners: dict[str, str] = {}
        self._told = world.records.on_change
        world.records.on_change = self._note

    async def begin(self) -> None:
        """Wait until all brokers are registered and all topics are served, then reset the statistics."""
        for number in range(_CLIENTS):
            party = Party(f"client-{number}", f"c{number}")
            self.world.loop.as_party(party, 0.0, lambda number=number: asyncio.create_task(self._run(number)))
        assert await self.world.wait_until(self._is_served, _LONG_S)
        for client in self.clients:
            client.waited_s.clear()
            client.failed.clear()

    async def _run(self, number: int) -> None:
        """Run a client process that uses a part of the topics."""
        urls = [self.world.node_url(each) for each in range(self.world.shape.nodes)]
        async with LookupClient(urls, namespaces=[NAMESPACE], chance=random.Random(number)) as owners:
            mine = [Client(self.world, each, owners, self.timeout_s) for each in self.world.topics[number::_CLIENTS]]
            self.clients += mine
            await asyncio.gather(*(client.run() for client in mine))

    def _is_served(self) -> bool:
        is_there = all(self._life(number) for number in range(BROKERS))
        return is_there and all(self.world.served.serving(topic) for topic in self.world.topics)

    def _note(self) -> None:
        self._told()
        for name, ownership in self.world.records.bundles():
            if ownership.state is OwnershipState.OWNED and ownership.owner is not None:
                broker = ownership.owner.broker
                self.moves[str(name)] += self._owners.get(str(name), broker) != broker
                self._owners[str(name)] = broker

    async def ask(self, method: str, number: int, what: str, body: object = None) -> None:
        """Send a command about a broker, and expect success."""
        done: list[int] = []
        url = f"{self.world.node_url(number)}/loadbalance/v1/brokers/{_broker(number)}/{what}"
        self.world.ask(method, url, body, then=lambda status, _: done.append(status))
        assert await self.world.wait_until(lambda: bool(done), _LONG_S)
        assert done[0] < 300, done

    def owned(self, number: int) -> int:
        """Return the number of the broker's bundles, including releasing ones."""
        bundles = self.world.records.bundles()
        return sum(each.owner is not None and each.owner.broker == _broker(number) for _, each in bundles)

    async def restart(self, number: int) -> None:
        """Restart agent and broker in order, as in a pod, and wait until all nodes have seen it."""
        names = (f"agent-{number}", f"broker-{number}")
        before = self._life(number)
        for name in names:
            stop(self.world, name)
            process = self.world.processes[name]
            assert await self.world.wait_until(lambda: not process.is_up, _LONG_S), name  # noqa: B023 - of now
        for name in names:
            self.world.start(name)
        assert await self.world.wait_until(lambda: self._life(number) > before, _LONG_S)

    def _life(self, number: int) -> int:
        """Return the incarnation that all nodes see, 0 if they differ."""
        nodes = [each.node for each in self.world.of("node") if each.node is not None]
        lives = {node.mirror.registrations.get(_broker(number)) for node in nodes}
        life = lives.pop() if len(lives) == 1 else None
        return life.incarnation if life is not None else 0


def _broker(number: int) -> BrokerId:
    return BrokerId(f"b{number}:{BROKER_PORT}")


async def drained(fleet: Fleet, number: int) -> None:
    """Drain the broker, then restart it."""
    await fleet.ask("PUT", number, "drain")
    assert await fleet.world.wait_until(lambda: not fleet.owned(number), _LONG_S)
    await fleet.restart(number)


async def held_off(fleet: Fleet, number: int) -> None:
    """Hold off the broker and restart it; its bundles wait."""
    had = fleet.owned(number)
    await fleet.ask("PUT", number, "hold-off", {"forS": 120})
    await fleet.restart(number)
    assert await fleet.world.wait_until(lambda: fleet.owned(number) == had, _LONG_S)


@pytest.mark.parametrize(
    ("restarted", "timeout_s", "most_moves"),
    deep_except([(drained, 2.0, 3)], [(drained, 2.0, 3), (held_off, 15.0, 0)]),
)
def test_every_broker_restarts_and_no_request_fails(
    restarted: Callable[[Fleet, int], Awaitable[None]],
    timeout_s: float,
    most_moves: int,
    record_property: Callable[[str, object], None],
) -> None:
    fleets: list[Fleet] = []

    async def main(world: World) -> None:
        calm(world)
        await begin(world)
        fleet = Fleet(world, timeout_s)
        fleets.append(fleet)
        await fleet.begin()
        for number in range(BROKERS):
            await restarted(fleet, number)
        await world.wait(timeout_s)
        assert all(client.owners.resolve(client.topic) for client in fleet.clients), "it was pushed to them"

    world = live(1, Shape(2, BROKERS, BROKERS * _BUNDLES_PER_BROKER, BROKERS * _TOPICS_PER_BROKER), main)
    (fleet,) = fleets
    record_property("longest wait, s", max(max(client.waited_s) for client in fleet.clients))
    record_property("requests", sum(len(client.waited_s) for client in fleet.clients))
    assert not world.violations
    assert not [(client.topic, client.failed) for client in fleet.clients if client.failed]
    assert min(len(client.waited_s) for client in fleet.clients) > BROKERS, "all went on sending"
    assert max(fleet.moves.values()) <= most_moves
