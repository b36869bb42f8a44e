"""Agents with their default session outlive pauses of a second, 10,000 of them, and a lost machine is missed in 3 s."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from protocol.parties import Party
from protocol.schedules import begin, calm, kill, live
from protocol.world import Shape, World

from loadmanager.config import AgentSettings

_PAUSE_S = 1.0
_PAUSES = 2_500
_SEEDS = range(1, 5)
_LOST_S = 3.0
_MACHINES = 40

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def _begin_with_defaults(world: World) -> None:
    world.agents_session_s = AgentSettings.model_fields["metadata_store_session_timeout_millis"].default / 1000
    calm(world)


def _serve_all(world: World) -> bool:
    missing = [topic for topic in world.topics if not world.served.serving(topic)]
    for number, topic in enumerate(missing):
        world.use(topic, number)
    return not missing


def _party(world: World, name: str) -> Party:
    party = world.processes[name].party
    assert party is not None
    return party


def _noting_closings(world: World) -> list[str]:
    """Whatever is closed from now on, as it happens."""
    closed: list[str] = []
    on_change = world.served.on_change

    def note() -> None:
        closed.extend(f"{topic} at {world.loop.now_s:.3f}" for topic in world.topics if not world.served.open[topic])
        on_change()

    world.served.on_change = note
    return closed


_VICTIMS: dict[str, tuple[str, ...]] = {
    "an agent": ("agent-0",),
    "a broker": ("broker-0",),
    "a machine": ("agent-0", "broker-0"),
}


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_pause_of_a_second_costs_no_broker_its_registration_nor_any_topic_its_owner(seed: int) -> None:
    """Of an agent, of a broker, of the machine of both, or of ZooKeeper. No topic is even closed."""
    what = [*_VICTIMS, "ZooKeeper"]
    closed: list[str] = []

    async def main(world: World) -> None:
        _begin_with_defaults(world)
        await begin(world)
        assert await world.wait_until(lambda: _serve_all(world), 30.0)
        noted = _noting_closings(world)
        before = dict(world.records.bundles())
        for _ in range(_PAUSES):
            await world.wait(world.rng.uniform(0.0, 1.5))
            await _pause(world, world.rng.choice(what))
        assert dict(world.records.bundles()) == before, "every bundle has the owner that it had, in the same life"
        closed.extend(noted)

    world = live(seed, Shape(nodes=1, brokers=2, bundles=4, topics=4), main)
    assert not world.violations
    assert not closed


async def _pause(world: World, what: str) -> None:
    parties = [_party(world, name) for name in _VICTIMS.get(what, ())]
    stop: Callable[[], None] = world.zookeeper.stop if not parties else lambda: _each(world.loop.pause, parties)
    go_on: Callable[[], None] = world.zookeeper.go_on if not parties else lambda: _each(world.loop.resume, parties)
    stop()
    await world.wait(_PAUSE_S)
    go_on()


def _each(do: Callable[[Party], None], parties: list[Party]) -> None:
    for party in parties:
        do(party)


def test_the_bundles_of_a_machine_that_is_lost_are_served_elsewhere_in_three_seconds() -> None:
    took_s: list[float] = []

    async def main(world: World) -> None:
        _begin_with_defaults(world)
        await begin(world)
        assert await world.wait_until(lambda: _serve_all(world), 30.0)
        await world.wait(world.rng.uniform(0.0, 1.0))
        for name in _VICTIMS["a machine"]:
            kill(world, name)
        lost_s = world.loop.now_s
        assert await world.wait_until(lambda: _serve_all(world), 30.0)
        took_s.append(world.loop.now_s - lost_s)

    for seed in range(_MACHINES):
        assert not live(seed, Shape(nodes=1, brokers=2, bundles=4, topics=4), main).violations
    assert max(took_s) < _LOST_S
