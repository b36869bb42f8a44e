"""Lookup clients: how long a client of a node without ZooKeeper uses stale owners."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
from protocol.schedules import begin, calm, live
from protocol.world import BROKER_PORT, NAMESPACE, SESSION_S, Process, Shape, World

from loadmanager.store.store_session import LEASE_RATIO

_SETTLED_S = 30.0
_STALE_S = LEASE_RATIO * SESSION_S + 3.0
"""The node checks twice that its session's lease has lapsed; then the client turns to another node."""
_CUT_S = 20.0


def _followed(world: World) -> Process:
    """Return the node whose stream the client reads."""
    (stream,) = world.network.streams
    return next(process for process in world.of("node") if process.party is stream.server)


def _kept_owner(world: World) -> str | None:
    owner = world.owners["client-0"].resolve(world.topics[0])
    return None if owner is None else owner.broker_id


async def _move(world: World, node: Process, destination: str) -> None:
    state = world.records.namespaces[NAMESPACE]
    bundle = state.bundles.range_at(state.bundles.index_of_topic(world.topics[0]))
    done: list[int] = []
    url = f"http://{node.host}:8080/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={destination}"
    world.ask("PUT", url, then=lambda status, _: done.append(status))
    assert await world.wait_until(lambda: bool(done), _SETTLED_S)
    assert done == [204]


def _stale_s(seed: int) -> float:
    """Return the seconds for which the client uses the former owner of a moved topic, at most `_CUT_S`."""
    stale_s: list[float] = []

    async def main(world: World) -> None:
        calm(world)
        await begin(world)
        assert await world.wait_until(lambda: "client-0" in world.owners and _kept_owner(world) is not None, _SETTLED_S)
        followed, before = _followed(world), _kept_owner(world)
        other = next(process for process in world.of("node") if process is not followed)
        world.zookeeper.cut(followed.host)
        assert await world.wait_until(lambda: other.node is not None and other.node.is_leading, _SETTLED_S)
        destination = next(f"b{n}:{BROKER_PORT}" for n in range(2) if f"b{n}:{BROKER_PORT}" != before)
        await _move(world, other, destination)
        moved_s = world.loop.now_s
        await world.wait_until(lambda: _kept_owner(world) == destination, _CUT_S)
        stale_s.append(world.loop.now_s - moved_s)

    world = live(seed, Shape(nodes=2, brokers=2, bundles=2, topics=2, clients=1), main)
    assert not world.violations
    return stale_s[0]


@pytest.mark.parametrize("seed", range(1, 4))
def test_client_leaves_a_node_that_is_cut_off_from_zookeeper(seed: int) -> None:
    assert _stale_s(seed) < _STALE_S


def test_stale_node_without_the_guard_is_detected() -> None:
    with patch("loadmanager.http.watch_hub._STALE_LOOKS", math.inf):
        assert _stale_s(1) >= _CUT_S
