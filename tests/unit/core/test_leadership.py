from __future__ import annotations

from dataclasses import replace

import pytest

from loadmanager.core.protocol.leadership import (
    Action,
    Campaign,
    Knowledge,
    LeaderZnode,
    Reassure,
    StepDown,
    StepDownReason,
    Term,
    Vacate,
    Wait,
    choose_action,
    open_since,
)

NOBODY_LEADS = Knowledge(
    now_s=100.0,
    node_id="n1:8080",
    session_id=7,
    lease_valid_until_s=110.0,
    mirror_is_fresh=True,
    epoch_version=4,
    leader=None,
)
OTHER = LeaderZnode("n2:8080", "http://n2:8080", epoch=4, session_id=8, czxid=40)
OURS = LeaderZnode("n1:8080", "http://n1:8080", epoch=4, session_id=7, czxid=41)
FOLLOWING = replace(NOBODY_LEADS, leader=OTHER)
LEADING = replace(NOBODY_LEADS, leader=OURS, term=Term(epoch=4, session_id=7))


FORMER = replace(OTHER, epoch=3)
LEFT_OVER = replace(OURS, session_id=6)
UNREADABLE = LeaderZnode("", "", epoch=0, session_id=7, czxid=41)
PLANTED = LeaderZnode("", "", epoch=0, session_id=0, czxid=41)
UNSOUND = replace(NOBODY_LEADS, unsound_until_s=108.0, turn_s=1.0, open_since_s=99.5)
"""The node's connection broke lately: it leaves others the first turn."""

JOIN, REPLACE = Campaign(4, replaces_leader=False), Campaign(4, replaces_leader=True)
ON_DOUBT = Campaign(4, replaces_leader=True, on_suspicion=True)


@pytest.mark.parametrize(
    ("knowledge", "action"),
    [
        pytest.param(NOBODY_LEADS, JOIN, id="nobody leads"),
        pytest.param(replace(NOBODY_LEADS, mirror_is_fresh=False), Wait(None), id="stale view"),
        pytest.param(replace(NOBODY_LEADS, now_s=110.0), Wait(None), id="lease just lapsed"),
        pytest.param(replace(NOBODY_LEADS, now_s=111.0), Wait(None), id="lease lapsed"),
        pytest.param(replace(FOLLOWING, now_s=110.0, ended_czxid=40), Wait(None), id="leader ended, lease lapsed"),
        pytest.param(FOLLOWING, Wait(None), id="somebody leads"),
        pytest.param(replace(FOLLOWING, ended_czxid=40), REPLACE, id="leader's process ended"),
        pytest.param(replace(FOLLOWING, ended_czxid=39), Wait(None), id="former leader's process ended"),
        pytest.param(replace(FOLLOWING, silent_czxid=40), ON_DOUBT, id="leader is silent"),
        pytest.param(replace(FOLLOWING, silent_czxid=39), Wait(None), id="former leader was silent"),
        pytest.param(replace(FOLLOWING, silent_czxid=40, ended_czxid=40), REPLACE, id="leader is silent and ended"),
        pytest.param(replace(FOLLOWING, is_suspected=True), Wait(None), id="doubt is for the leader"),
        pytest.param(replace(FOLLOWING, leader=LEFT_OVER), REPLACE, id="own znode of an earlier session"),
        pytest.param(replace(FOLLOWING, leader=UNREADABLE), REPLACE, id="unreadable znode of the own session"),
        pytest.param(replace(FOLLOWING, leader=PLANTED), REPLACE, id="znode of no session"),
        pytest.param(LEADING, Wait(110.0), id="leads until the lease ends"),
        pytest.param(replace(LEADING, leader=FORMER, epoch_version=3), Wait(110.0), id="view lags behind the election"),
        pytest.param(replace(LEADING, is_suspected=True), Reassure(4), id="doubted leader"),
        pytest.param(
            replace(LEADING, is_suspected=True, epoch_version=5),
            StepDown(StepDownReason.EPOCH_MOVED_ON),
            id="doubted leader of an old epoch",
        ),
        pytest.param(replace(LEADING, epoch_version=5, mirror_is_fresh=False), Wait(110.0), id="stale epoch"),
        pytest.param(
            replace(LEADING, leader=None, mirror_is_fresh=False), Wait(110.0), id="stale absence of the leader"
        ),
        pytest.param(UNSOUND, Wait(100.5), id="unsound"),
        pytest.param(replace(UNSOUND, leader=OURS), Vacate(4), id="unsound, own znode bars others"),
        pytest.param(replace(UNSOUND, leader=PLANTED), Wait(100.5), id="unsound, others can replace the znode"),
        pytest.param(replace(UNSOUND, now_s=100.5), JOIN, id="unsound, turn is over"),
        pytest.param(replace(UNSOUND, unsound_until_s=100.0), JOIN, id="sound again"),
        pytest.param(replace(NOBODY_LEADS, turn_s=1.0), JOIN, id="sound"),
        pytest.param(replace(NOBODY_LEADS, unsound_until_s=108.0), JOIN, id="unsound, no turn to leave"),
    ],
)
def test_next_action_of_a_node(knowledge: Knowledge, action: Action) -> None:
    assert choose_action(knowledge) == action


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (replace(LEADING, now_s=110.0), StepDownReason.LEASE_LAPSED),
        (replace(LEADING, session_id=9), StepDownReason.SESSION_CHANGED),
        (replace(LEADING, session_id=0, lease_valid_until_s=float("-inf")), StepDownReason.SESSION_CHANGED),
        (replace(LEADING, epoch_version=5), StepDownReason.EPOCH_MOVED_ON),
        (replace(LEADING, leader=None), StepDownReason.LEADER_ZNODE_GONE),
        (replace(LEADING, leader=replace(OURS, epoch=0)), StepDownReason.LEADER_ZNODE_GONE),
    ],
)
def test_leader_steps_down_with_a_reason(changed: Knowledge, reason: StepDownReason) -> None:
    assert choose_action(changed) == StepDown(reason)


def test_open_since_is_the_first_time_without_a_leader() -> None:
    assert open_since(NOBODY_LEADS) == 100.0
    assert open_since(replace(NOBODY_LEADS, open_since_s=97.0)) == 97.0
    assert open_since(replace(FOLLOWING, open_since_s=97.0)) is None
    assert open_since(replace(LEADING, open_since_s=97.0)) is None
    assert open_since(replace(FOLLOWING, open_since_s=97.0, mirror_is_fresh=False)) == 97.0, "it cannot be seen now"
