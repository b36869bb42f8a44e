"""Moves with their records and a driver that acts only on request, or a random sequence of events."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import IllegalTransitionError, Ownership, Registration, Stamp, assign
from loadmanager.core.protocol.move_machine import (
    Action,
    AskOwner,
    Cancel,
    Cancelled,
    CancelWaiting,
    Commit,
    Committed,
    Ended,
    Event,
    Failed,
    Kept,
    Move,
    Moved,
    MoveMachine,
    NotCommitted,
    OwnerAnswered,
    Phase,
    Prepare,
    Prepared,
    Unanswered,
    Want,
)
from loadmanager.core.protocol.state_machine import Signal

A, B, C = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("abc", 1))
STAMP = Stamp(7, 1_000, "a test")
DEADLINE_S = 5.0
PREPARE_S = 2.0
LOST = RuntimeError("no answer")


@dataclass(slots=True)
class MovesHarness:
    """Moves and their records. The brokers in `preparing` are given time to prepare."""

    limits: tuple[int, int] = (16, 8)
    registered: set[Registration] = field(default_factory=lambda: {A, B, C})
    preparing: set[Registration] = field(default_factory=set)
    records: dict[str, Ownership] = field(default_factory=dict)
    now_s: float = 100.0
    to_do: list[Action] = field(default_factory=list)
    moves: MoveMachine = field(init=False)

    def __post_init__(self) -> None:
        self.moves = MoveMachine(
            lambda: self.limits,
            lambda: DEADLINE_S,
            lambda each: each in self.registered,
            lambda each: PREPARE_S if each in self.preparing else 0.0,
        )

    def owned(self, bundle: str, owner: Registration = A) -> None:
        self.records[bundle] = assign(Ownership(), owner, STAMP)

    def want(self, bundle: str, destination: Registration | None = B, **more: object) -> Move:
        if bundle not in self.records:
            self.owned(bundle)
        move = Move(bundle, self.records[bundle].owner, destination, "admin_unload", **more)  # type: ignore[arg-type]
        self.step(Want(move))
        return move

    def step(self, event: Event) -> list[Action]:
        """Apply the event; returns the new actions, which also become pending."""
        told = self.moves.step(event, self.now_s)
        self.to_do += told
        return told

    def take(self) -> Action:
        """Remove and return the only pending action."""
        assert len(self.to_do) == 1, self.to_do
        return self.to_do.pop()

    def commit(self) -> Action | None:
        """Do the write that is to be done; what is to be done then, None if nothing is."""
        action = self.take()
        assert isinstance(action, Commit), action
        bundle = action.move.bundle
        event: Event
        try:
            self.records[bundle] = action.transition(self.records[bundle], STAMP)
        except IllegalTransitionError as error:
            event = NotCommitted(action.move, error)
        else:
            event = Committed(action.move, self.records[bundle])
        self.step(event)
        return self.to_do[0] if self.to_do else None

    def asked(self, bundle: str = "t/ns/b") -> Move:
        """A move whose owner has just been asked."""
        move = self.want(bundle)
        assert isinstance(self.commit(), AskOwner)
        self.to_do.clear()
        return move

    def ended(self) -> Moved | Kept | Cancelled | Failed:
        action = self.take()
        assert isinstance(action, Ended), action
        assert action.move.phase is Phase.ENDED
        return action.outcome


@dataclass(slots=True)
class Whatever:
    """A driver that does what it is told in any order, writes that fail or are not answered, owners that go, and
    operators that cancel. `wanted` are all moves, `outcomes` those that have ended.
    """

    leader: MovesHarness
    data: st.DataObject
    wanted: list[Move] = field(default_factory=list)
    outcomes: dict[Move, object] = field(default_factory=dict)

    def happens(self) -> None:
        """Apply one drawn event."""
        leader, draw = self.leader, self.data.draw
        leader.now_s += draw(st.sampled_from([0.0, 0.1, 1.0]))
        match draw(st.sampled_from(["want", "do", "do", "do", "go", "cancel", "cancel waiting", "time"])):
            case "want":
                destination = draw(st.sampled_from([B, C, None]))
                self.wanted.append(leader.want(f"t/ns/{len(self.wanted)}", destination))
            case "do" if leader.to_do:
                self._do()
            case "go" if len(leader.registered) > 1:
                leader.registered.discard(draw(st.sampled_from(sorted(leader.registered, key=str))))
                leader.step(Signal.MEMBERSHIP)
            case "cancel" if self.wanted:
                leader.step(Cancel(draw(st.sampled_from(self.wanted))))
            case "cancel waiting":
                leader.step(CancelWaiting(lambda _: True, "all of them"))
            case _:
                leader.step(Signal.TIME)

    def ends(self) -> None:
        """Carry out all actions and advance time until none is left."""
        leader = self.leader
        for _ in range(400):
            if leader.to_do:
                self._do()
            elif leader.moves.wake_s is not None:
                leader.now_s = leader.moves.wake_s
                leader.step(Signal.TIME)
            else:
                break

    def _do(self) -> None:
        """Carry out any one of the actions."""
        leader, draw = self.leader, self.data.draw
        action = leader.to_do.pop(draw(st.integers(0, len(leader.to_do) - 1)))
        move = action.move
        match action:
            case Commit():
                leader.step(self._write(action))
            case Prepare():
                leader.step(Prepared(move))
            case AskOwner():
                refusal = draw(st.sampled_from([None, "no"]))
                leader.step(OwnerAnswered(move, refusal, is_final=refusal is not None and draw(st.booleans())))
            case Ended():
                assert move not in self.outcomes, "once"
                self.outcomes[move] = action.outcome

    def _write(self, action: Commit) -> Event:
        move, records, draw = action.move, self.leader.records, self.data.draw
        before = records[move.bundle]
        how = draw(st.sampled_from(["written", "written", "written", "refused", "not answered"]))
        if how == "refused":
            return NotCommitted(move, IllegalTransitionError("another hand"))
        if how == "written" or draw(st.booleans()):
            try:
                records[move.bundle] = action.transition(before, STAMP)
            except IllegalTransitionError as error:
                return NotCommitted(move, error)
            assert records[move.bundle].version == before.version + 1
        stored = records[move.bundle]
        return Committed(move, stored) if how == "written" else Unanswered(move, stored, LOST)
