"""Failure detector for the leader: decides when a standby takes over before the leader's session expires.

A passive machine, as `loadmanager.core.protocol.move_machine` is. The leader is asked again and again, and answers once
ZooKeeper has told it that its epoch is still the last one: an answer says that its loop runs and that it can write.

    phase      event                          then
    -----      -----                          ----
    IDLE       NodeLeads: another node        AskLeader                                                  ─▶ STRANGE
    STRANGE    Heard                          AskLeader                                                  ─▶ HEARD
               Missed                         (asked again after a patience)
    HEARD      Heard                          (it is silent for 0 s) AskLeader
               Missed                         (asked again after a tick)
               TIME, 5/8 of a patience silent Doubt                                                      ─▶ DOUBTING
    DOUBTING   Heard                          AskLeader                                                  ─▶ HEARD
               Missed                         as in HEARD
               Doubted: it stands             CheckSuspicion after a tick
               SuspicionChecked: it stands    CheckSuspicion after a tick; unless the last three were prompt and a
                                              patience is over: Say, EarlyTakeOver                       ─▶ RESTING
               SuspicionChecked: unknown      CheckSuspicion after a tick, and count anew
               Doubted or SuspicionChecked: it is gone  Say                                              ─▶ RESTING
    RESTING    Heard                          AskLeader; Spare, if it was to be replaced                 ─▶ HEARD
               Missed                         as in HEARD
               TIME, rested for a session     as from HEARD                                              ─▶ HEARD
    any        LeaderProcessEnded             Say, EarlyTakeOver at once                                 ─▶ RESTING
               NodeLeads: nobody, or this node                                                           ─▶ IDLE
               NodeLeads: another node        as from IDLE

What is not in the table has come too late and changes nothing.

Why it is safe
    Nothing here keeps two from writing: winning raises the epoch, which every write of a leader checks, so whoever was
    replaced without cause has its next write refused and steps down. At worst an election was for nothing.

Why there is hardly any without cause
    Silence is time in which this process ran itself: a step counts one tick at most, so one that was stopped, or
    starved, holds nothing against the leader. A leader that cannot be heard is asked by another way as well: the
    *doubt* is a znode, which any leader deletes as soon as it sees it, and the campaign goes through only while it is
    there. So a leader stays while it has ZooKeeper, though this node may be cut off from it, or its connections be
    refused: a firewall and a wrong port refuse as well as a process that is gone. ZooKeeper that is slow or stopped
    itself says nothing about the leader: only looks that it answered within a tick count, three in a row. And whoever
    has not answered yet, being of another version or not to be reached from here, is not missed. On a busy machine all
    answers take longer, so patience is at least three times the slowest one of the last minutes.

    Only Ended needs no doubt: the leader's address refuses, and the kernel of this very machine, in this very network
    namespace, says that the process which holds the leader's znode has ended.

Why they do not depose each other without end
    A doubt that was answered is good for a session timeout. A take-over was needless when the session of the leader
    that was replaced lives on: it would have led on. With each needless one within ten minutes this node's patience
    doubles, up to the session timeout: then it is no sooner than without all this.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from loadmanager.core.domain.log_message import Say
from loadmanager.core.protocol.leadership import Sighting
from loadmanager.core.protocol.signals import Signal

TICKS = 8
"""In a patience: so often a silent leader is looked at."""

_TICKS_UNTIL_DOUBT = 5
_MOST_TICKS_A_STEP = 1
_PROMPT_LOOKS = 3
_TICKS_HELD = 2
"""For so long the leader may keep its answer back: it is asked no more often."""

_REMEMBERED_S = 600.0

_TIMES_SLOWEST = 3.0
_HALF_LIFE_S = 60.0
"""The slowest answer counts half as much after that."""

_JUDGED_AFTER_SESSIONS = 1.5
"""By then a session whose holder has ended has expired, ticks of the servers included."""

_NORMAL_PATIENCE_S = 0.8
"""What goes by patience where silence never counts: how often the leader is asked."""


class FailureDetectorPhase(enum.Enum):
    IDLE = enum.auto()
    """Nobody leads, as far as is known, or this node does."""
    STRANGE = enum.auto()
    """The leader has not answered yet."""
    HEARD = enum.auto()
    DOUBTING = enum.auto()
    """It is asked through the store, too."""
    RESTING = enum.auto()
    """It has answered there and not here, or is to be replaced."""


# Events


@dataclass(frozen=True, slots=True)
class NodeLeads:
    """This node leads, by the newest that was read of the store; None: nobody, this one, or it is not known.
    `session_s` is the timeout of sessions with the store, `sessions` those of registered nodes, None: not known.
    """

    leader: Sighting | None
    session_s: float
    sessions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """The leader of that znode has answered that it leads."""

    czxid: int


@dataclass(frozen=True, slots=True)
class Missed:
    """What it was asked has ended otherwise."""

    czxid: int


@dataclass(frozen=True, slots=True)
class LeaderProcessEnded:
    """The process of that leader has ended for certain."""

    czxid: int


@dataclass(frozen=True, slots=True)
class Doubted:
    """What came of putting the doubt into the store: whether there is one now."""

    czxid: int
    stands: bool


@dataclass(frozen=True, slots=True)
class SuspicionChecked:
    """What a look has shown: whether the doubt is still there; None: the store did not say."""

    look: CheckSuspicion
    stands: bool | None


Event = NodeLeads | Heard | Missed | LeaderProcessEnded | Doubted | SuspicionChecked | Signal

# Instructions


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Ask the leader whether it leads, to be answered after `hold_s` at the latest; wait `patience_s` longer. Come back
    with Heard, Missed or Ended.
    """

    leader: Sighting
    hold_s: float
    patience_s: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """Ask the leader through the store, and come back with Doubted."""

    leader: Sighting


@dataclass(frozen=True, slots=True)
class CheckSuspicion:
    """See whether the doubt is still there, and come back with Seen."""

    czxid: int
    begun_s: float


@dataclass(frozen=True, slots=True)
class EarlyTakeOver:
    """Campaign in the place of that leader: while the doubt is there, unless its process `has_ended`."""

    czxid: int
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Spare:
    """Do not: it was heard."""

    czxid: int


Instruction = AskLeader | Doubt | CheckSuspicion | EarlyTakeOver | Spare | Say


@dataclass(slots=True)
class FailureDetector:
    """`least_s` is the least patience with a silent leader; with 0 silence never counts."""

    least_s: float
    phase: FailureDetectorPhase = FailureDetectorPhase.IDLE
    silent_s: float = 0.0
    """For how long the leader was not heard, in time that counts."""
    found_silent: int = 0
    """How many leaders were."""
    _leader: Sighting | None = None
    _session_s: float = 0.0
    _stepped_s: float = -math.inf
    _ask_s: float = math.inf
    _look_s: float = math.inf
    _rested_s: float = math.inf
    _looks: int = 0
    _takes_over: bool = False
    _slowest_s: float = 0.0
    _taken_over: list[tuple[float, int]] = field(default_factory=list)
    """Time of the take-over, and the session of the leader before, unless that has expired."""
    _to_do: list[Instruction] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """A tick after the last step, while somebody is watched."""
        return None if self.phase is FailureDetectorPhase.IDLE else self._stepped_s + self.tick_s

    @property
    def tick_s(self) -> float:
        return self._asked_for_s / TICKS

    @property
    def _asked_for_s(self) -> float:
        return self.least_s or _NORMAL_PATIENCE_S

    def patience_s(self, now_s: float) -> float:
        """How long a leader may be silent now."""
        if not self.least_s:
            return math.inf
        judged_s = now_s - _JUDGED_AFTER_SESSIONS * self._session_s
        needless = sum(now_s - _REMEMBERED_S < at_s <= judged_s for at_s, _ in self._taken_over)
        usual_s = max(self.least_s, _TIMES_SLOWEST * self._slowest_s)
        return max(self.least_s, min(usual_s * 2.0**needless, self._session_s))

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened."""
        passed_s = now_s - self._stepped_s
        self.silent_s += min(passed_s, _MOST_TICKS_A_STEP * self.tick_s)
        self._slowest_s *= 0.5 ** (passed_s / _HALF_LIFE_S)
        self._stepped_s = now_s
        if isinstance(event, NodeLeads):
            self._session_s = event.session_s
            if event.sessions is not None:
                self._taken_over = [each for each in self._taken_over if each[1] in event.sessions]
            self._leads(event.leader, now_s)
        elif self._leader is not None:
            self._heard_of(self._leader, event, now_s)
        to_do, self._to_do = self._to_do, []
        return to_do

    def _leads(self, leader: Sighting | None, now_s: float) -> None:
        if leader == self._leader:
            return
        if self._takes_over and leader is None and self._leader is not None:  # it was elected itself, most likely
            lately = [each for each in self._taken_over if each[0] > now_s - _REMEMBERED_S]
            self._taken_over = [*lately, (now_s, self._leader.session_id)]
        self._leader, self._takes_over = leader, False
        self.phase = FailureDetectorPhase.IDLE
        if leader is not None:
            self.phase = FailureDetectorPhase.STRANGE
            self._ask(leader)

    def _heard_of(self, leader: Sighting, event: Event, now_s: float) -> None:
        match event:
            case Heard(czxid) if czxid == leader.czxid:
                self._heard(leader)
            case Missed(czxid) if czxid == leader.czxid:
                self._ask_s = now_s + (self._asked_for_s if self.phase is FailureDetectorPhase.STRANGE else self.tick_s)
            case LeaderProcessEnded(czxid) if czxid == leader.czxid:
                self._say("leader_process_ended", leader)
                self._to_do.append(EarlyTakeOver(czxid, has_ended=True))
                self._rest(now_s)
            case Doubted(czxid, stands) if czxid == leader.czxid and self.phase is FailureDetectorPhase.DOUBTING:
                self._look_on(leader, now_s, stands=stands)
            case SuspicionChecked(look, stands) if (
                look.czxid == leader.czxid and self.phase is FailureDetectorPhase.DOUBTING
            ):
                prompt = stands is not None and now_s - look.begun_s <= self.tick_s
                self._looks = self._looks + 1 if prompt else 0
                self._look_on(leader, now_s, stands=stands is not False)
            case Signal.TIME:
                self._look_at_the_time(leader, now_s)
            case _:
                pass

    def _heard(self, leader: Sighting) -> None:
        if self._takes_over:
            self._to_do.append(Spare(leader.czxid))
            self._takes_over = False
        if self.phase is not FailureDetectorPhase.STRANGE:
            self._slowest_s = max(self._slowest_s, self.silent_s)
        self.phase = FailureDetectorPhase.HEARD
        self.silent_s = 0.0
        self._ask(leader, hold_s=_TICKS_HELD * self.tick_s)

    def _ask(self, leader: Sighting, hold_s: float = 0.0) -> None:
        self._ask_s = math.inf
        self._to_do.append(AskLeader(leader, hold_s, self._asked_for_s))

    def _look_at_the_time(self, leader: Sighting, now_s: float) -> None:
        if now_s >= self._ask_s:
            self._ask(leader)
        if self.phase is FailureDetectorPhase.RESTING and now_s >= self._rested_s:
            self.phase = FailureDetectorPhase.HEARD
        if (
            self.phase is FailureDetectorPhase.HEARD
            and self.silent_s >= self.patience_s(now_s) * _TICKS_UNTIL_DOUBT / TICKS
        ):
            self.phase, self._look_s, self._looks = FailureDetectorPhase.DOUBTING, math.inf, 0
            self._to_do.append(Doubt(leader))
        if self.phase is FailureDetectorPhase.DOUBTING and now_s >= self._look_s:
            self._look_s = math.inf
            self._to_do.append(CheckSuspicion(leader.czxid, now_s))

    def _look_on(self, leader: Sighting, now_s: float, *, stands: bool) -> None:
        """The doubt was asked about, and stands, or is gone."""
        if not stands:
            self._say("leader_has_zookeeper", leader, is_warning=False)
            self._rest(now_s)
        elif self._looks >= _PROMPT_LOOKS and self.silent_s >= self.patience_s(now_s):
            self._say("leader_silent", leader)
            self._takes_over = True
            self.found_silent += 1
            self._to_do.append(EarlyTakeOver(leader.czxid))
            self._rest(now_s)
        else:
            self._look_s = now_s + self.tick_s

    def _rest(self, now_s: float) -> None:
        self.phase, self._rested_s = FailureDetectorPhase.RESTING, now_s + self._session_s

    def _say(self, event: str, leader: Sighting, *, is_warning: bool = True) -> None:
        fields = {"leader": leader.service_url, "epoch": leader.epoch, "silent_s": round(self.silent_s, 3)}
        self._to_do.append(Say(event, fields, is_warning))
