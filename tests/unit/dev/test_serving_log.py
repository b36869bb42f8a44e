from __future__ import annotations

import math
from typing import Any

from loadmanager.dev.demo.evidence import (
    Overlap,
    ServingInterval,
    find_overlaps,
    serving_intervals,
    topics_without_owner,
)

T = "persistent://demo/orders/t"


def opened(at_s: float, instance: str, topic: str = T) -> dict[str, Any]:
    return {"event": "opened", "topic": topic, "instance": instance, "at_s": at_s}


def closed(at_s: float, instance: str, topic: str = T) -> dict[str, Any]:
    return {"event": "closed", "topic": topic, "instance": instance, "at_s": at_s}


def test_intervals_are_built_from_open_and_close_events() -> None:
    records = [
        opened(1, "a"),
        {"event": "unloaded", "bundle": "b", "topics": 1, "instance": "a", "at_s": 2},
        closed(2, "a"),
        opened(3, "b"),
        closed(4, "b"),
        opened(5, "a"),
    ]
    assert serving_intervals(records, {}) == [
        ServingInterval(T, 1, 2, "a"),
        ServingInterval(T, 3, 4, "b"),
        ServingInterval(T, 5, math.inf, "a"),
    ]


def test_interval_of_a_killed_process_ends_at_the_kill() -> None:
    assert serving_intervals([opened(1, "a")], {"a": 7.0}) == [ServingInterval(T, 1, 7.0, "a")]


def test_orderly_hand_over_has_no_overlap() -> None:
    records = [opened(1, "a"), closed(2, "a"), opened(2, "b"), opened(9, "c")]
    assert find_overlaps(serving_intervals(records, {"b": 8.5})) == []


def test_two_owners_at_once_are_found() -> None:
    records = [opened(1, "a"), opened(4, "b"), closed(6, "a"), closed(9, "b")]
    assert find_overlaps(serving_intervals(records, {})) == [Overlap(T, "a", "b", 4, 2)]


def test_unclosed_interval_overlaps_all_later_ones() -> None:
    records = [opened(1, "a"), opened(2, "b"), closed(3, "b"), opened(4, "c"), closed(5, "c")]
    assert find_overlaps(serving_intervals(records, {})) == [Overlap(T, "a", "b", 2, 1), Overlap(T, "a", "c", 4, 1)]


def test_new_owner_before_the_exit_of_the_old_one_is_found() -> None:
    records = [opened(1, "a"), opened(4, "b")]
    assert find_overlaps(serving_intervals(records, {"a": 4.001}))[0].first == "a"
    assert find_overlaps(serving_intervals(records, {"a": 4.0})) == []


def test_other_topic_and_same_process_are_no_overlap() -> None:
    records = [opened(1, "a"), opened(1, "b", "persistent://demo/orders/u"), closed(5, "a"), opened(5, "a")]
    assert find_overlaps(serving_intervals(records, {})) == []


def an_account(owner: str | None, sent_at_s: float = 10, taken_at_s: float = 10) -> dict[str, Any]:
    return {"topic": T, "owner": owner, "sent_at_s": sent_at_s, "taken_at_s": taken_at_s}


def test_topic_is_owned_when_client_and_broker_agree() -> None:
    intervals = serving_intervals([opened(1, "a"), closed(20, "a")], {})
    assert topics_without_owner([T], [an_account("a")], intervals) == []
    assert topics_without_owner([T], [an_account(None)], intervals) == [T]
    assert topics_without_owner([T], [an_account("b")], intervals) == [T]
    assert topics_without_owner([T], [an_account("a", 30, 31)], intervals) == [T]
    assert topics_without_owner([T], [], intervals) == [T]


def test_topic_moved_during_a_late_answer_is_owned() -> None:
    intervals = serving_intervals([opened(1, "a"), closed(20, "a"), opened(21, "b")], {})
    assert topics_without_owner([T], [an_account("a", 19, 25)], intervals) == []
