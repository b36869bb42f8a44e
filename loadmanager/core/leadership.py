"""Who may lead: a passive decision, made again from scratch whenever something is known anew.

An election alone does not stop a leader that was paused and wakes up, so leadership rests on three things at once:

- the **epoch**, the version of one znode: winning raises it, and every write of a leader checks it;
- the **lease**: a leader trusts itself only while the newest answered heartbeat of its own session is young;
- the **session** in which it won: another session is another life.

Since the epoch makes an early take-over safe, a standby may be quick: it campaigns when there is no leader, or when
the leader's process is gone (its port refuses connections), without waiting for the old session to expire.

                    Campaign won
       FOLLOWING ────────────────▶ LEADING
           ▲                          │  lease lapsed, session changed, epoch moved on, leader znode not ours
           └────────── StepDown ──────┘
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    FOLLOWING = "following"
    LEADING = "leading"


class StepDownReason(enum.StrEnum):
    LEASE_LAPSED = "lease_lapsed"
    SESSION_CHANGED = "session_changed"
    EPOCH_MOVED_ON = "epoch_moved_on"
    LEADER_ZNODE_GONE = "leader_znode_gone"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The leader znode as it was read: the session that holds it, and its `czxid`, which no other life of it has."""

    node_id: str
    service_url: str
    epoch: int
    session_id: int
    czxid: int


@dataclass(frozen=True, slots=True)
class Term:
    """What a node won: an epoch, in one session."""

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything a node knows that bears on leadership, at one moment of the monotonic clock `now_s`.

    `view_is_fresh` says that leader and epoch were read after the last (re)connection. `refused_czxid` is the leader
    znode (by czxid) whose process was found gone, `next_probe_s` when the leader's port is to be tried again.
    """

    now_s: float
    node_id: str
    session_id: int
    lease_valid_until_s: float
    view_is_fresh: bool
    epoch_version: int
    leader: Sighting | None
    term: Term | None = None
    refused_czxid: int | None = None
    next_probe_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_s`, or before something changes (None)."""

    until_s: float | None


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to win epoch `epoch_version` + 1; `replaces_leader`: a leader znode is there and has to go with it."""

    epoch_version: int
    replaces_leader: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to connect to the leader at `service_url`; the outcome is about the leader znode `czxid`."""

    service_url: str
    czxid: int


@dataclass(frozen=True, slots=True)
class StepDown:
    reason: StepDownReason


Action = Wait | Campaign | Probe | StepDown


def next_action(known: Knowledge) -> Action:
    """What this node has to do about leadership now."""
    if known.term is not None:
        return _as_leader(known, known.term)
    return _as_follower(known)


def _as_leader(known: Knowledge, term: Term) -> Action:
    if known.session_id != term.session_id:
        return StepDown(StepDownReason.SESSION_CHANGED)
    if known.now_s >= known.lease_valid_until_s:
        return StepDown(StepDownReason.LEASE_LAPSED)
    if known.view_is_fresh and known.epoch_version > term.epoch:
        return StepDown(StepDownReason.EPOCH_MOVED_ON)
    if known.view_is_fresh and known.epoch_version == term.epoch and not _is_ours(known, term):
        return StepDown(StepDownReason.LEADER_ZNODE_GONE)
    return Wait(known.lease_valid_until_s)


def _is_ours(known: Knowledge, term: Term) -> bool:
    return known.leader is not None and known.leader.epoch == term.epoch


def _as_follower(known: Knowledge) -> Action:
    if not known.view_is_fresh or known.now_s >= known.lease_valid_until_s:
        return Wait(None)
    leader = known.leader
    if leader is None:
        return Campaign(known.epoch_version, replaces_leader=False)
    if _is_left_over(known, leader) or leader.czxid == known.refused_czxid:
        return Campaign(known.epoch_version, replaces_leader=True)
    if known.now_s >= known.next_probe_s:
        return Probe(leader.service_url, leader.czxid)
    return Wait(known.next_probe_s)


def _is_left_over(known: Knowledge, leader: Sighting) -> bool:
    """Whether nobody leads behind this znode, whatever it says: it is our own and we do not, or no session holds it."""
    return known.node_id == leader.node_id or leader.session_id in {known.session_id, 0}
