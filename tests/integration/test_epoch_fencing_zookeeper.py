"""The contest of `support.fencing` on a real ZooKeeper: explicit sequences, and a few that Hypothesis makes up."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fencing import Candidate, Contest
from support.stores import ZooKeeperWorld

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

Step = tuple[str, int]
A, B = 0, 1


async def play(server: EmbeddedZooKeeper, steps: list[Step], *, is_fenced: bool = True) -> Contest:
    world = ZooKeeperWorld(server, f"/fencing-{uuid.uuid4().hex}")
    try:
        stores = [await world.connect() for _ in range(2)]
        candidates = [Candidate(f"node-{i}", store, is_fenced=is_fenced) for i, store in enumerate(stores)]
        contest = Contest(await world.connect(), candidates)
        await contest.prepare()
        for verb, index in steps:
            if verb == "look":
                await contest.look(index)
            elif verb == "campaign":
                await contest.campaign(index)
            elif verb == "write":
                await contest.write(index)
            elif verb == "reconnect":
                await world.reconnect(stores[index])
                await contest.check()
            else:
                await world.expire(stores[index])
                await contest.check()
    finally:
        await world.close()
    return contest


DEPOSED: list[Step] = [
    ("look", A), ("campaign", A), ("write", A), ("look", B), ("campaign", B), ("write", A), ("write", B), ("write", A),
]  # fmt: skip


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(DEPOSED, id="the deposed leader writes on"),
        pytest.param([*DEPOSED[:2], ("expire", A), *DEPOSED[3:]], id="deposed after its session expired"),
        pytest.param([*DEPOSED[:2], ("expire", A), ("write", A), *DEPOSED[3:]], id="it writes on its new session"),
        pytest.param([*DEPOSED[:2], ("reconnect", A), *DEPOSED[2:]], id="after a reconnection"),
    ],
)
async def test_a_leader_that_was_deposed_writes_nothing(zookeeper: EmbeddedZooKeeper, steps: list[Step]) -> None:
    contest = await play(zookeeper, steps)
    assert [candidate.epoch for candidate in contest.candidates] == [1, 2]


async def test_of_two_that_saw_the_same_epoch_one_wins(zookeeper: EmbeddedZooKeeper) -> None:
    steps: list[Step] = [("look", A), ("look", B), ("campaign", B), ("campaign", A), ("write", A), ("write", B)]
    contest = await play(zookeeper, steps)
    assert [candidate.epoch for candidate in contest.candidates] == [None, 1]


async def test_unfenced_write_of_a_deposed_leader_is_caught(zookeeper: EmbeddedZooKeeper) -> None:
    with pytest.raises(AssertionError, match="while 2 was current"):
        await play(zookeeper, DEPOSED, is_fenced=False)


step = st.tuples(
    st.sampled_from(["look", "campaign", "campaign", "write", "write", "write", "reconnect", "expire"]),
    st.sampled_from([A, B]),
)


@settings(
    max_examples=settings().max_examples // 4,  # each takes most of a second
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(step, min_size=4, max_size=25))
def test_whatever_the_sequence_no_deposed_leader_writes(zookeeper: EmbeddedZooKeeper, steps: list[Step]) -> None:
    asyncio.run(play(zookeeper, [("look", A), ("campaign", A), ("look", B), *steps]))
