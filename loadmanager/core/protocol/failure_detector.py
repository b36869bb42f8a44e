"""Failure detector for the leader: decides when a standby takes over before the leader's session expires.

The leader is polled. It answers once ZooKeeper has confirmed that its epoch is the latest, so an answer proves that its
loop runs and that it can write.

    phase      event                          then
    -----      -----                          ----
    IDLE       NodeLeads: another node        AskLeader                                                  ─▶ UNHEARD
    UNHEARD    LeaderAnswered                 AskLeader                                                  ─▶ HEARD
               LeaderMissed                   (asked again after a timeout)
    HEARD      LeaderAnswered                 (it is silent for 0 s) AskLeader
               LeaderMissed                   (asked again after a tick)
               TIME, 5/8 of a timeout silent  RaiseSuspicion                                             ─▶ SUSPECTING
    SUSPECTING LeaderAnswered                 AskLeader                                                  ─▶ HEARD
               LeaderMissed                   as in HEARD
               SuspicionRaised: it exists     CheckSuspicion after a tick
               SuspicionChecked: it exists    CheckSuspicion after a tick; unless the last three were prompt and the
                                              timeout is over: Say, EarlyTakeOver                        ─▶ RESTING
               SuspicionChecked: unknown      CheckSuspicion after a tick, and restart the count
               either: it was deleted         Say                                                        ─▶ RESTING
    RESTING    LeaderAnswered                 AskLeader; CancelTakeOver after an EarlyTakeOver           ─▶ HEARD
               LeaderMissed                   as in HEARD
               TIME, rested for a session     as from HEARD                                              ─▶ HEARD
    any        LeaderProcessEnded             Say, EarlyTakeOver at once                                 ─▶ RESTING
               NodeLeads: none, or this node                                                             ─▶ IDLE
               NodeLeads: another node        as from IDLE

Events that are not in the table are stale and ignored.

Safety
    Fencing prevents two writers: winning increments the epoch, which every write of a leader checks. A leader that was
    replaced by mistake has its next write refused and steps down. At worst an election was needless.

Few false positives
    Silence counts only while this process itself ran, at most one tick per step. So a standby that was paused or
    starved of CPU does not blame the leader. A silent leader is asked through the store: the *suspicion* is a znode
    that a live leader deletes, and the campaign succeeds only while it exists. So a leader that reaches ZooKeeper
    stays, even if this node cannot reach it: a firewall or a wrong port refuses connections just as an exited process
    does. A slow or stopped ZooKeeper proves nothing about the leader, so only checks that it answers within a tick
    count, three in a row. A leader that has never answered (another version, or unreachable from here) is not
    suspected. On a busy machine answers take longer, so the timeout is at least three times the slowest answer of the
    last minutes.

    Only LeaderProcessEnded needs no suspicion: the leader's address refuses connections, and the kernel of this machine
    and network namespace reports that the process that holds the leader's znode has exited.

Limited take-overs
    After the leader has deleted a suspicion, this node raises no other for one session timeout, unless the leader
    answers it directly before. A take-over was needless if the session of the replaced leader is still alive. Each
    needless one within ten minutes doubles this node's timeout, up to the session timeout; at that limit, it is no
    faster than session expiry.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from loadmanager.core.protocol.leadership import LeaderZnode
from loadmanager.core.protocol.state_machine import Say, Signal

TICKS = 8
"""Ticks per timeout."""

_TICKS_UNTIL_SUSPICION = 5
_MOST_TICKS_A_STEP = 1
_PROMPT_LOOKS = 3
_TICKS_HELD = 2
"""Long polling: the leader may delay its answer for this many ticks."""

_REMEMBERED_S = 600.0

_TIMES_SLOWEST = 3.0
_HALF_LIFE_S = 60.0
"""Half-life of the slowest answer time."""

_JUDGED_AFTER_SESSIONS = 1.5
"""Time until the session of an exited process has expired, in session timeouts, including server ticks."""

_NORMAL_TIMEOUT_S = 0.8
"""Polling timeout where silence detection is off."""


class FailureDetectorPhase(enum.Enum):
    IDLE = enum.auto()
    """There is no known leader, or this node leads."""
    UNHEARD = enum.auto()
    """The leader has not answered yet."""
    HEARD = enum.auto()
    SUSPECTING = enum.auto()
    """A suspicion is in the store."""
    RESTING = enum.auto()
    """The leader answered only through the store, or is being replaced."""


# Events


@dataclass(frozen=True, slots=True)
class NodeLeads:
    """The leader changed, by the latest read of the store. `leader` is None if there is none, it is unknown, or it is
    this node. `session_s` is the store's session timeout, `sessions` those of registered nodes, None if unknown.
    """

    leader: LeaderZnode | None
    session_s: float
    sessions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class LeaderAnswered:
    """The leader with this znode answered that it leads."""

    czxid: int


@dataclass(frozen=True, slots=True)
class LeaderMissed:
    """The request to the leader ended in any other way."""

    czxid: int


@dataclass(frozen=True, slots=True)
class LeaderProcessEnded:
    """The leader's process has exited for certain."""

    czxid: int


@dataclass(frozen=True, slots=True)
class SuspicionRaised:
    """Result of writing the suspicion to the store: True if a suspicion exists now."""

    czxid: int
    stands: bool


@dataclass(frozen=True, slots=True)
class SuspicionChecked:
    """Result of a check: True if the suspicion still exists; None if the store did not answer."""

    look: CheckSuspicion
    stands: bool | None


Event = NodeLeads | LeaderAnswered | LeaderMissed | LeaderProcessEnded | SuspicionRaised | SuspicionChecked | Signal

# Actions


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Ask the leader whether it leads. It answers within `hold_s`; wait `timeout_s` longer. Answered by
    LeaderAnswered, LeaderMissed or LeaderProcessEnded.
    """

    leader: LeaderZnode
    hold_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RaiseSuspicion:
    """Write a suspicion of the leader to the store; answered by SuspicionRaised."""

    leader: LeaderZnode


@dataclass(frozen=True, slots=True)
class CheckSuspicion:
    """Check that the suspicion still exists; answered by SuspicionChecked."""

    czxid: int
    begun_s: float


@dataclass(frozen=True, slots=True)
class EarlyTakeOver:
    """Campaign to replace that leader: only while the suspicion exists, unless its process `has_ended`."""

    czxid: int
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class CancelTakeOver:
    """Cancel the early take-over: the leader answered."""

    czxid: int


Action = AskLeader | RaiseSuspicion | CheckSuspicion | EarlyTakeOver | CancelTakeOver | Say


@dataclass(slots=True)
class FailureDetector:
    """Failure detector for the leader. `least_s` is the minimum timeout for a silent leader; 0 turns silence detection
    off.
    """

    least_s: float
    phase: FailureDetectorPhase = FailureDetectorPhase.IDLE
    silent_s: float = 0.0
    """Silence so far, counted as described under "Few false positives"."""
    found_silent: int = 0
    """Number of leaders found silent."""
    _leader: LeaderZnode | None = None
    _session_s: float = 0.0
    _stepped_s: float = -math.inf
    _ask_s: float = math.inf
    _look_s: float = math.inf
    _rested_s: float = math.inf
    _looks: int = 0
    _takes_over: bool = False
    _slowest_s: float = 0.0
    _taken_over: list[tuple[float, int]] = field(default_factory=list)
    """Time of each take-over, and the session of the replaced leader, unless it has expired."""
    _actions: list[Action] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """Return the time of the next tick; None while no leader is watched."""
        return None if self.phase is FailureDetectorPhase.IDLE else self._stepped_s + self.tick_s

    @property
    def tick_s(self) -> float:
        return self._asked_for_s / TICKS

    @property
    def _asked_for_s(self) -> float:
        return self.least_s or _NORMAL_TIMEOUT_S

    def timeout_s(self, now_s: float) -> float:
        """Return the current timeout for a silent leader, in seconds."""
        if not self.least_s:
            return math.inf
        judged_s = now_s - _JUDGED_AFTER_SESSIONS * self._session_s
        needless = sum(now_s - _REMEMBERED_S < at_s <= judged_s for at_s, _ in self._taken_over)
        usual_s = max(self.least_s, _TIMES_SLOWEST * self._slowest_s)
        return max(self.least_s, min(usual_s * 2.0**needless, self._session_s))

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process an event and return the actions that follow."""
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
        actions, self._actions = self._actions, []
        return actions

    def _leads(self, leader: LeaderZnode | None, now_s: float) -> None:
        if leader == self._leader:
            return
        if self._takes_over and leader is None and self._leader is not None:  # most likely, this node was elected
            lately = [each for each in self._taken_over if each[0] > now_s - _REMEMBERED_S]
            self._taken_over = [*lately, (now_s, self._leader.session_id)]
        self._leader, self._takes_over = leader, False
        self.phase = FailureDetectorPhase.IDLE
        if leader is not None:
            self.phase = FailureDetectorPhase.UNHEARD
            self._ask(leader)

    def _heard_of(self, leader: LeaderZnode, event: Event, now_s: float) -> None:
        match event:
            case LeaderAnswered(czxid) if czxid == leader.czxid:
                self._on_heard(leader)
            case LeaderMissed(czxid) if czxid == leader.czxid:
                self._ask_s = now_s + (self._asked_for_s if self.phase is FailureDetectorPhase.UNHEARD else self.tick_s)
            case LeaderProcessEnded(czxid) if czxid == leader.czxid:
                self._say("leader_process_ended", leader)
                self._actions.append(EarlyTakeOver(czxid, has_ended=True))
                self._rest(now_s)
            case SuspicionRaised(czxid, stands) if (
                czxid == leader.czxid and self.phase is FailureDetectorPhase.SUSPECTING
            ):
                self._look_on(leader, now_s, stands=stands)
            case SuspicionChecked(look, stands) if (
                look.czxid == leader.czxid and self.phase is FailureDetectorPhase.SUSPECTING
            ):
                prompt = stands is not None and now_s - look.begun_s <= self.tick_s
                self._looks = self._looks + 1 if prompt else 0
                self._look_on(leader, now_s, stands=stands is not False)
            case Signal.TIME:
                self._look_at_the_time(leader, now_s)
            case _:
                pass

    def _on_heard(self, leader: LeaderZnode) -> None:
        if self._takes_over:
            self._actions.append(CancelTakeOver(leader.czxid))
            self._takes_over = False
        if self.phase is not FailureDetectorPhase.UNHEARD:
            self._slowest_s = max(self._slowest_s, self.silent_s)
        self.phase = FailureDetectorPhase.HEARD
        self.silent_s = 0.0
        self._ask(leader, hold_s=_TICKS_HELD * self.tick_s)

    def _ask(self, leader: LeaderZnode, hold_s: float = 0.0) -> None:
        self._ask_s = math.inf
        self._actions.append(AskLeader(leader, hold_s, self._asked_for_s))

    def _look_at_the_time(self, leader: LeaderZnode, now_s: float) -> None:
        if now_s >= self._ask_s:
            self._ask(leader)
        if self.phase is FailureDetectorPhase.RESTING and now_s >= self._rested_s:
            self.phase = FailureDetectorPhase.HEARD
        if (
            self.phase is FailureDetectorPhase.HEARD
            and self.silent_s >= self.timeout_s(now_s) * _TICKS_UNTIL_SUSPICION / TICKS
        ):
            self.phase, self._look_s, self._looks = FailureDetectorPhase.SUSPECTING, math.inf, 0
            self._actions.append(RaiseSuspicion(leader))
        if self.phase is FailureDetectorPhase.SUSPECTING and now_s >= self._look_s:
            self._look_s = math.inf
            self._actions.append(CheckSuspicion(leader.czxid, now_s))

    def _look_on(self, leader: LeaderZnode, now_s: float, *, stands: bool) -> None:
        if not stands:
            self._say("leader_has_zookeeper", leader, is_warning=False)
            self._rest(now_s)
        elif self._looks >= _PROMPT_LOOKS and self.silent_s >= self.timeout_s(now_s):
            self._say("leader_silent", leader)
            self._takes_over = True
            self.found_silent += 1
            self._actions.append(EarlyTakeOver(leader.czxid))
            self._rest(now_s)
        else:
            self._look_s = now_s + self.tick_s

    def _rest(self, now_s: float) -> None:
        self.phase, self._rested_s = FailureDetectorPhase.RESTING, now_s + self._session_s

    def _say(self, event: str, leader: LeaderZnode, *, is_warning: bool = True) -> None:
        fields = {"leader": leader.service_url, "epoch": leader.epoch, "silent_s": round(self.silent_s, 3)}
        self._actions.append(Say(event, fields, is_warning))
