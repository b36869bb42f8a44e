from __future__ import annotations

from loadmanager.demo.lease import Lease
from loadmanager.wire.http import LeaseAnswer


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def an_answer(valid_for_ms: int, incarnation: int = 7) -> LeaseAnswer:
    return LeaseAnswer(broker_id="b:1", incarnation=incarnation, valid_for_ms=valid_for_ms)


def test_there_is_no_lease_before_the_first_answer() -> None:
    assert not Lease(Clock()).is_valid()


def test_a_lease_is_valid_from_the_moment_of_asking_and_no_longer_than_the_answer_says() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.renew(99.0, an_answer(3_000))
    clock.now_s = 101.999
    assert lease.is_valid()
    clock.now_s = 102.0
    assert not lease.is_valid()


def test_an_answer_that_took_longer_than_it_is_worth_gives_no_lease() -> None:
    lease = Lease(Clock())
    lease.renew(90.0, an_answer(3_000))
    assert not lease.is_valid()


def test_a_newer_answer_may_shorten_the_lease() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.renew(100.0, an_answer(3_000))
    lease.renew(100.5, an_answer(200))
    clock.now_s = 100.8
    assert not lease.is_valid()


def test_a_lease_ends_when_the_agent_says_so_and_keeps_the_moment() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.renew(100.0, an_answer(3_000))
    clock.now_s = 101.0
    lease.end()
    assert not lease.is_valid()
    assert lease.valid_until_s == 101.0
    clock.now_s = 105.0
    lease.end()
    assert lease.valid_until_s == 101.0
