"""Whole cluster: bundles of an exited broker are served elsewhere soon, and never by two brokers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import pytest
from protocol.guards import GUARDS
from protocol.schedules import begin, calm, kill, live
from protocol.world import Shape, World

_SEEDS = range(1, 5)
_LEASE_S = 3.0
_LATE_S = 1.0
_OF_HOLDERS = next(name for name in GUARDS if "a process that died" in name)


async def _serve_everything(world: World) -> None:
    calm(world)
    await begin(world)
    await world.wait_until(lambda: _use_all(world), 30.0)


def _use_all(world: World) -> bool:
    """Ask for all topics; returns true once each is served."""
    missing = [topic for topic in world.topics if not world.served.serving(topic)]
    for number, topic in enumerate(missing):
        world.use(topic, number)
    return not missing


def _lived(seed: int, main: Callable[[World], Coroutine[None, None, None]], told_after_s: float) -> World:
    def begun(world: World) -> Coroutine[None, None, None]:
        world.kernels.told_after_s, world.kernels.separate_share = (told_after_s,), 0.0
        return main(world)

    return live(seed, Shape(nodes=2, brokers=2, bundles=4, topics=6), begun)


@pytest.mark.parametrize("seed", _SEEDS)
def test_bundles_of_a_killed_broker_move_before_its_lease_ends(seed: int) -> None:
    took_s: list[float] = []

    async def main(world: World) -> None:
        await _serve_everything(world)
        kill(world, "broker-0")
        killed_s = world.loop.now_s
        assert await world.wait_until(lambda: _use_all(world), 30.0)
        took_s.append(world.loop.now_s - killed_s)

    assert not _lived(seed, main, told_after_s=0.001).violations
    assert took_s[0] < _LEASE_S / 2


async def _is_back_before_it_is_missed(world: World) -> None:
    """Restart the broker; it has a lease before its agent detects the exit of its former process."""
    await _serve_everything(world)
    for _ in range(3):
        kill(world, "broker-0")
        world.start("broker-0")
        until_s = world.loop.now_s + _LATE_S + _LEASE_S
        while world.loop.now_s < until_s and not world.violations:
            for number, topic in enumerate(world.topics):
                world.use(topic, number)
            await world.wait(0.05)


def test_lease_of_a_restarted_broker_is_waited_for() -> None:
    def broken(seed: int) -> list[str]:
        return _lived(seed, _is_back_before_it_is_missed, told_after_s=_LATE_S).violations

    assert not any(map(broken, _SEEDS))
    with GUARDS[_OF_HOLDERS].taken_out():
        assert any(map(broken, _SEEDS)), "the removed guard is not detected"
