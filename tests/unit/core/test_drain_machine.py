from __future__ import annotations

from dataclasses import replace

import pytest
from support.drains import MOVED, PROCESS, STALE, STAYS, A, AnyOrder, B, C, DrainsHarness, away, drained, home, plan

from loadmanager.core.domain.controls import Controls, DrainOrder, ReturnOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.drain_machine import (
    PAUSE_S,
    REST_S,
    BeginMove,
    BringHome,
    Drain,
    DrainPlanned,
    EndDrain,
    EndReturn,
    GiveAway,
    MoveEnded,
    TriedToEnd,
)
from loadmanager.core.protocol.move_machine import Cancelled, Failed, Kept, Outcome, WithdrawMove
from loadmanager.core.protocol.state_machine import Signal


@pytest.fixture
def leader() -> DrainsHarness:
    return DrainsHarness()


def test_no_scan_without_a_drain(leader: DrainsHarness) -> None:
    assert leader.drains.wake_s is None
    assert leader.look() == []
    leader.controls = drained(A)
    leader.step(Signal.CHANGED)
    assert leader.drains.wake_s == leader.now_s, "at once"


def test_drain_plans_and_moves_its_bundles(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]
    assert leader.drains.wake_s is None, "not before it is decided"
    assert leader.look() == [], "one decision at a time"
    steps = away("t/1"), away("t/2")
    decided = plan(*steps)
    begun = [BeginMove(step, [verdict]) for step, verdict in zip(steps, decided.verdicts, strict=True)]
    assert leader.step(DrainPlanned(decided)) == begun
    assert len(leader.drains._moving) == 2
    assert leader.drains.wake_s == leader.now_s, "a second after the look"
    assert leader.look(0.0) == [GiveAway((A.broker,), 2, frozenset({"t/1", "t/2"}))]


def test_next_batch_waits_until_half_of_the_window_is_free(leader: DrainsHarness) -> None:
    leader.draining("t/1", "t/2", "t/3", "t/4")
    assert leader.look() == []
    leader.step(MoveEnded("t/4", MOVED))
    assert leader.drains.wake_s == leader.now_s + PAUSE_S
    leader.step(MoveEnded("t/1", MOVED))
    assert leader.drains.wake_s == leader.now_s, "half of it is free"
    assert leader.look(0.0) == [GiveAway((A.broker,), 2, frozenset({"t/2", "t/3"}))]


def test_surplus_steps_of_a_plan_do_not_begin(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    leader.look()
    assert len(leader.step(DrainPlanned(plan(*(away(f"t/{number}") for number in range(9)))))) == 4


def test_drain_counts_moves_and_its_rate(leader: DrainsHarness) -> None:
    drain = leader.draining("t/1", "t/2", "t/3")
    assert (leader.drains.state(drain, 3), drain.rate_per_s(leader.now_s)) == ("draining", 0.0)
    leader.now_s += 2.0
    leader.step(MoveEnded("t/1", MOVED))
    leader.step(MoveEnded("t/2", MOVED))
    assert drain.rate_per_s(leader.now_s) == 1.0
    assert leader.drains.state(drain, 0) == "draining", "its last move is not over"
    leader.step(MoveEnded("t/3", MOVED))
    assert (drain.moved, drain.failed, leader.drains.state(drain, 0)) == (3, 0, "done")
    assert drain.rate_per_s(leader.now_s + 61.0) == 0.0, "of late"


def test_rate_covers_the_last_minute_and_at_most_1000_bundles() -> None:
    drain = Drain(A, 50.0, 100.0)
    drain.move_ended(100.0625, has_left=True)
    assert drain.rate_per_s(100.0625) == pytest.approx(10.0), "a shorter time counts as a tenth of a second"
    assert drain.rate_per_s(160.0) == pytest.approx(1 / 60)
    assert drain.rate_per_s(160.0625) == 0.0, "a minute ago is over"
    for _ in range(1_001):
        drain.move_ended(200.0, has_left=True)
    assert drain.moved == 1_002
    assert drain.rate_per_s(210.0) == pytest.approx(1_000 / 60)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Kept(Ownership(), OwnershipReason.UNLOAD_FAILED, "503"), "503"),
        (Cancelled("cancelled"), "cancelled"),
        (Failed(RuntimeError("lost")), "lost"),
    ],
)
def test_bundle_that_stays_is_retried_later(leader: DrainsHarness, outcome: Outcome, why: str) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", outcome))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (0, 1, {"t/1": why})
    assert leader.drains.state(drain, 1) == "blocked"
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset({"t/1"}))]
    leader.step(DrainPlanned(plan()))
    assert leader.look(REST_S) == [GiveAway((A.broker,), 4, frozenset())]
    assert leader.drains.blocked(drain) == {"t/1": why}, "for all that is known"
    leader.step(DrainPlanned(plan(away("t/1"))))
    leader.step(MoveEnded("t/1", MOVED))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (1, 1, {})


def test_bundle_without_another_broker_is_paused_with_its_reason(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    leader.owners = {"t/1": A, "t/2": C}
    leader.look()
    leader.step(DrainPlanned(plan(staying=["t/1", "t/2", "t/gone"])))
    drain = leader.drains.find(A.broker)
    assert drain is not None
    assert leader.drains.blocked(drain) == {"t/1": Verdict("t/1", STAYS, acted=False).sentence()}
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset({"t/1", "t/2", "t/gone"}))]


def test_moved_bundle_is_no_longer_paused(leader: DrainsHarness) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", Cancelled("cancelled")))
    leader.look()
    leader.step(DrainPlanned(plan(away("t/1"))))
    leader.step(MoveEnded("t/1", MOVED))
    assert leader.drains.blocked(drain) == {}
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]


def test_ended_pause_is_dropped(leader: DrainsHarness) -> None:
    drain = leader.draining()
    leader.owners["t/1"] = A
    leader.look()
    leader.step(DrainPlanned(plan(staying=["t/1"])))
    assert leader.look(REST_S) == [GiveAway((A.broker,), 4, frozenset())]
    leader.step(DrainPlanned(plan()))
    assert leader.drains.blocked(drain) == {}


def test_a_stale_step_is_planned_again_but_not_at_once(leader: DrainsHarness) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", STALE))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (0, 0, {})
    assert leader.drains.wake_s == leader.now_s + PAUSE_S
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]


def test_cancelled_drain_withdraws_its_moves_and_drops_pauses(leader: DrainsHarness) -> None:
    drain = leader.draining("t/1", "t/2")
    leader.step(MoveEnded("t/1", Cancelled("cancelled")))
    leader.controls = Controls()
    assert leader.drains.wake_s is not None
    assert leader.look() == [WithdrawMove("t/2")]
    assert leader.drains.find(A.broker) is None
    leader.step(MoveEnded("t/2", Cancelled("cancelled")))
    assert drain.failed == 2
    leader.controls = drained(A, since_s=60.0)
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]
    anew = leader.drains.find(A.broker)
    assert anew is not None
    assert (anew.since_s, anew.failed) == (60.0, 0)


def test_drain_lifted_during_its_decision_begins_no_move(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    leader.look()
    leader.controls = Controls()
    assert leader.step(DrainPlanned(plan(away("t/1")))) == []


def test_lifted_drain_does_not_affect_another_drain(leader: DrainsHarness) -> None:
    leader.draining("t/1")
    leader.controls = drained(A, B)
    (asked,) = leader.look()
    assert asked == GiveAway((A.broker, B.broker), 3, frozenset({"t/1"}))
    leader.controls = drained(B)
    begun = leader.step(DrainPlanned(plan(away("t/2"), away("t/3", B))))
    assert [each.step.bundle for each in begun if isinstance(each, BeginMove)] == ["t/3"]
    assert [each for each in leader.look() if isinstance(each, WithdrawMove)] == [WithdrawMove("t/1")]


def test_drain_begins_in_the_scan_that_ends_another(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    leader.processes[A.broker] += 1
    assert leader.look() == [EndDrain(A.broker, 50.0)]
    leader.controls = drained(A, B)
    assert leader.look() == [GiveAway((B.broker,), 4, frozenset())]


def test_drain_renewed_between_two_scans_is_a_new_drain(leader: DrainsHarness) -> None:
    drain = leader.draining("t/1")
    leader.controls = drained(A, since_s=60.0)
    assert leader.look() == [WithdrawMove("t/1"), GiveAway((A.broker,), 3, frozenset({"t/1"}))]
    assert leader.drains.find(A.broker) is not drain


def test_drain_ends_when_another_process_of_the_broker_registers(leader: DrainsHarness) -> None:
    leader.draining("t/1", broker=B)
    leader.controls = drained(A, B)
    leader.registrations[B.broker] = B._replace(incarnation=9)
    leader.processes[B.broker] += 1
    end = EndDrain(B.broker, 50.0)
    asked = GiveAway((A.broker,), 3, frozenset({"t/1"}))
    assert leader.look() == [end, asked], "nothing more of it is given away"
    leader.step(DrainPlanned(None))
    assert leader.look() == [asked], "nor is its end tried twice at once"
    leader.step(DrainPlanned(None))
    leader.step(TriedToEnd(B.broker))
    assert leader.look() == [end, asked], "but again if it failed"
    leader.step(DrainPlanned(None))
    leader.step(TriedToEnd(B.broker))
    leader.controls = drained(A)
    assert leader.look() == [WithdrawMove("t/1"), asked]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_lost_session_ends_no_drain(leader: DrainsHarness, is_new: bool) -> None:  # noqa: FBT001 - a case
    """Covers a leader elected while the broker is away, or after it is back."""
    drain = None if is_new else leader.draining("t/1")
    leader.controls = drained(A)
    leader.registrations.pop(A.broker)
    assert leader.look() == [], "there is nothing to give away meanwhile"
    leader.registrations[A.broker] = A._replace(incarnation=9)
    (asked,) = leader.look()
    assert isinstance(asked, GiveAway)
    assert asked.brokers == (A.broker,)
    found = leader.drains.find(A.broker)
    assert found is not None
    assert found.registration.incarnation == 9
    assert is_new or found is drain, "what was counted goes on"


@pytest.mark.parametrize(("ordered", "seen"), [(0, PROCESS), (PROCESS, 0)])
def test_unknown_process_does_not_end_a_drain(leader: DrainsHarness, ordered: int, seen: int) -> None:
    leader.controls = Controls(draining={A.broker: DrainOrder(50.0, ordered)})
    leader.processes[A.broker] = seen
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]


def test_steps_for_a_former_registration_do_not_begin(leader: DrainsHarness) -> None:
    leader.controls = drained(A)
    leader.look()
    back = A._replace(incarnation=9)
    assert leader.step(DrainPlanned(plan(away("t/1", back), away("t/2", C)))) == []


def test_pinned_bundles_are_brought_home_after_drains(leader: DrainsHarness) -> None:
    leader.controls = replace(drained(A), pinned={"t/1": A.broker, "t/2": C.broker})
    leader.owners = {"t/1": A, "t/2": B}
    leader.look()
    (begun, asked) = leader.step(DrainPlanned(plan(away("t/3"))))
    assert isinstance(begun, BeginMove)
    assert asked == BringHome(4, frozenset({"t/3"}))
    (begun,) = leader.step(DrainPlanned(plan(home("t/2"))))
    assert begun == BeginMove(home("t/2"), []), "nobody has to say why"
    drain = leader.drains.find(A.broker)
    assert drain is not None
    leader.step(MoveEnded("t/2", MOVED))
    assert drain.moved == 0


def test_failed_drain_decision_does_not_stop_pins(leader: DrainsHarness) -> None:
    leader.controls = replace(drained(A), pinned={"t/2": C.broker})
    leader.owners = {"t/2": B}
    leader.look()
    assert leader.step(DrainPlanned(None)) == [BringHome(4, frozenset())]
    assert leader.step(DrainPlanned(None)) == []
    assert leader.drains.wake_s == leader.now_s + PAUSE_S


def test_bundles_return_after_a_drain_until_all_are_home(leader: DrainsHarness) -> None:
    returning = {A.broker: ReturnOrder(50.0, ("t/1", "t/2", "t/gone"))}
    leader.controls, leader.owners = replace(drained(A), returning=returning), {"t/1": B, "t/2": A}
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())], "not while it is drained"
    leader.step(DrainPlanned(plan()))
    leader.controls = replace(leader.controls, draining={})
    home = EndReturn(A.broker, frozenset({"t/2", "t/gone"}))
    assert leader.look() == [home, BringHome(4, frozenset())]
    leader.step(DrainPlanned(plan(staying=["t/1"])))
    assert leader.drains.blocked(None) == {"t/1": Verdict("t/1", STAYS, acted=False).sentence()}
    assert leader.look() == [], "its end is being written, and t/1 rests"
    leader.controls = leader.controls.without_returned(A.broker, home.bundles)
    leader.step(TriedToEnd(A.broker))
    del leader.registrations[A.broker]
    assert leader.look(REST_S) == [], "it has nowhere to go"
    leader.registrations[A.broker], leader.owners["t/1"] = A, A
    assert leader.look() == [EndReturn(A.broker, frozenset({"t/1"}))]


@pytest.mark.parametrize("pinned", [{"t/1": A.broker}, {"t/free": A.broker}, {"t/1": BrokerId("gone:1")}])
def test_pinned_bundle_stays_at_home_or_without_a_home(leader: DrainsHarness, pinned: dict[str, BrokerId]) -> None:
    leader.controls = Controls(pinned=pinned)
    leader.owners = {"t/1": A}
    assert leader.look() == []
    assert leader.drains.wake_s == leader.now_s + PAUSE_S, "it is looked at again"


def test_stuck_pinned_bundle_is_paused_and_blocks_no_drain(leader: DrainsHarness) -> None:
    leader.controls = replace(drained(A), pinned={"t/1": B.broker})
    leader.owners = {"t/1": A}
    leader.look()
    assert leader.step(DrainPlanned(plan())) == [BringHome(4, frozenset())]
    leader.step(DrainPlanned(plan(staying=["t/1"])))
    drain = leader.drains.find(A.broker)
    assert drain is not None
    assert leader.drains.blocked(drain) == {}
    leader.controls = replace(leader.controls, draining={})
    assert leader.look() == []
    assert leader.look(REST_S) == [BringHome(4, frozenset())]


TestAnyOrder = AnyOrder.TestCase
