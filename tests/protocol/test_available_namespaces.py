"""Open topics of an available namespace are served without ZooKeeper and a leader; all others are not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from protocol.schedules import DO, Step, begin, calm, kill, live
from protocol.world import NAMESPACE, Shape, World

_OUTAGE_S = 60.0
_TIMEOUT_S = 30.0


def _all_have_leases(world: World) -> bool:
    missing = [topic for topic in world.topics if not world.served.serving(topic)]
    for number, topic in enumerate(missing):
        world.use(topic, number)
    return not missing


def _serving(world: World, topic: str) -> list[str]:
    """Processes that serve the topic, with a lease or without one."""
    places = {instance: world.served.hosts[instance] for instance in world.served.open[topic]}
    return [
        instance
        for instance, (party, hosting) in places.items()
        if party.context.copy().run(hosting.serving, topic) is not None
    ]


def _serve_once(world: World) -> bool:
    return all(len(_serving(world, topic)) == 1 for topic in world.topics)


async def _begin_available(world: World) -> None:
    calm(world)
    await begin(world)

    def is_known() -> bool:
        brokers = [hosting for _, hosting in world.served.hosts.values()]
        return _all_have_leases(world) and all(
            NAMESPACE in hosting._contract.available for hosting in brokers if hosting.topics
        )

    assert await world.wait_until(is_known, _TIMEOUT_S)


def _run(shape: Shape, main: Callable[[World], Coroutine[None, None, None]]) -> None:
    assert not live(1, shape, main).violations


def test_outage_of_zookeeper_and_all_nodes_closes_no_topic() -> None:
    async def main(world: World) -> None:
        await _begin_available(world)
        before = {topic: _serving(world, topic) for topic in world.topics}
        world.zookeeper.stop()
        for process in world.of("node"):
            kill(world, process.name)
        await world.wait(_OUTAGE_S)
        assert not any(world.served.serving(topic) for topic in world.topics), "no lease is valid any more"
        assert {topic: _serving(world, topic) for topic in world.topics} == before
        world.zookeeper.go_on()
        for process in world.of("node"):
            world.start(process.name)
        assert await world.wait_until(lambda: _all_have_leases(world) and _serve_once(world), _TIMEOUT_S)

    _run(Shape(nodes=2, brokers=3, bundles=8, topics=8, available=True), main)


def test_cut_off_broker_serves_beside_the_next_owner_until_reconnected() -> None:
    async def main(world: World) -> None:
        await _begin_available(world)
        cut_off = {topic for topic in world.topics if _serving(world, topic)[0].startswith("broker-0.")}
        assert cut_off
        step = Step(0.0, "cut off from ZooKeeper", "b0")
        DO["cut off from ZooKeeper"](world, step)

        def has_next_owners() -> bool:
            return _all_have_leases(world) and all(len(_serving(world, topic)) == 2 for topic in cut_off)

        assert await world.wait_until(has_next_owners, _TIMEOUT_S)
        assert not any(len(_serving(world, topic)) > 1 for topic in world.topics if topic not in cut_off)
        DO["mend ZooKeeper's network"](world, step)
        assert await world.wait_until(lambda: _serve_once(world), _TIMEOUT_S)

    _run(Shape(nodes=2, brokers=3, bundles=8, topics=8, available=True), main)


def test_exclusive_namespace_is_not_served_without_leases() -> None:
    async def main(world: World) -> None:
        calm(world)
        await begin(world)
        assert await world.wait_until(lambda: _all_have_leases(world), _TIMEOUT_S)
        world.zookeeper.stop()
        await world.wait(_OUTAGE_S)
        assert not any(_serving(world, topic) for topic in world.topics)

    _run(Shape(nodes=1, brokers=2, bundles=4, topics=4), main)
