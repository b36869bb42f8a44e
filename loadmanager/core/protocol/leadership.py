"""Leader election rules: a pure function from a node's current knowledge to its next action.

An election alone does not stop a paused leader that wakes up, so leadership has three conditions:

- the fencing **epoch**, the version of one znode: winning increments it, and every write of a leader checks it;
- the **lease**: a leader acts only while the last answered heartbeat of its session is recent;
- the **session** in which it won.

Since the epoch makes an early take-over safe, a standby campaigns when there is no leader, and when
`loadmanager.core.protocol.failure_detector` finds that the leader's process has exited or is silent for too long,
without waiting for the old session to expire.

A node whose link to the store broke recently lets others campaign first: it deletes its own leader znode and waits a
short time. Otherwise a node with a flapping link would win whenever its link is up.

                    Campaign won
       FOLLOWING ────────────────▶ LEADING
           ▲                          │  lease lapsed, session changed, epoch moved on, leader znode not ours
           └────────── StepDown ──────┘

A follower may also Wait, or Vacate its own old znode. A suspected leader answers with Reassure, else with Wait.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class StepDownReason(enum.StrEnum):
    LEASE_LAPSED = "lease_lapsed"
    SESSION_CHANGED = "session_changed"
    EPOCH_MOVED_ON = "epoch_moved_on"
    LEADER_ZNODE_GONE = "leader_znode_gone"
    INVARIANT_VIOLATED = "invariant_violated"


@dataclass(frozen=True, slots=True)
class LeaderZnode:
    """The leader znode as read: its session, and its `czxid`, which is unique per creation."""

    node_id: str
    service_url: str
    epoch: int
    session_id: int
    czxid: int
    life: str = ""
    """Name of its process; see `loadmanager.net.liveness`."""


@dataclass(frozen=True, slots=True)
class Term:
    """A won election: its epoch and session."""

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Input of the election rules at `now_s` of the monotonic clock.

    `mirror_is_fresh`: leader and epoch were read after the last (re)connection. `ended_czxid` is the leader znode (by
    czxid) whose process has exited, `silent_czxid` the suspected one. `is_suspected`: a standby suspects this node.
    `open_since_s` is the last result of `open_since`. Until `unsound_until_s` this node's link counts as unstable: it
    waits until `turn_s` after `open_since_s`, so that others campaign first. `turn_s` is 0 when there are no others.
    """

    now_s: float
    node_id: str
    session_id: int
    lease_valid_until_s: float
    mirror_is_fresh: bool
    epoch_version: int
    leader: LeaderZnode | None
    term: Term | None = None
    ended_czxid: int | None = None
    silent_czxid: int | None = None
    is_suspected: bool = False
    open_since_s: float | None = None
    unsound_until_s: float = -math.inf
    turn_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until `until_s`, or until something changes (None)."""

    until_s: float | None


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to win epoch `epoch_version` + 1; `replaces_leader`: delete the existing leader znode. `on_suspicion`: only
    while the suspicion exists, and delete it too.
    """

    epoch_version: int
    replaces_leader: bool
    on_suspicion: bool = False


@dataclass(frozen=True, slots=True)
class Vacate:
    """Delete this node's leftover leader znode, if the epoch is still `epoch_version`."""

    epoch_version: int


@dataclass(frozen=True, slots=True)
class Reassure:
    """Delete the suspicion, if the epoch is still `epoch`: this node leads."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    reason: StepDownReason


Action = Wait | Campaign | Vacate | Reassure | StepDown


def choose_action(known: Knowledge) -> Action:
    """Return the action that a node takes next in the election."""
    if known.term is not None:
        return _as_leader(known, known.term)
    return _as_follower(known)


def open_since(known: Knowledge) -> float | None:
    """Return the time since which this node has seen no leader; None while there is one."""
    if not known.mirror_is_fresh:
        return known.open_since_s
    if known.term is not None or not _is_open(known):
        return None
    return known.now_s if known.open_since_s is None else known.open_since_s


def find_end(
    term: Term,
    session_id: int,
    leader: LeaderZnode | None,
    epoch_version: int,
    *,
    lease_is_valid: bool,
    mirror_is_fresh: bool,
) -> StepDownReason | None:
    """Return the reason why the term is over, None if it is not. Must be fast: called for each lookup of an unowned
    bundle.
    """
    if session_id != term.session_id:
        return StepDownReason.SESSION_CHANGED
    if not lease_is_valid:
        return StepDownReason.LEASE_LAPSED
    if not mirror_is_fresh or epoch_version < term.epoch:
        return None
    if epoch_version > term.epoch:
        return StepDownReason.EPOCH_MOVED_ON
    return None if leader is not None and leader.epoch == term.epoch else StepDownReason.LEADER_ZNODE_GONE


def _as_leader(known: Knowledge, term: Term) -> Action:
    over = find_end(
        term,
        known.session_id,
        known.leader,
        known.epoch_version,
        lease_is_valid=known.now_s < known.lease_valid_until_s,
        mirror_is_fresh=known.mirror_is_fresh,
    )
    if over is not None:
        return StepDown(over)
    return Reassure(term.epoch) if known.is_suspected else Wait(known.lease_valid_until_s)


def _as_follower(known: Knowledge) -> Action:
    if not known.mirror_is_fresh or known.now_s >= known.lease_valid_until_s:
        return Wait(None)
    leader = known.leader
    if leader is not None and not _is_open(known):
        return Wait(None)
    others_until_s = _others_turn_ends_s(known)
    if known.now_s >= others_until_s:
        on_suspicion = leader is not None and not _is_gone(known, leader)
        return Campaign(known.epoch_version, replaces_leader=leader is not None, on_suspicion=on_suspicion)
    if leader is not None and _is_own(known, leader):
        return Vacate(known.epoch_version)
    return Wait(others_until_s)


def _others_turn_ends_s(known: Knowledge) -> float:
    """Return the time from which this node may campaign: now, unless its link broke lately."""
    begun_s = known.now_s if known.open_since_s is None else known.open_since_s
    return min(known.unsound_until_s, begun_s + known.turn_s)


def _is_open(known: Knowledge) -> bool:
    """Return True if there is no working leader, whatever the leader znode says.

    That is: there is none, it is this node's own, no session holds it, its process has exited, or it is silent.
    """
    leader = known.leader
    return leader is None or _is_gone(known, leader) or leader.czxid == known.silent_czxid


def _is_gone(known: Knowledge, leader: LeaderZnode) -> bool:
    """Return True if the leader is certainly gone, so that no suspicion is needed."""
    return _is_own(known, leader) or leader.session_id == 0 or leader.czxid == known.ended_czxid


def _is_own(known: Knowledge, leader: LeaderZnode) -> bool:
    return known.node_id == leader.node_id or leader.session_id == known.session_id
