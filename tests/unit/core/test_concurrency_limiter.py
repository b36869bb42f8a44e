from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.concurrency_limiter import ConcurrencyLimiter

A, B, C, D, E = (BrokerId(f"{letter}:1") for letter in "abcde")


class Queue:
    """A limiter and the entries that it has granted."""

    def __init__(self, most: int, most_per_broker: int) -> None:
        self.limits = (most, most_per_broker)
        self.limiter = ConcurrencyLimiter[str](lambda: self.limits)
        self.begun: list[str] = []

    def add(self, name: str, *brokers: BrokerId) -> None:
        self.limiter.enqueue(name, frozenset(brokers))
        self.begun += self.limiter.grant()

    def end(self, name: str) -> None:
        self.limiter.release(name)
        self.begun += self.limiter.grant()


def test_global_limit_holds() -> None:
    queue = Queue(2, 9)
    for number in range(4):
        queue.add(str(number), BrokerId(f"{number}:1"))
    assert queue.begun == ["0", "1"]
    assert queue.limiter.in_use == 2
    queue.end("1")
    assert queue.begun == ["0", "1", "2"]


def test_busy_broker_blocks_only_entries_that_need_it() -> None:
    queue = Queue(9, 1)
    queue.add("from a", A, B)
    queue.add("from a too", A, C)
    queue.add("freed by b", B)
    queue.add("elsewhere", D, E)
    assert queue.begun == ["from a", "elsewhere"]
    queue.end("from a")
    assert queue.begun == ["from a", "elsewhere", "from a too", "freed by b"]


def test_entry_waiting_for_two_brokers_is_not_overtaken() -> None:
    queue = Queue(9, 1)
    queue.add("holds b", B)
    queue.add("a to b", A, B)
    queue.add("later from a", A, C)
    assert queue.begun == ["holds b"]
    queue.end("holds b")
    assert queue.begun == ["holds b", "a to b"]
    queue.end("a to b")
    assert queue.begun == ["holds b", "a to b", "later from a"]


def test_raised_limit_applies_at_the_next_grant() -> None:
    queue = Queue(1, 1)
    queue.add("1", A)
    queue.add("2", B)
    queue.limits = (3, 1)
    queue.add("3", C)
    assert queue.begun == ["1", "2", "3"]


def test_waiting_entries_are_granted_in_order_of_arrival() -> None:
    queue = Queue(1, 1)
    queue.add("elsewhere", C)
    queue.add("1", A)
    queue.add("2", B)
    queue.add("3", A)
    queue.end("elsewhere")
    queue.end("1")
    assert queue.begun == ["elsewhere", "1", "2"]


def test_raised_broker_limit_grants_several_entries_at_once() -> None:
    queue = Queue(1, 1)
    for number in range(4):
        queue.add(str(number), A, B)
    queue.limits = (3, 3)
    queue.add("elsewhere", C)
    assert queue.begun == ["0", "1", "2"]


def test_acquired_entries_exceed_the_limits_and_count_against_others() -> None:
    queue = Queue(2, 1)
    for number in range(3):
        queue.limiter.acquire(f"begun {number}", frozenset({A}))
    assert queue.limiter.in_use == 3
    queue.add("from a", A)
    queue.add("elsewhere", B)
    queue.end("begun 0")
    assert queue.begun == []
    queue.end("begun 1")
    assert queue.begun == ["elsewhere"]
    queue.end("begun 2")
    assert queue.begun == ["elsewhere", "from a"]


def test_entry_cannot_be_added_twice() -> None:
    queue = Queue(1, 1)
    queue.add("1", A)
    with pytest.raises(AssertionError):
        queue.add("1", B)
    queue.add("2", B)
    with pytest.raises(AssertionError):
        queue.add("2", C)


def test_entries_behind_a_removed_one_are_granted() -> None:
    queue = Queue(9, 1)
    queue.add("holds b", B)
    queue.add("a to b", A, B)
    queue.add("later from a", A, C)
    queue.end("a to b")
    assert queue.begun == ["holds b", "later from a"]


def test_release_of_an_unknown_entry_frees_nothing() -> None:
    queue = Queue(1, 1)
    queue.add("1", A)
    queue.add("2", A)
    queue.end("2")
    queue.end("2")
    queue.end("never there")
    queue.add("3", B)
    assert queue.begun == ["1"]
    assert queue.limiter.in_use == 1


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_limits_hold_and_order_is_kept(acts: list[tuple[bool, int]], most: int, most_per_broker: int) -> None:
    limiter, needed, in_progress = (
        ConcurrencyLimiter[int](lambda: (most, most_per_broker)),
        dict[int, frozenset[BrokerId]](),
        set[int](),
    )
    begun: list[int] = []
    left: set[int] = set()

    def give() -> None:
        for number in limiter.grant():
            begun.append(number)
            in_progress.add(number)
        busy = Counter(broker for number in in_progress for broker in needed[number])
        assert len(in_progress) == limiter.in_use <= most
        assert not busy or max(busy.values()) <= most_per_broker

    for comes, number in acts:
        if comes or not needed:
            brokers = frozenset({(A, B, C)[number % 3], (A, B, C)[number // 3]})
            needed[len(needed)] = brokers
            limiter.enqueue(len(needed) - 1, brokers)
        else:
            chosen = number % len(needed)
            limiter.release(chosen)
            in_progress.discard(chosen)
            left.add(chosen)
        give()
    while in_progress:
        limiter.release(in_progress.pop())
        give()
    assert set(begun) | left == set(needed), "everybody who did not leave before had a turn"
    for broker in (A, B, C):
        of_broker = [number for number in begun if broker in needed[number]]
        assert of_broker == sorted(of_broker), "first come, first served at each broker"
    assert (limiter.in_use, dict(limiter._busy), limiter._waiting, limiter._queues) == (0, {}, {}, {}), (
        "nothing is kept of them"
    )
