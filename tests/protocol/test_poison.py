"""In a whole cluster: brokers die of a topic, leaders die meanwhile, and soon its bundle is given to nobody."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from protocol.schedules import begin, calm, kill, live
from protocol.world import NAMESPACE, Shape, World

from loadmanager.core.names import TopicName

_DEADLY_AFTER_S, _RESTARTED_AFTER_S, _USED_EVERY_S = 0.5, 4.0, 0.5
_LONG_ENOUGH_S = 90.0
_DEATHS = 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Deadly:
    """A topic of which brokers die soon after they have opened it, while it is deadly; somebody starts them again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topic = world.topics[0]
        self.is_deadly = True
        self.deaths = 0

    async def go_on(self) -> None:
        while True:
            for instance in self.world.served.serving(self.topic) if self.is_deadly else ():
                self.deaths += 1
                asyncio.get_running_loop().call_later(_DEADLY_AFTER_S, self._die, instance.rpartition(".")[0])
            for number, topic in enumerate(self.world.topics):
                self.world.use(topic, number)
            await self.world.wait(max(_USED_EVERY_S, 2 * _DEADLY_AFTER_S))

    def _die(self, name: str) -> None:
        if self.world.processes[name].is_up:
            kill(self.world, name)
            asyncio.get_running_loop().call_later(_RESTARTED_AFTER_S, self.world.start, name)

    def others(self) -> list[str]:
        """The topics in other bundles."""
        bundles = self.world.records.namespaces[NAMESPACE].bundles
        its = bundles.index_of_topic(str(TopicName.parse(self.topic)))
        return [topic for topic in self.world.topics if bundles.index_of_topic(str(TopicName.parse(topic))) != its]


async def _leaders_die(deadly: Deadly) -> None:
    """Whoever leads dies soon after the second death, and again later; both are started again."""
    world = deadly.world
    await world.wait_until(lambda: deadly.deaths > 1, _LONG_ENOUGH_S)
    for pause_s in (_RESTARTED_AFTER_S, _LONG_ENOUGH_S):
        await world.wait(pause_s)
        leader = next(each for each in world.of("node") if each.node is not None and each.node.is_leading)
        kill(world, leader.name)
        await world.wait(_RESTARTED_AFTER_S)
        world.start(leader.name)


@pytest.mark.parametrize("seed", range(1, 7))
def test_brokers_stop_dying_and_all_else_is_served_until_an_operator_lifts_it(seed: int) -> None:
    poison: list[dict[str, object]] = []

    def shown(status: int, body: bytes) -> None:
        if status == 200:
            poison[:] = orjson.loads(body)["bundles"]

    async def main(world: World) -> None:
        calm(world)
        await begin(world)
        deadly = Deadly(world)
        tasks = [asyncio.ensure_future(deadly.go_on())]
        if seed % 2:
            tasks.append(asyncio.ensure_future(_leaders_die(deadly)))
        await world.wait(_LONG_ENOUGH_S)
        deaths, others = deadly.deaths, deadly.others()
        assert others, "there are topics in other bundles"
        assert deaths == _DEATHS
        assert not world.served.serving(deadly.topic)
        assert all(world.served.serving(topic) for topic in others)
        await world.wait(_LONG_ENOUGH_S)
        assert deadly.deaths == deaths, "nobody dies of it any more"
        world.ask("GET", f"{world.node_url(0)}/loadbalance/v1/poison", then=shown)
        assert await world.wait_until(lambda: bool(poison), 10.0)
        assert len(poison) == 1

        deadly.is_deadly = False
        world.ask("DELETE", f"{world.node_url(1)}/loadbalance/v1/poison?bundle={poison[0]['bundle']}")
        assert await world.wait_until(lambda: bool(world.served.serving(deadly.topic)), 10.0)
        for task in tasks:
            task.cancel()

    world = live(seed, Shape(nodes=3, brokers=4, bundles=8, topics=5), main)
    assert not world.violations
