from __future__ import annotations

from support.builders import broker, bundle

from loadmanager.core.plan import Reason, Unload
from loadmanager.sim.rules import WorldRules
from loadmanager.sim.turns import Turn, Turns


def _turn(number: int, source: str, destination: str | None) -> Turn:
    target = None if destination is None else broker(destination)
    return Turn(Unload(bundle(number), broker(source), target, Reason.DRAIN), lambda: None)


def test_so_many_at_a_time_and_the_first_to_come_is_the_first_to_go() -> None:
    turns = Turns(WorldRules(max_concurrent_unloads=2, max_concurrent_unloads_per_broker=9))
    waiting = [_turn(number, "a", "b") for number in range(3)]
    for turn in waiting:
        turns.wait(turn)
    assert [turns.take_next() for _ in range(3)] == [waiting[0], waiting[1], None]
    turns.end(waiting[1])
    assert turns.take_next() is waiting[2]
    assert turns.take_next() is None


def test_who_waits_for_a_busy_broker_holds_up_nobody_who_does_not_need_it_and_is_not_overtaken() -> None:
    turns = Turns(WorldRules(max_concurrent_unloads_per_broker=1))
    first, waits, elsewhere, behind = _turn(0, "a", "b"), _turn(1, "b", "c"), _turn(2, "d", None), _turn(3, "c", "e")
    for turn in (first, waits, elsewhere, behind):
        turns.wait(turn)
    assert [turns.take_next() for _ in range(3)] == [first, elsewhere, None]
    turns.end(first)
    assert turns.take_next() is waits
    turns.end(waits)
    assert turns.take_next() is behind
