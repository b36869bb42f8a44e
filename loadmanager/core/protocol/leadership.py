"""Who may lead: a passive decision, made again from scratch whenever something is known anew.

An election alone does not stop a leader that was paused and wakes up, so leadership rests on three things at once:

- the **epoch**, the version of one znode: winning raises it, and every write of a leader checks it;
- the **lease**: a leader trusts itself only while the newest answered heartbeat of its own session is young;
- the **session** in which it won: another session is another life.

Since the epoch makes an early take-over safe, a standby may be quick: it campaigns when there is no leader, and when
`loadmanager.core.protocol.failure_detector` has found that the leader's process has ended, or that it has been silent
for too long, without waiting for the old session to expire.

A node whose link to the store broke lately leaves others the first turn: when it is back it takes its own znode away,
and waits a little before it campaigns. Else one whose link flaps would be elected each time that it is up.

                    Campaign won
       FOLLOWING ────────────────▶ LEADING
           ▲                          │  lease lapsed, session changed, epoch moved on, leader znode not ours
           └────────── StepDown ──────┘
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Role(enum.StrEnum):
    FOLLOWING = "following"
    LEADING = "leading"


class StepDownReason(enum.StrEnum):
    LEASE_LAPSED = "lease_lapsed"
    SESSION_CHANGED = "session_changed"
    EPOCH_MOVED_ON = "epoch_moved_on"
    LEADER_ZNODE_GONE = "leader_znode_gone"
    INVARIANT_VIOLATED = "invariant_violated"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The leader znode as it was read: the session that holds it, and its `czxid`, which no other life of it has."""

    node_id: str
    service_url: str
    epoch: int
    session_id: int
    czxid: int
    life: str = ""
    """Life of its process, as `loadmanager.net.liveness` names it."""


@dataclass(frozen=True, slots=True)
class Term:
    """What a node won: an epoch, in one session."""

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything a node knows that bears on leadership, at one moment of the monotonic clock `now_s`.

    `view_is_fresh` says that leader and epoch were read after the last (re)connection. `ended_czxid` is the leader
    znode (by czxid) whose process has ended, `silent_czxid` the one whose leader a doubt stands against. `is_doubted`:
    somebody asks through the store whether this node leads.
    `open_since_s` is what `open_since` said last. Until `unsound_until_s` the own link is one that broke lately, and
    then the turn is with the others for `turn_s` from `open_since_s` on; 0 when there are none.
    """

    now_s: float
    node_id: str
    session_id: int
    lease_valid_until_s: float
    view_is_fresh: bool
    epoch_version: int
    leader: Sighting | None
    term: Term | None = None
    ended_czxid: int | None = None
    silent_czxid: int | None = None
    is_doubted: bool = False
    open_since_s: float | None = None
    unsound_until_s: float = -math.inf
    turn_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_s`, or before something changes (None)."""

    until_s: float | None


@dataclass(frozen=True, slots=True)
class Campaign:
    """Try to win epoch `epoch_version` + 1; `replaces_leader`: a leader znode is there and has to go with it. With
    `on_doubt` only while the doubt is there, which goes too.
    """

    epoch_version: int
    replaces_leader: bool
    on_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Vacate:
    """Take the leader znode away, which is left over from this node, if the epoch is still `epoch_version`."""

    epoch_version: int


@dataclass(frozen=True, slots=True)
class Reassure:
    """Take the doubt away if the epoch is still `epoch`: this node leads."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    reason: StepDownReason


Action = Wait | Campaign | Vacate | Reassure | StepDown


def next_action(known: Knowledge) -> Action:
    """What this node has to do about leadership now."""
    if known.term is not None:
        return _as_leader(known, known.term)
    return _as_follower(known)


def open_since(known: Knowledge) -> float | None:
    """Since when nobody has led, as far as this node has seen; None while somebody does."""
    if not known.view_is_fresh:
        return known.open_since_s
    if known.term is not None or not _is_open(known):
        return None
    return known.now_s if known.open_since_s is None else known.open_since_s


def find_end(
    term: Term,
    session_id: int,
    leader: Sighting | None,
    epoch_version: int,
    *,
    lease_is_valid: bool,
    view_is_fresh: bool,
) -> StepDownReason | None:
    """Why the term is over, None if it is not; asked for each lookup of a bundle without an owner."""
    if session_id != term.session_id:
        return StepDownReason.SESSION_CHANGED
    if not lease_is_valid:
        return StepDownReason.LEASE_LAPSED
    if not view_is_fresh or epoch_version < term.epoch:
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
        view_is_fresh=known.view_is_fresh,
    )
    if over is not None:
        return StepDown(over)
    return Reassure(term.epoch) if known.is_doubted else Wait(known.lease_valid_until_s)


def _as_follower(known: Knowledge) -> Action:
    if not known.view_is_fresh or known.now_s >= known.lease_valid_until_s:
        return Wait(None)
    leader = known.leader
    if leader is not None and not _is_open(known):
        return Wait(None)
    others_until_s = _others_turn_ends_s(known)
    if known.now_s >= others_until_s:
        on_doubt = leader is not None and not _is_gone(known, leader)
        return Campaign(known.epoch_version, replaces_leader=leader is not None, on_doubt=on_doubt)
    if leader is not None and _is_own(known, leader):
        return Vacate(known.epoch_version)
    return Wait(others_until_s)


def _others_turn_ends_s(known: Knowledge) -> float:
    """When this node may campaign, if nobody else has by then: at once with a sound link."""
    begun_s = known.now_s if known.open_since_s is None else known.open_since_s
    return min(known.unsound_until_s, begun_s + known.turn_s)


def _is_open(known: Knowledge) -> bool:
    """Whether nobody leads behind the leader znode, whatever it says.

    There is none, it is our own and we do not lead, no session holds it, the leader's process has ended, or it is
    silent.
    """
    leader = known.leader
    return leader is None or _is_gone(known, leader) or leader.czxid == known.silent_czxid


def _is_gone(known: Knowledge, leader: Sighting) -> bool:
    """Whether that is certain: then nobody need be asked."""
    return _is_own(known, leader) or leader.session_id == 0 or leader.czxid == known.ended_czxid


def _is_own(known: Knowledge, leader: Sighting) -> bool:
    return known.node_id == leader.node_id or leader.session_id == known.session_id
