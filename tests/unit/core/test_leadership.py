"""What a node does about leadership, one situation at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmanager.core.leadership import (
    Campaign,
    Knowledge,
    Reassure,
    Sighting,
    StepDown,
    StepDownReason,
    Term,
    Vacate,
    Wait,
    next_action,
    open_since,
)

NOBODY_LEADS = Knowledge(
    now_s=100.0,
    node_id="n1:8080",
    session_id=7,
    lease_valid_until_s=110.0,
    view_is_fresh=True,
    epoch_version=4,
    leader=None,
)
OTHER = Sighting("n2:8080", "http://n2:8080", epoch=4, session_id=8, czxid=40)
OURS = Sighting("n1:8080", "http://n1:8080", epoch=4, session_id=7, czxid=41)
FOLLOWING = replace(NOBODY_LEADS, leader=OTHER)
LEADING = replace(NOBODY_LEADS, leader=OURS, term=Term(epoch=4, session_id=7))


def test_a_node_campaigns_for_the_next_epoch_when_nobody_leads() -> None:
    assert next_action(NOBODY_LEADS) == Campaign(4, replaces_leader=False)


@pytest.mark.parametrize(
    "ignorant",
    [
        replace(NOBODY_LEADS, view_is_fresh=False),
        replace(NOBODY_LEADS, now_s=110.0),
        replace(NOBODY_LEADS, now_s=111.0),
        replace(FOLLOWING, now_s=110.0, ended_czxid=40),
    ],
)
def test_a_node_that_cannot_trust_its_view_or_its_session_does_not_campaign(ignorant: Knowledge) -> None:
    assert next_action(ignorant) == Wait(None)


def test_a_follower_waits_while_somebody_leads() -> None:
    assert next_action(FOLLOWING) == Wait(None)


def test_a_follower_replaces_a_leader_whose_process_has_ended() -> None:
    assert next_action(replace(FOLLOWING, ended_czxid=40)) == Campaign(4, replaces_leader=True)


def test_the_end_of_a_former_leader_says_nothing_about_the_present_one() -> None:
    assert next_action(replace(FOLLOWING, ended_czxid=39)) == Wait(None)


def test_a_follower_replaces_a_leader_that_is_silent_while_the_doubt_stands() -> None:
    assert next_action(replace(FOLLOWING, silent_czxid=40)) == Campaign(4, replaces_leader=True, on_doubt=True)
    assert next_action(replace(FOLLOWING, silent_czxid=39)) == Wait(None), "that was a former one"
    assert next_action(replace(FOLLOWING, silent_czxid=40, ended_czxid=40)) == Campaign(4, replaces_leader=True)


def test_a_leader_takes_a_doubt_away_if_it_may_go_on() -> None:
    assert next_action(replace(LEADING, is_doubted=True)) == Reassure(4)
    assert next_action(replace(LEADING, is_doubted=True, epoch_version=5)) == StepDown(StepDownReason.EPOCH_MOVED_ON)
    assert next_action(replace(FOLLOWING, is_doubted=True)) == Wait(None), "it is for the leader"


def test_a_node_that_finds_itself_as_the_leader_without_a_term_replaces_what_its_former_life_left() -> None:
    left_over = replace(OURS, session_id=6)
    assert next_action(replace(FOLLOWING, leader=left_over)) == Campaign(4, replaces_leader=True)


def test_an_unreadable_leader_znode_that_hangs_on_the_own_session_is_replaced() -> None:
    unreadable = Sighting("", "", epoch=0, session_id=7, czxid=41)
    assert next_action(replace(FOLLOWING, leader=unreadable)) == Campaign(4, replaces_leader=True)


def test_a_leader_znode_that_hangs_on_no_session_is_replaced() -> None:
    planted = Sighting("", "", epoch=0, session_id=0, czxid=41)
    assert next_action(replace(FOLLOWING, leader=planted)) == Campaign(4, replaces_leader=True)


def test_a_leader_looks_again_when_its_lease_would_end() -> None:
    assert next_action(LEADING) == Wait(110.0)


def test_a_leader_that_won_before_its_view_saw_it_goes_on_leading() -> None:
    former = replace(OTHER, epoch=3)
    assert next_action(replace(LEADING, leader=former, epoch_version=3)) == Wait(110.0)


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
def test_a_leader_steps_down_and_says_why(changed: Knowledge, reason: StepDownReason) -> None:
    assert next_action(changed) == StepDown(reason)


@pytest.mark.parametrize("stale", [replace(LEADING, epoch_version=5), replace(LEADING, leader=None)])
def test_what_a_view_says_that_is_not_fresh_does_not_depose_a_leader_whose_lease_holds(stale: Knowledge) -> None:
    assert next_action(replace(stale, view_is_fresh=False)) == Wait(110.0)


def test_a_node_whose_link_broke_lately_leaves_others_the_first_turn() -> None:
    unsound = replace(NOBODY_LEADS, unsound_until_s=108.0, turn_s=1.0, open_since_s=99.5)
    assert next_action(unsound) == Wait(100.5)
    assert next_action(replace(unsound, leader=OURS)) == Vacate(4), "nobody else can lead while its own znode is there"
    planted = Sighting("", "", epoch=0, session_id=0, czxid=41)
    assert next_action(replace(unsound, leader=planted)) == Wait(100.5), "others can replace that one"
    assert next_action(replace(unsound, now_s=100.5)) == Campaign(4, replaces_leader=False)
    for sound in (replace(unsound, unsound_until_s=100.0), replace(NOBODY_LEADS, turn_s=1.0)):
        assert next_action(sound) == Campaign(4, replaces_leader=False)
    assert next_action(replace(NOBODY_LEADS, unsound_until_s=108.0)) == Campaign(4, replaces_leader=False)


def test_nobody_leads_from_the_moment_that_it_was_seen() -> None:
    assert open_since(NOBODY_LEADS) == 100.0
    assert open_since(replace(NOBODY_LEADS, open_since_s=97.0)) == 97.0
    assert open_since(replace(FOLLOWING, open_since_s=97.0)) is None
    assert open_since(replace(LEADING, open_since_s=97.0)) is None
    assert open_since(replace(FOLLOWING, open_since_s=97.0, view_is_fresh=False)) == 97.0, "it cannot be seen now"
