"""Agents with default sessions survive pauses of a second; a lost machine is detected in three."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from protocol.guards import GUARDS
from protocol.schedules import DO, Step, begin, calm, kill, live
from protocol.world import Shape, World
from support.deep import deep_except

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.store.store_session import LEASE_RATIO

_PAUSE_S = 1.0
_BETWEEN_S = 0.5, 2.0
_PAUSES_A_MACHINE = 500
_FEW_PAUSES = 100
_SUSPENDED_S = 5.0
_LOST_S = 3.1
"""The session timeout, one ZooKeeper tick, and the time to react."""
_MACHINES, _AT_A_TIME = 40, 8
_AGENT_SESSION_S = AgentSettings.model_fields["metadata_store_session_timeout_millis"].default / 1000


async def _begin_with_defaults(world: World) -> None:
    calm(world)
    await begin(world)
    assert await world.wait_until(lambda: _serve_all(world), 30.0)


def _serve_all(world: World) -> bool:
    missing = [topic for topic in world.topics if not world.served.serving(topic)]
    for number, topic in enumerate(missing):
        world.use(topic, number)
    return not missing


def _noting_closings(world: World) -> list[str]:
    """List of topics closed from now on, in order."""
    closed: list[str] = []
    on_change = world.served.on_change

    def note() -> None:
        closed.extend(f"{topic} at {world.loop.now_s:.3f}" for topic in world.topics if not world.served.open[topic])
        on_change()

    world.served.on_change = note
    return closed


def _machine(number: int) -> list[str]:
    return [f"agent-{number}", f"broker-{number}"]


async def _pause_processes(world: World, number: int, times: int) -> None:
    """Pause the agent, the broker, or both, of a machine."""
    both = _machine(number)
    for _ in range(times):
        await world.wait(world.rng.uniform(*_BETWEEN_S))
        names = world.rng.choice([both[:1], both[1:], both])
        for name in names:
            DO["pause"](world, Step(0.0, "pause", name))
        await world.wait(_PAUSE_S)
        for name in names:
            DO["resume"](world, Step(0.0, "resume", name))


async def _pause_zookeeper(world: World, times: int) -> None:
    for _ in range(times // 4):
        await world.wait(world.rng.uniform(*_BETWEEN_S))
        world.zookeeper.stop()
        await world.wait(_PAUSE_S)
        world.zookeeper.go_on()


async def _pause_machines(world: World, times: int) -> None:
    await asyncio.gather(*(_pause_processes(world, number, times) for number in range(world.shape.brokers)))


@pytest.mark.parametrize("times", deep_except([_FEW_PAUSES], [_FEW_PAUSES, _PAUSES_A_MACHINE]))
@pytest.mark.parametrize("pause", [_pause_machines, _pause_zookeeper])
def test_short_pause_loses_nothing(pause: Callable[[World, int], Coroutine[None, None, None]], times: int) -> None:
    """No topic is even closed."""
    closed: list[str] = []

    async def main(world: World) -> None:
        await _begin_with_defaults(world)
        noted, before = _noting_closings(world), dict(world.records.bundles())
        await pause(world, times)
        assert dict(world.records.bundles()) == before, "every bundle has the same owner and incarnation"
        closed.extend(noted)

    shape = Shape(nodes=1, brokers=4, bundles=8, topics=8, agent_session_s=_AGENT_SESSION_S)
    assert not live(1, shape, main).violations
    assert not closed


async def _use_all_topics(world: World, for_s: float) -> None:
    """Request every topic repeatedly, served or not."""
    until_s = world.loop.now_s + for_s
    while world.loop.now_s < until_s:
        for number, topic in enumerate(world.topics):
            world.use(topic, number)
        await world.wait(0.1)


def test_machine_suspended_with_its_clocks_serves_nothing_owned_by_others() -> None:
    """`time.monotonic()` and timers do not count the suspension."""

    async def main(world: World) -> None:
        await _begin_with_defaults(world)
        await world.wait(world.rng.uniform(0.0, 1.0))
        DO["freeze the machine"](world, Step(0.0, "freeze the machine", "b0"))
        await _use_all_topics(world, _SUSPENDED_S)
        DO["thaw the machine"](world, Step(0.0, "thaw the machine", "b0"))
        await _use_all_topics(world, 2.0)

    shape = Shape(nodes=1, brokers=3, bundles=4, topics=4, agent_session_s=_AGENT_SESSION_S)
    for seed in range(_MACHINES // 10):
        assert not live(seed, shape, main).violations


def test_suspension_that_no_clock_counts_leaves_two_owners_for_one_lease() -> None:
    """Outside the contract: two owners may overlap for one lease."""
    two_s: list[float] = []

    async def main(world: World) -> None:
        await _begin_with_defaults(world)
        DO["freeze the machine"](world, Step(0.0, "freeze the machine", "b0"))
        await _use_all_topics(world, _SUSPENDED_S)
        DO["thaw the machine"](world, Step(0.0, "thaw the machine", "b0"))
        woke_s = ended_s = world.loop.now_s
        while world.loop.now_s < woke_s + _SUSPENDED_S:
            await world.wait(0.01)
            if any(len(world.served.serving(topic)) > 1 for topic in world.topics):
                ended_s = world.loop.now_s
        two_s.append(ended_s - woke_s)

    shape = Shape(nodes=1, brokers=3, bundles=4, topics=4, agent_session_s=_AGENT_SESSION_S)
    with GUARDS["lease: its clock counts the time for which the machine was suspended"].taken_out():
        found = [live(seed, shape, main).violations for seed in range(_MACHINES // 10)]
    assert any(found)
    assert 0.0 < max(two_s) < LEASE_RATIO * _AGENT_SESSION_S


@pytest.mark.parametrize("first", deep_except([0], range(0, _MACHINES, _AT_A_TIME)))
def test_bundles_of_a_lost_machine_are_served_elsewhere_in_three_seconds(first: int) -> None:
    took_s: list[float] = []

    async def main(world: World) -> None:
        await _begin_with_defaults(world)
        await world.wait(world.rng.uniform(0.0, 1.0))
        for name in _machine(0):
            kill(world, name)
        lost_s = world.loop.now_s
        assert await world.wait_until(lambda: _serve_all(world), 30.0)
        took_s.append(world.loop.now_s - lost_s)

    shape = Shape(nodes=1, brokers=2, bundles=4, topics=4, agent_session_s=_AGENT_SESSION_S)
    for seed in range(first, first + _AT_A_TIME):
        assert not live(seed, shape, main).violations
    assert max(took_s) < _LOST_S
