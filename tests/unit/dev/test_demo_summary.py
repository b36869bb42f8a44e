from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from loadmanager.dev.demo.demo_monitor import print_summary
from loadmanager.dev.demo.evidence import DemoSummary, Overlap, RateSample, imbalance, percentile, summarize_gaps

T = "persistent://demo/orders/t"


def test_percentiles_are_observed_values() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (50, 99, 100)] == [50, 99, 100]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0


def test_gaps_are_grouped_by_cause() -> None:
    def a_gap(before: str, after: str, seconds: float, topic: str = T) -> dict[str, object]:
        return {"topic": topic, "from_instance": before, "to_instance": after, "from_s": 5.0, "to_s": 5.0 + seconds}

    gaps = summarize_gaps(
        [a_gap("a", "b", 0.1), a_gap("b", "a", 0.3), a_gap("killed", "a", 4.0), a_gap("a", "a", 2.0, "other")],
        killed=["killed"],
    )
    assert sorted(gaps) == ["broker_killed", "moved", "same_broker"]
    assert (gaps["moved"].gaps, gaps["moved"].topics, gaps["moved"].max_s) == (2, 1, 0.3)
    assert gaps["broker_killed"].p50_s == 4.0


def test_imbalance_is_highest_over_mean_within_the_window() -> None:
    samples = [
        RateSample(1, {"a": 1000, "b": 0}),
        RateSample(2, {"a": 300, "b": 100}),
        RateSample(3, {"a": 100, "b": 100}),
        RateSample(4, {"a": 0, "b": 1000}),
    ]
    assert imbalance(samples, 2, 4) == round(400 / 300, 3)
    assert imbalance(samples, 5, 6) is None
    assert imbalance([RateSample(1, {"a": 0.0, "b": 0.0})], 0, 2) is None


def test_imbalance_ignores_brokers_present_only_part_of_the_time() -> None:
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
        gaps=summarize_gaps([{"topic": T, "from_instance": "a", "to_instance": "b", "from_s": 1, "to_s": 2}], []),
        leader_failover_s=0.2,
        messages=10,
        two_owners=[],
        topics_without_owner=[],
        died_unexpectedly=[],
    )


def test_good_run_has_no_failures() -> None:
    summary = a_summary()
    assert summary.failures == []
    assert json.loads(json.dumps(summary.to_record()))["ok"] is True
    assert "No topic ever had two owners" in printed(summary)
    assert "2.50" in printed(summary)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"two_owners": [Overlap(T, "a", "b", 1.0, 0.5)]}, "two owners"),
        ({"topics_without_owner": [T]}, "without an owner"),
        ({"died_unexpectedly": ["broker-1"]}, "ended by itself"),
        ({"messages": 0}, "no message"),
        ({"leader_failover_s": None}, "took over"),
    ],
)
def test_violated_expectation_is_a_failure(change: dict[str, object], word: str) -> None:
    summary = replace(a_summary(), **change)  # type: ignore[arg-type]  # each case has its field's type
    (failure,) = summary.failures
    assert word in failure
    assert summary.to_record()["ok"] is False
    assert "FAILED" in printed(summary)


def test_interrupted_run_does_not_need_a_failover() -> None:
    assert replace(a_summary(), was_completed=False, leader_failover_s=None, messages=0).failures == []


def printed(summary: DemoSummary) -> str:
    text = StringIO()
    print_summary(summary, Console(file=text, width=140))
    return text.getvalue()


def test_only_some_of_many_failures_are_shown() -> None:
    many = replace(a_summary(), topics_without_owner=[f"{T}-{i}" for i in range(100)])
    assert len(many.failures) == 100
    assert printed(many).count("FAILED") == 6
    assert "95 more" in printed(many)
    assert "a longer --duration" in printed(many)
    unsafe = replace(many, two_owners=[Overlap(T, "a", "b", 1.0, 0.5)])
    assert "had two owners" in printed(unsafe), "the worst comes first"
