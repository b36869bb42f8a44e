from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from support.clock import ManualClock
from support.fencing import Candidate, Contest

from loadmanager.store.memory_store import Link, MemoryCluster, MemoryStore

CANDIDATES = 3
SESSION_TIMEOUT_S = 10.0

candidates = st.integers(0, CANDIDATES - 1)


class ContendingLeaders(RuleBasedStateMachine):
    """Steps of the contest in any order, on the store in memory."""

    is_fenced = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock)
        self.runner.run(self._set_up())

    async def _set_up(self) -> None:
        referee = MemoryStore(self.cluster, session_timeout_s=SESSION_TIMEOUT_S)
        self.stores = [MemoryStore(self.cluster, session_timeout_s=SESSION_TIMEOUT_S) for _ in range(CANDIDATES)]
        for store in (referee, *self.stores):
            await store.start()
        contenders = [
            Candidate(f"node-{number}", store, is_fenced=self.is_fenced) for number, store in enumerate(self.stores)
        ]
        self.contest = Contest(referee, contenders)
        await self.contest.prepare()

    def teardown(self) -> None:
        self.runner.close()

    @rule(index=candidates)
    def look(self, index: int) -> None:
        self.runner.run(self.contest.look(index))

    @rule(index=candidates)
    def campaign(self, index: int) -> None:
        self.runner.run(self.contest.campaign(index))

    @rule(index=candidates)
    def look_and_campaign(self, index: int) -> None:
        self.runner.run(self.contest.look(index))
        self.runner.run(self.contest.campaign(index))

    @rule(index=candidates)
    def write(self, index: int) -> None:
        self.runner.run(self.contest.write(index))

    @rule(index=candidates, noticed=st.booleans())
    def partition(self, index: int, noticed: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        self._on_loop(lambda: self.cluster.partition(self.stores[index], noticed=noticed))

    @rule(index=candidates)
    def lose_the_next_answer(self, index: int) -> None:
        if self.stores[index].link is Link.UP:
            self._on_loop(lambda: self.cluster.lose_answer(self.stores[index]))

    @rule(index=candidates)
    def heal(self, index: int) -> None:
        self._on_loop(lambda: self.cluster.heal(self.stores[index]))

    @rule(index=candidates)
    def expire(self, index: int) -> None:
        self._on_loop(lambda: self.cluster.expire(self.stores[index]))

    @rule(seconds=st.sampled_from([1.0, SESSION_TIMEOUT_S * 0.7, SESSION_TIMEOUT_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._on_loop(self.cluster.tick)

    def _on_loop(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()
            await self.contest.check()

        work: Coroutine[None, None, None] = act()
        self.runner.run(work)


TestContendingLeaders = ContendingLeaders.TestCase
TestContendingLeaders.settings = settings(stateful_step_count=40)


def test_without_the_check_of_the_epoch_a_deposed_leader_is_caught_writing() -> None:
    class WithoutTheFence(ContendingLeaders):
        is_fenced = False

    leaders = WithoutTheFence()
    leaders.look_and_campaign(index=0)
    leaders.look_and_campaign(index=1)
    with pytest.raises(AssertionError, match="a record written with epoch 1 while 2 was current"):
        leaders.write(index=0)
    leaders.teardown()
