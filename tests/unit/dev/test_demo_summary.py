from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from loadmanager.dev.demo.demo_monitor import print_summary
from loadmanager.dev.demo.demo_summary import (
    DemoSummary,
    LeaderFailover,
    MessageSummary,
    NumberRanges,
    RateSample,
    TopicAccount,
    dropped_ranges,
    imbalance,
    percentile,
    summarize_gaps,
    summarize_messages,
)
from loadmanager.dev.demo.evidence import Overlap

T = "persistent://demo/orders/t"


def an_account(
    published: int, delivered: list[tuple[int, int]], duplicates: int = 0, **acknowledged: list[tuple[int, int]]
) -> TopicAccount:
    by_instance = {instance: NumberRanges(ranges) for instance, ranges in acknowledged.items()}
    return TopicAccount(T, published, by_instance, NumberRanges(delivered), duplicates)


def test_an_account_counts_duplicates_and_survives_json() -> None:
    account = TopicAccount(T, published=10)
    account.acknowledge("a", 0, 5)
    account.acknowledge("b", 5, 5)
    account.deliver(0, 5)
    account.deliver(3, 4)
    assert account.duplicates == 2
    assert account.undelivered("b").as_lists() == [[7, 10]]
    assert not account.undelivered("unknown")
    assert TopicAccount.of_record(json.loads(json.dumps(account.to_record()))) == account


def test_a_run_without_losses_leaves_nothing_open() -> None:
    account = an_account(10, [(0, 10)], 3, a=[(0, 6)], b=[(6, 10)])
    assert summarize_messages([account], [], {}) == MessageSummary(10, 10, 10, 3, 0, 0, 0, 0)


def test_what_a_killed_broker_took_and_did_not_deliver_is_lost_with_it() -> None:
    account = an_account(10, [(0, 4), (6, 10)], a=[(0, 6)], b=[(6, 10)])
    assert summarize_messages([account], ["a"], {}) == MessageSummary(10, 10, 8, 0, 2, 0, 0, 0)


def test_a_missing_message_that_nothing_explains_is_unaccounted_for() -> None:
    account = an_account(10, [(0, 9)], a=[(0, 5)], b=[(5, 10)])
    summary = summarize_messages([account], ["a"], {})
    assert summary.unaccounted == 1
    assert summary.lost_with_killed_broker == 0


def test_only_what_a_broker_says_it_dropped_is_dropped() -> None:
    account = an_account(10, [(0, 6)], a=[(0, 10)])
    records: list[dict[str, Any]] = [
        {"event": "dropped", "topic": T, "instance": "a", "ranges": [[5, 7]]},
        {"event": "dropped", "topic": T, "instance": "a", "ranges": [[8, 9]]},
        {"event": "closed", "topic": T, "instance": "a"},
    ]
    summary = summarize_messages([account], [], dropped_ranges(records))
    assert summary.dropped_by_broker == 2
    assert summary.unaccounted == 2


def test_what_was_published_and_never_acknowledged_is_counted_on_its_own() -> None:
    account = an_account(10, [(0, 7)], a=[(0, 6)])
    assert summarize_messages([account], [], {}) == MessageSummary(10, 6, 7, 0, 0, 0, 3, 0)


def test_a_delivered_message_that_nobody_published_is_unaccounted_for() -> None:
    assert summarize_messages([an_account(5, [(0, 8)], a=[(0, 5)])], [], {}).unaccounted == 3


@pytest.mark.parametrize("lost_in", [[], ["a"], ["a", "b"]])
def test_every_message_ends_in_exactly_one_place(lost_in: list[str]) -> None:
    accounts = [
        an_account(100, [(0, 30), (35, 60), (61, 90)], a=[(0, 40)], b=[(35, 95)]),
        an_account(50, [], a=[(0, 10)], c=[(5, 50)]),
    ]
    dropped = {(T, "b"): NumberRanges([(60, 61)]), (T, "a"): NumberRanges([(31, 32)])}
    summary = summarize_messages(accounts, lost_in, dropped)
    parts = summary.delivered + summary.lost_with_killed_broker + summary.dropped_by_broker
    assert parts + summary.never_acknowledged + summary.unaccounted == summary.published == 150


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (50, 99, 100)] == [50, 99, 100]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0


def test_gaps_are_told_apart_by_cause() -> None:
    def a_gap(cause: str, instance: str, seconds: float, topic: str = T) -> dict[str, object]:
        return {"topic": topic, "cause": cause, "from_instance": instance, "from_s": 5.0, "to_s": 5.0 + seconds}

    gaps = summarize_gaps(
        [
            a_gap("unloaded", "a", 0.1),
            a_gap("unloaded", "killed", 0.3),
            a_gap("disconnected", "killed", 4.0),
            a_gap("disconnected", "a", 1.0),
            a_gap("lease_lapsed", "a", 2.0, "other"),
        ],
        killed=["killed"],
    )
    assert sorted(gaps) == ["broker_killed", "disconnected", "lease_lapsed", "moved"]
    assert (gaps["moved"].gaps, gaps["moved"].topics, gaps["moved"].max_s) == (2, 1, 0.3)
    assert gaps["broker_killed"].p50_s == 4.0


def test_imbalance_is_the_busiest_over_the_mean_in_the_window_only() -> None:
    samples = [
        RateSample(1, {"a": 1000, "b": 0}),
        RateSample(2, {"a": 300, "b": 100}),
        RateSample(3, {"a": 100, "b": 100}),
        RateSample(4, {"a": 0, "b": 1000}),
    ]
    assert imbalance(samples, 2, 4) == round(400 / 300, 3)
    assert imbalance(samples, 5, 6) is None
    assert imbalance([RateSample(1, {"a": 0.0, "b": 0.0})], 0, 2) is None


def test_imbalance_leaves_out_brokers_that_were_not_there_all_the_time() -> None:
    samples = [RateSample(1, {"a": 100, "b": 100, "dead": 900}), RateSample(2, {"a": 100, "b": 100, "new": 1})]
    assert imbalance(samples, 0, 3) == 1.0


def a_summary() -> DemoSummary:
    return DemoSummary(
        was_completed=True,
        duration_s=90.0,
        brokers=5,
        topics=180,
        imbalance={"before": 2.5, "after_shedding": 1.2, "at_the_end": None},
        bundles_moved=12,
        gaps=summarize_gaps([{"topic": T, "cause": "unloaded", "from_instance": "a", "from_s": 1, "to_s": 2}], []),
        leader_failover=LeaderFailover(1, 2, 0.2),
        messages=MessageSummary(10, 10, 10, 0, 0, 0, 0, 0),
        two_owners=[],
        topics_without_owner=[],
        died_unexpectedly=[],
    )


def test_a_good_run_has_no_failures_and_prints_for_machines_and_people() -> None:
    summary = a_summary()
    assert summary.failures == []
    assert json.loads(json.dumps(summary.to_record()))["ok"] is True
    text = StringIO()
    print_summary(summary, Console(file=text, width=140))
    assert "every message is accounted for" in text.getvalue()
    assert "2.50" in text.getvalue()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"two_owners": [Overlap(T, "a", "b", 1.0, 0.5)]}, "two owners"),
        ({"topics_without_owner": [T]}, "without an owner"),
        ({"died_unexpectedly": ["broker-1"]}, "ended by itself"),
        ({"messages": MessageSummary(10, 10, 9, 0, 0, 0, 0, 1)}, "unaccounted"),
        ({"messages": MessageSummary(10, 9, 9, 0, 0, 0, 1, 0)}, "never taken"),
        ({"messages": MessageSummary(0, 0, 0, 0, 0, 0, 0, 0)}, "no message"),
        ({"leader_failover": None}, "took over"),
    ],
)
def test_what_must_not_happen_is_a_failure(change: dict[str, object], word: str) -> None:
    summary = replace(a_summary(), **change)  # type: ignore[arg-type]  # each case has its field's type
    (failure,) = summary.failures
    assert word in failure
    assert summary.to_record()["ok"] is False
    text = StringIO()
    print_summary(summary, Console(file=text, width=140))
    assert "FAILED" in text.getvalue()


def test_an_interrupted_run_need_not_have_come_to_the_leaders_end() -> None:
    summary = replace(
        a_summary(),
        was_completed=False,
        leader_failover=None,
        messages=MessageSummary(0, 0, 0, 0, 0, 0, 0, 0),
    )
    assert summary.failures == []


def printed(summary: DemoSummary) -> str:
    text = StringIO()
    print_summary(summary, Console(file=text, width=140))
    return text.getvalue()


def test_of_many_failures_a_few_are_shown_and_of_a_machine_that_is_too_busy_one_line() -> None:
    many = replace(a_summary(), topics_without_owner=[f"{T}-{i}" for i in range(100)], two_owners=[])
    assert len(many.failures) == 100
    assert printed(many).count("FAILED") == 6
    assert "and 95 more of the kind" in printed(many)
    busy = replace(many, machine_too_busy=True)
    assert printed(busy).count("FAILED") == 1
    assert "this machine is too busy" in printed(busy)
    unsafe = replace(busy, two_owners=[Overlap(T, "a", "b", 1.0, 0.5)])
    assert printed(unsafe).count("FAILED") == 2
    assert "had two owners" in printed(unsafe), "that is no matter of time"
    assert "too busy" not in printed(replace(a_summary(), machine_too_busy=True))
