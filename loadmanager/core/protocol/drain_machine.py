"""State machine for drains, and for bundles that return to their broker: pinned ones, and those of a drain that ended.

The orders are in the operator controls, and each bundle's record shows the progress of its move. So a new leader
continues where the last one stopped; only the counters restart.

    a drain     event               if                                      then
    -------     -----               --                                      ----
    (none)      pass                it is ordered, its broker registered                                ─▶ UNDER WAY
    any         pass                another process of its broker is        EndDrain
                                    registered
    (none)      pass                bundles have returned                   EndReturn
    UNDER WAY   pass                its order was removed or replaced       WithdrawMove for each of
                                                                            its moves                   ─▶ (none)

    a bundle
    --------
    (at rest)   DrainPlanned: a step                                        BeginMove                   ─▶ MOVING
                DrainPlanned: it stays                                                                  ─▶ RESTING
    MOVING      MoveEnded           it has moved, or its step was stale                                 ─▶ (at rest)
                                    else                                                                ─▶ RESTING
    RESTING     5 s have passed                                                                         ─▶ (at rest)

TIME starts a pass over the controls, unless a plan is awaited. A pass requests a plan for drained bundles (GiveAway),
then one for bundles that are away from their broker (BringHome). Each fills the window, twice the limit of concurrent
unloads; no plan is requested while more than half of the window is MOVING. The next pass is due in a second, or at once
when something is CHANGED or the window is half empty.

A drain applies to one process of a broker. When another process registers, EndDrain removes the order and TriedToEnd
follows, so a restarted broker receives bundles again. A lost session does not end a drain. Pinned and frozen bundles
leave a draining broker like all others. Pinned bundles, and those that the order names, return after the drain, unless
they are unowned by then: those are left to placement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.protocol.move_machine import Cancelled, Failed, Kept, Outcome, StaleStepError, WithdrawMove
from loadmanager.core.protocol.state_machine import Mirror, Signal

PAUSE_S = 1.0
REST_S = 5.0
"""Back-off of a bundle that did not leave its broker, or that no other broker may own."""

_RATE_WINDOW_S = 60.0


@dataclass(slots=True, eq=False)
class Drain:
    """Progress of a drain in this term; `registration` is the broker's latest one."""

    registration: Registration
    since_s: float
    began_s: float
    moved: int = 0
    failed: int = 0
    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))

    def rate_per_s(self, now_s: float) -> float:
        """Return the number of bundles that left the broker per second, over the last minute."""
        since_s = max(self.began_s, now_s - _RATE_WINDOW_S)
        return sum(end_s > since_s for end_s in self.ends_s) / max(now_s - since_s, 0.1)

    def move_ended(self, now_s: float, *, has_left: bool) -> None:
        if has_left:
            self.moved += 1
            self.ends_s.append(now_s)
        else:
            self.failed += 1


@dataclass(frozen=True, slots=True)
class BackOff:
    """Back-off of a bundle that could not move: the reason, the end of the back-off, and its drain, if any."""

    why: str
    until_s: float
    drain: Drain | None


# Events


@dataclass(frozen=True, slots=True)
class DrainPlanned:
    """The plan that was requested last; None if planning failed."""

    plan: Plan | None


@dataclass(frozen=True, slots=True)
class MoveEnded:
    bundle: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TriedToEnd:
    """The attempt to remove an order has ended; the controls show the result."""

    broker: BrokerId


Event = Signal | DrainPlanned | MoveEnded | TriedToEnd

# Actions


@dataclass(frozen=True, slots=True)
class GiveAway:
    """Plan destinations of up to `most` bundles of these brokers, not of those to `leave`; answered by DrainPlanned."""

    brokers: tuple[BrokerId, ...]
    most: int
    leave: frozenset[str]


@dataclass(frozen=True, slots=True)
class BringHome:
    """Plan the return of up to `most` bundles to their brokers, except those to `leave`; answered by DrainPlanned."""

    most: int
    leave: frozenset[str]


@dataclass(frozen=True, slots=True)
class BeginMove:
    """Execute the step; `because` are the verdicts behind it. Answered by MoveEnded."""

    step: Unload
    because: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class EndDrain:
    """Remove the drain order of `since_s` from the controls; answered by TriedToEnd."""

    broker: BrokerId
    since_s: float


@dataclass(frozen=True, slots=True)
class EndReturn:
    """Remove these bundles of the broker from the controls: they have returned; answered by TriedToEnd."""

    broker: BrokerId
    bundles: frozenset[str]


Action = GiveAway | BringHome | BeginMove | WithdrawMove | EndDrain | EndReturn


@dataclass(slots=True)
class DrainMachine:
    """State machine for the drains of one leader. Callables return current values; `at_a_time` is the limit of
    concurrent unloads.

    `process_of`: the `startTimestamp` of a broker's registered process, 0 if unknown.
    """

    controls: Callable[[], Controls]
    mirror: Mirror
    process_of: Callable[[BrokerId], int]
    at_a_time: Callable[[], int]
    _drains: dict[BrokerId, Drain] = field(default_factory=dict)
    _ending: set[BrokerId] = field(default_factory=set)
    _moving: dict[str, Drain | None] = field(default_factory=dict)
    _resting: dict[str, BackOff] = field(default_factory=dict)
    _asked: GiveAway | BringHome | None = None
    _look_s: float = 0.0
    _actions: list[Action] = field(default_factory=list)
    _now_s: float = 0.0

    @property
    def wake_s(self) -> float | None:
        """Return the time of the next pass; None while a plan is awaited, or nothing is ordered."""
        return None if self._is_idle or self._asked is not None else self._look_s

    @property
    def _is_idle(self) -> bool:
        """Return True if nothing is ordered, so that a pass changes nothing."""
        controls = self.controls()
        return not (controls.draining or controls.returning or controls.pinned or self._drains)

    def find(self, broker: BrokerId) -> Drain | None:
        """Find the active drain of a broker."""
        return self._drains.get(broker)

    def blocked(self, drain: Drain | None) -> dict[str, str]:
        """Return the bundles of a drain that currently cannot move, with the reasons; None: returning bundles."""
        return {bundle: rest.why for bundle, rest in sorted(self._resting.items()) if rest.drain is drain}

    def state(self, drain: Drain, left: int) -> str:
        """`done`, `blocked` when none of the bundles `left` can leave, or `draining`."""
        if left == 0 and drain not in self._moving.values():
            return "done"
        return "blocked" if 0 < left <= len(self.blocked(drain)) else "draining"

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process an event and return the actions that follow."""
        self._now_s = now_s
        match event:
            case DrainPlanned(plan):
                self._on_planned(plan)
            case MoveEnded(bundle, outcome):
                self._on_move_ended(bundle, outcome)
            case TriedToEnd(broker):
                self._ending.discard(broker)
            case Signal.CHANGED:
                self._look_s = now_s
            case _:
                self._look()
        actions, self._actions = self._actions, []
        return actions

    def _look(self) -> None:
        if self._asked is not None or self._is_idle:
            return
        self._look_s = self._now_s + PAUSE_S
        self._follow_controls()
        self._end_returns()
        half = self.at_a_time()
        most = 2 * half - len(self._moving)
        if most < half:
            return
        brokers = tuple(broker for broker, drain in self._drains.items() if self._can_give_away(drain))
        if brokers:
            self._ask(GiveAway(brokers, most, self._to_leave()))
        else:
            self._plan_returns(most)

    def _follow_controls(self) -> None:
        for drain in [each for each in self._drains.values() if not self._is_wished(each)]:
            del self._drains[drain.registration.broker]
            self._actions += [WithdrawMove(bundle) for bundle, moved_for in self._moving.items() if moved_for is drain]
        for broker, order in self.controls().draining.items():
            registration = self.mirror.registrations.get(broker)
            if broker in self._ending or registration is None:
                continue
            if 0 != order.process != self.process_of(broker) != 0:
                self._ending.add(broker)
                self._actions.append(EndDrain(broker, order.since_s))
            elif broker in self._drains:
                self._drains[broker].registration = registration
            else:
                self._drains[broker] = Drain(registration, order.since_s, self._now_s)

    def _end_returns(self) -> None:
        controls = self.controls()
        for broker, order in controls.returning.items():
            if broker in self._ending or broker in controls.draining or self.mirror.registrations.get(broker) is None:
                continue
            at_home = frozenset(bundle for bundle in order.bundles if not self._is_away(bundle, broker))
            if at_home:
                self._ending.add(broker)
                self._actions.append(EndReturn(broker, at_home))

    def _is_wished(self, drain: Drain) -> bool:
        order = self.controls().draining.get(drain.registration.broker)
        return order is not None and order.since_s == drain.since_s

    def _can_give_away(self, drain: Drain) -> bool:
        """Return True while the drain's broker is registered and the drain is not about to end."""
        broker = drain.registration.broker
        return broker not in self._ending and self.mirror.registrations.get(broker) == drain.registration

    def _plan_returns(self, most: int) -> None:
        leave, homes = self._to_leave(), self.controls().homes
        if any(bundle not in leave and self._is_away(bundle, home) for bundle, home in homes.items()):
            self._ask(BringHome(most, leave))

    def _is_away(self, bundle: str, home: BrokerId) -> bool:
        """Return True if another broker owns a bundle whose home broker is registered."""
        owner = self._owner_of(bundle)
        return owner is not None and owner.broker != home and self.mirror.registrations.get(home) is not None

    def _owner_of(self, bundle: str) -> Registration | None:
        current = self.mirror.find_ownership(bundle)
        return None if current is None else current.owner

    def _to_leave(self) -> frozenset[str]:
        """Return the bundles to leave alone: moving ones, and those in back-off unless their drain has ended."""
        drains = (None, *self._drains.values())
        resting = {b for b, rest in self._resting.items() if rest.until_s > self._now_s and rest.drain in drains}
        return frozenset(resting | self._moving.keys())

    def _ask(self, question: GiveAway | BringHome) -> None:
        self._asked = question
        self._actions.append(question)

    def _on_planned(self, plan: Plan | None) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None, "nothing was asked"
        of_drains = isinstance(asked, GiveAway)
        if plan is not None:
            self._begin(plan, asked.most, of_drains=of_drains)
            self._give_rest(plan.verdicts, of_drains=of_drains)
        if of_drains:
            self._plan_returns(asked.most)

    def _begin(self, plan: Plan, most: int, *, of_drains: bool) -> None:
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        for step in plan.unloads[:most]:
            drain = self._find_drain(step.source) if of_drains else None
            if of_drains and (drain is None or not self._is_wished(drain)):
                continue  # the order was removed meanwhile, or the broker has restarted and is not drained
            self._moving[step.bundle] = drain
            self._actions.append(BeginMove(step, [verdicts[step.bundle]] if step.bundle in verdicts else []))

    def _give_rest(self, verdicts: Sequence[Verdict], *, of_drains: bool) -> None:
        self._resting = {bundle: rest for bundle, rest in self._resting.items() if rest.until_s > self._now_s}
        for verdict in verdicts:
            if not verdict.acted:
                drain = self._find_drain(self._owner_of(verdict.subject)) if of_drains else None
                self._rest(verdict.subject, verdict.sentence(), drain)

    def _find_drain(self, owner: Registration | None) -> Drain | None:
        drain = None if owner is None else self._drains.get(owner.broker)
        return None if drain is None or drain.registration != owner else drain

    def _rest(self, bundle: str, why: str, drain: Drain | None) -> None:
        self._resting[bundle] = BackOff(why, self._now_s + REST_S, drain)

    def _on_move_ended(self, bundle: str, outcome: Outcome) -> None:
        drain = self._moving.pop(bundle)
        if isinstance(outcome, Failed) and isinstance(outcome.error, StaleStepError):
            return  # without an immediate pass: another plan on the same mirror is as stale
        self._resting.pop(bundle, None)
        why = _find_failure(outcome)
        if why is not None:
            self._rest(bundle, why, drain)
        if drain is not None:
            drain.move_ended(self._now_s, has_left=why is None)
        if len(self._moving) <= self.at_a_time():
            self._look_s = self._now_s


def _find_failure(outcome: Outcome) -> str | None:
    """Return the reason why the bundle did not move, None if it did."""
    match outcome:
        case Kept(refusal=why) | Cancelled(why):
            return why
        case Failed(error):
            return str(error)
        case _:
            return None
