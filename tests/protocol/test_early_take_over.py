"""Failure detection between nodes: no node is replaced without cause, a lost leader within a second."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from unittest.mock import patch

import pytest
from protocol.schedules import calm, live
from protocol.world import SESSION_S, Process, Shape, World
from support.deep import deep_except

from loadmanager.core.protocol import failure_detector
from loadmanager.http.probe_routes import TermHandlers
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Znode

PAUSES = 5_000
_PAUSES_A_WORLD = 500
_LONGEST_PAUSE_S = 0.5
_APART_S = (0.2, 0.6)
_SETTLE_S = 60.0

Happens = Callable[[World], Coroutine[None, None, None]]


def epoch(world: World) -> int:
    return world.zookeeper.znodes[paths.EPOCH].version


def leader_of(world: World) -> Process:
    return next(each for each in world.of("node") if each.node is not None and each.node.election._term is not None)


def pause(world: World, process: Process) -> None:
    assert process.party is not None
    world.loop.pause(process.party)


def resume(world: World, process: Process) -> None:
    assert process.party is not None
    world.loop.resume(process.party)


def play(seed: int, main: Happens, advertised: Mapping[str, str] = MappingProxyType({})) -> World:
    """Start three nodes without brokers, wait for a leader, then run `main`."""

    async def begin(world: World) -> None:
        calm(world)
        world.advertised.update(advertised)
        for name in world.processes:
            world.start(name)
        assert await world.wait_until(lambda: world.records.has_leader, _SETTLE_S)
        await world.wait(2.0)
        await main(world)

    world = live(seed, Shape(nodes=3, brokers=0, bundles=1, topics=0), begin)
    assert not world.violations
    return world


@pytest.mark.parametrize("seed", deep_except([0], range(PAUSES // _PAUSES_A_WORLD)))
def test_pauses_up_to_half_a_second_cause_no_election(seed: int) -> None:
    """Pauses the leader, a standby, both, or ZooKeeper; some pauses have the maximum length."""
    rng = random.Random(seed)

    async def pauses(world: World) -> None:
        before = epoch(world)
        for _ in range(_PAUSES_A_WORLD):
            leader = leader_of(world)
            standby = rng.choice([each for each in world.of("node") if each is not leader])
            paused = rng.choice([[leader], [leader], [leader], [standby], [leader, standby], []])
            for each in paused:
                pause(world, each)
            if not paused:
                world.zookeeper.stop()
            await world.wait(_LONGEST_PAUSE_S if rng.random() < 0.2 else rng.uniform(0.0, _LONGEST_PAUSE_S))
            for each in paused:
                resume(world, each)
            if not paused:
                world.zookeeper.go_on()
            await world.wait(rng.uniform(*_APART_S))
            if epoch(world) != before:
                world.failures.append(f"an election without cause at {world.loop.now_s:.3f} s")
                return

    play(seed, pauses)


def suspicions(world: World) -> list[float]:
    """Times at which suspicions are written to the store from now on."""
    at_s: list[float] = []
    world.zookeeper.on_commit.append(
        lambda _session, ops, _changes: at_s.extend(
            world.loop.now_s for op in ops if isinstance(op, Create) and op.path == paths.SUSPICION
        )
    )
    return at_s


def lose_the_machine(world: World, leader: Process) -> None:
    cut_off_from_nodes(world, leader)
    cut_off_from_zookeeper(world, leader)


def cut_off_from_zookeeper(world: World, leader: Process) -> None:
    world.zookeeper.cut(leader.host)


def cut_off_from_nodes(world: World, node: Process) -> None:
    for each in world.of("node"):
        world.network.cuts |= {(node.host, each.host), (each.host, node.host)}


@pytest.mark.parametrize("seed", deep_except(range(3), range(10)))
@pytest.mark.parametrize("lose", [pause, lose_the_machine, cut_off_from_zookeeper])
def test_lost_leader_is_replaced_within_a_second(seed: int, lose: Callable[[World, Process], None]) -> None:
    async def main(world: World) -> None:
        await world.wait(world.rng.uniform(0.0, 0.3))
        lost, begun_s = leader_of(world), world.loop.now_s
        lose(world, lost)

        def succeeded() -> bool:
            return any(each is not lost and each.node is not None and each.node.is_leading for each in world.of("node"))

        assert await world.wait_until(succeeded, SESSION_S)
        assert world.loop.now_s - begun_s < 1.0
        successor = epoch(world)
        await world.wait(SESSION_S)
        resume(world, lost)
        world.zookeeper.heal(lost.host)
        world.network.cuts.clear()
        await world.wait(SESSION_S)
        assert epoch(world) == successor, "who comes back follows"
        assert lost.node is not None
        assert not lost.node.is_leading

    play(seed, main)


@pytest.mark.parametrize("lose", [pause, lose_the_machine])
def test_fifth_justified_take_over_is_as_quick_as_the_first(lose: Callable[[World, Process], None]) -> None:
    async def main(world: World) -> None:
        for _ in range(5):
            lost, begun_s, before = leader_of(world), world.loop.now_s, epoch(world)
            lose(world, lost)
            assert await world.wait_until(lambda before=before: epoch(world) > before, SESSION_S)  # type: ignore[misc]
            assert world.loop.now_s - begun_s < 1.0
            await world.wait(1.5 * SESSION_S)
            resume(world, lost)
            world.zookeeper.heal(lost.host)
            world.network.cuts.clear()
            await world.wait(SESSION_S)

    play(1, main)


async def a_leader_cut_off_from_the_other_nodes(world: World) -> None:
    cut_off_from_nodes(world, leader_of(world))
    await world.wait(10 * SESSION_S)


async def a_standby_cut_off_from_the_other_nodes(world: World) -> None:
    leader = leader_of(world)
    cut_off_from_nodes(world, next(each for each in world.of("node") if each is not leader))
    await world.wait(10 * SESSION_S)


async def nodes_that_reject_each_other(world: World) -> None:
    """Reject connections between nodes, like a firewall or wrong ports; ZooKeeper reaches all."""
    hosts = [each.host for each in world.of("node")]
    world.network.rejects |= {(one, other) for one in hosts for other in hosts if one != other}
    before = epoch(world)
    await world.wait_until(lambda: epoch(world) != before, 10 * SESSION_S)


async def busy_machines(world: World) -> None:
    """Nodes halt at random between callbacks, for up to 0.2 s and then up to 0.4 s."""
    for longest_s in (0.2, 0.4):
        for each in world.of("node"):
            assert each.party is not None
            each.party.stutter = (0.02, longest_s)
        await world.wait(10 * SESSION_S)


async def standbys_that_are_paused(world: World) -> None:
    leader = leader_of(world)
    for standby in [each for each in world.of("node") if each is not leader] * 5:
        pause(world, standby)
        await world.wait(world.rng.uniform(0.5, 3.0))
        resume(world, standby)
        await world.wait(1.0)


async def zookeeper_that_is_paused(world: World) -> None:
    for _ in range(10):
        world.zookeeper.stop()
        await world.wait(world.rng.uniform(0.5, SESSION_S / 2))
        world.zookeeper.go_on()
        await world.wait(2.0)


MOST_SUSPICIONS: dict[Happens, int] = {
    a_leader_cut_off_from_the_other_nodes: 2 * 11,
    a_standby_cut_off_from_the_other_nodes: 11,
    nodes_that_reject_each_other: 2 * 11,
    busy_machines: 4,
    standbys_that_are_paused: 0,
    zookeeper_that_is_paused: 2 * 10,
}
"""Most suspicions without a cause for an election: an answered one suppresses others for a session."""


def elections(seed: int, happens: Happens) -> tuple[int, int]:
    """Number of elections and suspicions while something happens."""
    counted: list[int] = []

    async def main(world: World) -> None:
        before, suspected = epoch(world), suspicions(world)
        await happens(world)
        counted[:] = [epoch(world) - before, len(suspected)]

    play(seed, main)
    return counted[0], counted[1]


@pytest.mark.parametrize("seed", deep_except([0], range(5)))
@pytest.mark.parametrize("happens", MOST_SUSPICIONS)
def test_leader_with_zookeeper_is_not_replaced_and_rarely_suspected(happens: Happens, seed: int) -> None:
    elected, suspected = elections(seed, happens)
    assert elected == 0
    assert suspected <= MOST_SUSPICIONS[happens]


def test_nodes_with_a_wrong_advertised_port_do_not_depose_each_other() -> None:
    counted: list[int] = []

    async def main(world: World) -> None:
        before = epoch(world)
        await world.wait(10 * SESSION_S)
        counted.append(epoch(world) - before)

    play(1, main, {"node-0": "http://n0:1", "node-1": "http://n1:1"})
    assert counted == [0]


def test_leader_without_a_term_route_leads_until_its_session_expires() -> None:
    """An earlier version, or an unreachable address."""

    async def main(world: World) -> None:
        before = epoch(world)
        pause(world, leader_of(world))
        await world.wait(SESSION_S / 2)
        assert epoch(world) == before
        assert await world.wait_until(lambda: epoch(world) > before, SESSION_S)

    with patch.object(TermHandlers, "operations", lambda _: []):
        play(1, main)


def test_repeatedly_pausing_nodes_depose_each_other_less_and_less() -> None:
    async def pause_leaders(world: World) -> None:
        for _ in range(200):
            leader = leader_of(world)
            pause(world, leader)
            await world.wait(1.5)
            resume(world, leader)
            await world.wait(1.0)

    assert elections(1, pause_leaders)[0] <= 8, "by then the timeout is longer than a pause"


GUARDS: dict[str, tuple[Callable[[], AbstractContextManager[object]], Happens]] = {
    "a leader takes a suspicion away": (
        lambda: patch.object(MirrorIntake, "_apply_election", _deaf(MirrorIntake._apply_election)),
        a_leader_cut_off_from_the_other_nodes,
    ),
    "time in which a standby did not run is not silence": (
        lambda: patch.object(failure_detector, "_MOST_TICKS_A_STEP", math.inf),
        standbys_that_are_paused,
    ),
    "only a store that answers at once says that a suspicion stands": (
        lambda: patch.object(failure_detector, "_PROMPT_LOOKS", 0),
        zookeeper_that_is_paused,
    ),
    "a refused connection is no more than silence": (
        lambda: patch("protocol.world._VirtualLife.is_over", lambda *_: True),
        nodes_that_reject_each_other,
    ),
    "timeout grows with the slowest answers": (
        lambda: patch.object(failure_detector, "_TIMES_SLOWEST", 0.0),
        busy_machines,
    ),
    "a suspicion that was answered is good for a session": (
        lambda: patch.object(failure_detector.FailureDetector, "_rest", _restless),
        a_leader_cut_off_from_the_other_nodes,
    ),
}


_ApplyElection = Callable[[MirrorIntake, Znode | None, Znode | None, Znode | None], None]


def _deaf(apply: _ApplyElection) -> _ApplyElection:
    def without_suspicions(intake: MirrorIntake, epoch: Znode | None, leader: Znode | None, _: Znode | None) -> None:
        apply(intake, epoch, leader, None)

    return without_suspicions


def _restless(self: failure_detector.FailureDetector, now_s: float) -> None:
    self.phase, self._rested_s = failure_detector.FailureDetectorPhase.RESTING, now_s


@pytest.mark.parametrize("name", GUARDS)
def test_removed_guard_of_the_failure_detector_is_detected(name: str) -> None:
    taken_out, happens = GUARDS[name]
    with taken_out():
        assert any(elections(seed, happens) > (0, MOST_SUSPICIONS[happens]) for seed in range(10))
