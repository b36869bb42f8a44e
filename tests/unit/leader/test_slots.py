"""Turns for unloads: limits in all and per broker, and who goes first."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.names import BrokerId
from loadmanager.errors import UnloadCancelledError
from loadmanager.leader.slots import Slots

A, B, C = BrokerId("a:1"), BrokerId("b:1"), BrokerId("c:1")


class Queue:
    """Unloads that begin when their turn comes and end when told."""

    def __init__(self, most: int, most_per_broker: int) -> None:
        self.limits = (most, most_per_broker)
        self.slots = Slots(lambda: self.limits)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, *brokers: BrokerId | None, batch: object = None) -> None:
        async def work() -> None:
            async with self.slots.turn(name, *brokers, batch=batch):
                self.begun.append(name)
                await self._ends[name].wait()

        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(work())
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def end_all(self) -> None:
        for event in self._ends.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_more_than_the_limit_of_all_are_under_way() -> None:
    queue = Queue(2, 9)
    for number in range(4):
        await queue.add(str(number), BrokerId(f"{number}:1"))
    assert queue.begun == ["0", "1"]
    await queue.end("1")
    assert queue.begun == ["0", "1", "2"]
    await queue.end_all()


async def test_a_busy_broker_holds_up_nobody_who_does_not_need_it() -> None:
    queue = Queue(9, 1)
    await queue.add("from a", A, B)
    await queue.add("from a too", A, C)
    await queue.add("freed by b", B, None)
    await queue.add("elsewhere", BrokerId("d:1"), BrokerId("e:1"))
    assert queue.begun == ["from a", "elsewhere"]
    await queue.end_all()
    assert sorted(queue.begun) == ["elsewhere", "freed by b", "from a", "from a too"]


async def test_nobody_overtakes_one_that_waits_for_two_brokers() -> None:
    queue = Queue(9, 1)
    await queue.add("holds b", B)
    await queue.add("a to b", A, B)
    await queue.add("later from a", A, C)
    assert queue.begun == ["holds b"]
    await queue.end("holds b")
    assert queue.begun == ["holds b", "a to b"]
    await queue.end("a to b")
    assert queue.begun == ["holds b", "a to b", "later from a"]
    await queue.end_all()


async def test_a_limit_that_was_raised_holds_from_the_next_who_comes_or_goes() -> None:
    queue = Queue(1, 1)
    await queue.add("1", A)
    await queue.add("2", B)
    queue.limits = (3, 1)
    await queue.add("3", C)
    assert sorted(queue.begun) == ["1", "2", "3"]
    await queue.end_all()


async def test_one_that_waits_can_be_cancelled_and_one_under_way_cannot() -> None:
    queue = Queue(1, 1)
    await queue.add("1", A)
    await queue.add("2", A)
    await queue.add("3", A)
    assert queue.slots.cancel("2")
    assert not queue.slots.cancel("2"), "only once"
    assert not queue.slots.cancel("1")
    with pytest.raises(UnloadCancelledError, match="2: cancelled before it began"):
        await queue.tasks["2"]
    await queue.end("1")
    assert queue.begun == ["1", "3"]
    await queue.end_all()


@pytest.mark.parametrize("whole_batch", [False, True])
async def test_those_who_waited_behind_one_that_is_cancelled_go_at_once(whole_batch: bool) -> None:  # noqa: FBT001 - a case
    queue = Queue(9, 1)
    await queue.add("holds b", B)
    await queue.add("a to b", A, B, batch=queue)
    await queue.add("later from a", A, C)
    assert queue.begun == ["holds b"]
    if whole_batch:
        queue.slots.cancel_batch(queue)
    else:
        queue.slots.cancel("a to b")
    await settle()
    assert queue.begun == ["holds b", "later from a"]
    await queue.end_all()


async def test_a_caller_that_goes_away_leaves_its_place_to_the_next() -> None:
    queue = Queue(1, 1)
    await queue.add("1", A)
    await queue.add("2", A)
    await queue.add("3", A)
    queue.tasks["2"].cancel()
    await queue.end("1")
    assert queue.begun == ["1", "3"]
    await queue.end_all()


async def test_a_caller_that_goes_away_as_its_turn_comes_gives_it_back() -> None:
    queue = Queue(1, 1)
    async with queue.slots.turn("1", A):
        await queue.add("2", A)
        await queue.add("3", A)
    queue.tasks["2"].cancel()  # its turn has come, and it has not woken up yet
    await settle()
    assert queue.begun == ["3"]
    await queue.end_all()


async def test_one_that_is_cancelled_as_its_caller_goes_away_gives_back_nothing_that_it_did_not_have() -> None:
    queue = Queue(1, 1)
    await queue.add("1", A)
    await queue.add("2", A)
    assert queue.slots.cancel("2")
    queue.tasks["2"].cancel()  # it has not woken up yet
    await settle()
    await queue.add("3", B)
    assert queue.begun == ["1"]
    await queue.end("1")
    await queue.add("4", C)
    assert queue.begun == ["1", "3"]
    await queue.end_all()


_ACTS = st.lists(st.sampled_from(["cancel", "go away", "end"]), max_size=2)


@given(st.lists(st.tuples(_ACTS, st.integers(0, 8)), max_size=40), st.integers(1, 3), st.integers(1, 2))
def test_limits_hold_whoever_cancels_and_whoever_goes_away(
    turns: list[tuple[list[str], int]], most: int, most_per_broker: int
) -> None:
    """In each turn of the event loop one more comes, or something happens to one of them, or two things at once."""

    async def run() -> None:
        slots, under_way, tasks = Slots(lambda: (most, most_per_broker)), Counter[object](), list[asyncio.Task[None]]()
        ends: list[asyncio.Event] = []

        async def work(number: int, brokers: set[BrokerId]) -> None:
            async with slots.turn(str(number), *brokers):
                under_way.update(["all", *brokers])
                assert under_way["all"] <= most
                assert all(under_way[broker] <= most_per_broker for broker in brokers)
                try:
                    await ends[number].wait()
                finally:
                    under_way.subtract(["all", *brokers])

        for acts, number in turns:
            if not acts or not tasks:
                ends.append(asyncio.Event())
                tasks.append(asyncio.create_task(work(len(tasks), {(A, B, C)[number % 3], (A, B, C)[number // 3]})))
            chosen = number % len(tasks)
            for act in acts:
                if act == "cancel":
                    slots.cancel(str(chosen))
                elif act == "go away":
                    tasks[chosen].cancel()
                else:
                    ends[chosen].set()
            await settle()
        for end in ends:
            end.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in outcomes} <= {type(None), UnloadCancelledError, asyncio.CancelledError}, outcomes
        assert (slots._taken, slots._busy, slots._queues) == (0, Counter(), {})

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C, None]), st.sampled_from([A, B, C, None])), max_size=30),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_limits_hold_and_everybody_gets_a_turn(
    wanted: list[tuple[BrokerId | None, BrokerId | None]], most: int, most_per_broker: int
) -> None:
    async def run() -> None:
        slots, under_way, begun = Slots(lambda: (most, most_per_broker)), Counter[object](), []

        async def work(number: int, brokers: tuple[BrokerId | None, ...]) -> None:
            async with slots.turn(str(number), *brokers):
                needed = set(brokers) - {None}
                under_way.update(["all", *needed])
                begun.append(number)
                assert under_way["all"] <= most
                assert all(under_way[broker] <= most_per_broker for broker in needed)
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                under_way.subtract(["all", *needed])

        await asyncio.gather(*(work(*each) for each in enumerate(wanted)))
        assert sorted(begun) == list(range(len(wanted)))
        for broker in (A, B, C):
            of_broker = [number for number in begun if broker in wanted[number]]
            assert of_broker == sorted(of_broker), "first come, first served at each broker"

    asyncio.run(run())
