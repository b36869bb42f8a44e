"""Drains, and pinned bundles on their way home: what is to be moved because operators said so.

A passive machine: `step(event, now_s)` takes what has happened and gives what is to be done; `wake_s` is when it wants
to be stepped by itself, with `TIME`. The wish is in the controls, which every leader reads, and the record of each
bundle says how far its move has come. So a new leader goes on where the last one stopped; only what was counted starts
anew.

    a drain     event               if                                      then
    -------     -----               --                                      ----
    (none)      look                it is ordered, its broker registered                                ─▶ UNDER WAY
    any         look                another process of its broker is        EndDrain
                                    registered
    UNDER WAY   look                it is no longer ordered, or anew        WithdrawMove for each of
                                                                            its moves                   ─▶ (none)

    a bundle
    --------
    (at rest)   DrainPlanned: a step                                        BeginMove                   ─▶ MOVING
                DrainPlanned: it stays                                                                  ─▶ RESTING
    MOVING      MoveEnded           it has moved, or is another by now                                  ─▶ (at rest)
                                    else                                                                ─▶ RESTING
    RESTING     5 s have passed                                                                         ─▶ (at rest)

TIME is a look at the controls, unless a decision is being waited for. Then where bundles go is decided on: those that
drains give away (GiveAway), and after them those that are pinned elsewhere (BringHome). Each fills the window, which is
twice as many bundles as unloads have their turn at a time; neither is asked for while more than half of it is MOVING.
The next look is due in a second, or at once when something is CHANGED or the window has become half empty.

A drain is for one process of a broker: EndDrain takes the order back when another process registers, so that a broker
that was restarted after its drain is given bundles again. A lost session ends no drain. Pinned and frozen bundles leave
a draining broker like all others, and pinned ones come back to it after its drain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.protocol.move_machine import CalledOff, Failed, Kept, Outcome, StaleStepError
from loadmanager.core.protocol.signals import Signal

PAUSE_S = 1.0
REST_S = 5.0
"""How long a bundle is left alone that did not leave its broker, or that no other broker may own."""

_RATE_WINDOW_S = 60.0


@dataclass(slots=True, eq=False)
class Drain:
    """The progress of a drain since this node leads; `registration` is the broker's latest one."""

    registration: Registration
    since_s: float
    began_s: float
    moved: int = 0
    failed: int = 0
    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))

    def rate_per_s(self, now_s: float) -> float:
        """Bundles that left it per second, of late."""
        since_s = max(self.began_s, now_s - _RATE_WINDOW_S)
        return sum(end_s > since_s for end_s in self.ends_s) / max(now_s - since_s, 0.1)

    def move_ended(self, now_s: float, *, has_left: bool) -> None:
        if has_left:
            self.moved += 1
            self.ends_s.append(now_s)
        else:
            self.failed += 1


@dataclass(frozen=True, slots=True)
class Rest:
    """Why a bundle stays, until when nobody looks at it again, and for which drain it would have moved, if for one."""

    why: str
    until_s: float
    drain: Drain | None


# Events


@dataclass(frozen=True, slots=True)
class DrainPlanned:
    """What was asked for last; None if it could not be decided."""

    plan: Plan | None


@dataclass(frozen=True, slots=True)
class MoveEnded:
    bundle: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TriedToEnd:
    """The order was taken back, or could not be; the controls say which."""

    broker: BrokerId


Event = Signal | DrainPlanned | MoveEnded | TriedToEnd

# Instructions


@dataclass(frozen=True, slots=True)
class GiveAway:
    """Decide where the next `most` bundles of these brokers go, but not those to `leave`; come back with Planned."""

    brokers: tuple[BrokerId, ...]
    most: int
    leave: frozenset[str]


@dataclass(frozen=True, slots=True)
class BringHome:
    """Decide on the way home of pinned bundles, `most` of which begin, but not of those to `leave`; come back with
    Planned.
    """

    most: int
    leave: frozenset[str]


@dataclass(frozen=True, slots=True)
class BeginMove:
    """Carry out the step, decided for these reasons, and come back with MoveEnded."""

    step: Unload
    because: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class WithdrawMove:
    """Call the move of the bundle off if it still waits for its turn."""

    bundle: str


@dataclass(frozen=True, slots=True)
class EndDrain:
    """Take the order of `since_s` back in the controls, and come back with TriedToEnd."""

    broker: BrokerId
    since_s: float


Instruction = GiveAway | BringHome | BeginMove | WithdrawMove | EndDrain


@dataclass(frozen=True, slots=True)
class Remembered:
    """All that is kept from one step to the next: what a drain, or a pin, moves and leaves alone."""

    drains: Mapping[BrokerId, Drain]
    ending: set[BrokerId]
    moving: Mapping[str, Drain | None]
    resting: Mapping[str, Rest]
    asked: GiveAway | BringHome | None
    look_s: float


@dataclass(slots=True)
class DrainMachine:
    """The drains of one leader. All that it is given is of this moment; `at_a_time` is how many unloads have a turn.

    `process_of`: the `startTimestamp` of a broker's registered process, 0 if unknown.
    """

    controls: Callable[[], Controls]
    registration_of: Callable[[BrokerId], Registration | None]
    process_of: Callable[[BrokerId], int]
    owner_of: Callable[[str], Registration | None]
    at_a_time: Callable[[], int]
    _drains: dict[BrokerId, Drain] = field(default_factory=dict)
    _ending: set[BrokerId] = field(default_factory=set)
    _moving: dict[str, Drain | None] = field(default_factory=dict)
    _resting: dict[str, Rest] = field(default_factory=dict)
    _asked: GiveAway | BringHome | None = None
    _look_s: float = 0.0
    _to_do: list[Instruction] = field(default_factory=list)
    _now_s: float = 0.0

    @property
    def wake_s(self) -> float | None:
        """When the next look is due; None while a decision is waited for, or nothing is wished."""
        return None if self._is_idle or self._asked is not None else self._look_s

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is wished, so that a look changes nothing."""
        controls = self.controls()
        return not (controls.draining or controls.pinned or self._drains)

    def remembered(self) -> Remembered:
        return Remembered(self._drains, self._ending, self._moving, self._resting, self._asked, self._look_s)

    def restore(self, remembered: Remembered) -> None:
        """Go on with what another remembered."""
        self._drains, self._ending = {**remembered.drains}, {*remembered.ending}
        self._moving, self._resting = {**remembered.moving}, {**remembered.resting}
        self._asked, self._look_s = remembered.asked, remembered.look_s

    def find(self, broker: BrokerId) -> Drain | None:
        """The drain of a broker that is under way."""
        return self._drains.get(broker)

    def blocked(self, drain: Drain) -> dict[str, str]:
        """The bundles that stay for now, and why."""
        return {bundle: rest.why for bundle, rest in sorted(self._resting.items()) if rest.drain is drain}

    def state(self, drain: Drain, left: int) -> str:
        """`done`, `blocked` when none of the bundles `left` can leave, or `draining`."""
        if left == 0 and drain not in self._moving.values():
            return "done"
        return "blocked" if 0 < left <= len(self.blocked(drain)) else "draining"

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened."""
        self._now_s = now_s
        match event:
            case DrainPlanned(plan):
                self._planned(plan)
            case MoveEnded(bundle, outcome):
                self._move_ended(bundle, outcome)
            case TriedToEnd(broker):
                self._ending.discard(broker)
            case Signal.CHANGED:
                self._look_s = now_s
            case _:
                self._look()
        to_do, self._to_do = self._to_do, []
        return to_do

    def _look(self) -> None:
        if self._asked is not None or self._is_idle:
            return
        self._look_s = self._now_s + PAUSE_S
        self._follow_controls()
        half = self.at_a_time()
        most = 2 * half - len(self._moving)
        if most < half:
            return
        brokers = tuple(broker for broker, drain in self._drains.items() if self._can_give_away(drain))
        if brokers:
            self._ask(GiveAway(brokers, most, self._to_leave()))
        else:
            self._look_after_pins(most)

    def _follow_controls(self) -> None:
        for drain in [each for each in self._drains.values() if not self._is_wished(each)]:
            del self._drains[drain.registration.broker]
            self._to_do += [WithdrawMove(bundle) for bundle, moved_for in self._moving.items() if moved_for is drain]
        for broker, order in self.controls().draining.items():
            registration = self.registration_of(broker)
            if broker in self._ending or registration is None:
                continue
            if 0 != order.process != self.process_of(broker) != 0:
                self._ending.add(broker)
                self._to_do.append(EndDrain(broker, order.since_s))
            elif broker in self._drains:
                self._drains[broker].registration = registration
            else:
                self._drains[broker] = Drain(registration, order.since_s, self._now_s)

    def _is_wished(self, drain: Drain) -> bool:
        order = self.controls().draining.get(drain.registration.broker)
        return order is not None and order.since_s == drain.since_s

    def _can_give_away(self, drain: Drain) -> bool:
        """True while its broker is registered, and the drain is not about to end."""
        broker = drain.registration.broker
        return broker not in self._ending and self.registration_of(broker) == drain.registration

    def _look_after_pins(self, most: int) -> None:
        leave, pinned = self._to_leave(), self.controls().pinned
        if any(bundle not in leave and self._is_astray(bundle, home) for bundle, home in pinned.items()):
            self._ask(BringHome(most, leave))

    def _is_astray(self, bundle: str, home: BrokerId) -> bool:
        """Whether a pinned bundle could be brought home: another broker owns it."""
        owner = self.owner_of(bundle)
        return owner is not None and owner.broker != home and self.registration_of(home) is not None

    def _to_leave(self) -> frozenset[str]:
        """What is on its way, and what rests; not for a drain that is over."""
        drains = (None, *self._drains.values())
        resting = {b for b, rest in self._resting.items() if rest.until_s > self._now_s and rest.drain in drains}
        return frozenset(resting | self._moving.keys())

    def _ask(self, question: GiveAway | BringHome) -> None:
        self._asked = question
        self._to_do.append(question)

    def _planned(self, plan: Plan | None) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None, "nothing was asked"
        of_drains = isinstance(asked, GiveAway)
        if plan is not None:
            self._begin(plan, asked.most, of_drains=of_drains)
            self._give_rest(plan.verdicts, of_drains=of_drains)
        if of_drains:
            self._look_after_pins(asked.most)

    def _begin(self, plan: Plan, most: int, *, of_drains: bool) -> None:
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        for step in [step for step in plan.steps if isinstance(step, Unload)][:most]:
            drain = self._find_drain(step.source) if of_drains else None
            if of_drains and (drain is None or not self._is_wished(drain)):
                continue  # it was lifted meanwhile, or its broker is back, and that life of it is not drained
            self._moving[step.bundle] = drain
            self._to_do.append(BeginMove(step, [verdicts[step.bundle]] if step.bundle in verdicts else []))

    def _give_rest(self, verdicts: Sequence[Verdict], *, of_drains: bool) -> None:
        self._resting = {bundle: rest for bundle, rest in self._resting.items() if rest.until_s > self._now_s}
        for verdict in verdicts:
            if not verdict.acted:
                drain = self._find_drain(self.owner_of(verdict.subject)) if of_drains else None
                self._rest(verdict.subject, verdict.sentence(), drain)

    def _find_drain(self, owner: Registration | None) -> Drain | None:
        """The drain that is under way of that life of a broker."""
        drain = None if owner is None else self._drains.get(owner.broker)
        return None if drain is None or drain.registration != owner else drain

    def _rest(self, bundle: str, why: str, drain: Drain | None) -> None:
        self._resting[bundle] = Rest(why, self._now_s + REST_S, drain)

    def _move_ended(self, bundle: str, outcome: Outcome) -> None:
        drain = self._moving.pop(bundle)
        if isinstance(outcome, Failed) and isinstance(outcome.error, StaleStepError):
            return  # and no look at once: what is planned on the same picture is as stale
        self._resting.pop(bundle, None)
        why = _why_not(outcome)
        if why is not None:
            self._rest(bundle, why, drain)
        if drain is not None:
            drain.move_ended(self._now_s, has_left=why is None)
        if len(self._moving) <= self.at_a_time():
            self._look_s = self._now_s


def _why_not(outcome: Outcome) -> str | None:
    """Why the bundle has not moved, None if it has."""
    match outcome:
        case Kept(refusal=why) | CalledOff(why):
            return why
        case Failed(error):
            return str(error)
        case _:
            return None
