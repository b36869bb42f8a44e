from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.agent.bundle_stats import bundle_loads, topic_loads, traffic
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.http_bodies import BrokerStats, TopicStats
from loadmanager.wire.validation import parse_model

A, B, C = (f"persistent://t/ns/{name}" for name in "abc")
COUNT = st.integers(0, 10**12)


def stats(at_s: float, *topics: TopicStats, pid: int = 1, start_timestamp: int = 5) -> BrokerStats:
    return BrokerStats(pid=pid, start_timestamp=start_timestamp, monotonic_s=at_s, topics=list(topics))


def counted(topic: str = A, messages_in: int = 0, bytes_in: int = 0, **others: int) -> TopicStats:
    return TopicStats(topic=topic, messages_in=messages_in, bytes_in=bytes_in, **others)


def test_rate_is_counter_growth_by_the_clock_of_the_broker() -> None:
    before = stats(100.0, counted(messages_in=10, messages_out=0, bytes_in=1_000, bytes_out=50))
    now = stats(102.0, counted(messages_in=30, messages_out=4, bytes_in=5_000, bytes_out=150, producers=2, consumers=3))
    loads = topic_loads(before, now)
    assert loads is not None
    load = loads[A]
    assert (load["msgRateIn"], load["msgRateOut"]) == (10.0, 2.0)
    assert (load["msgThroughputIn"], load["msgThroughputOut"]) == (2_000.0, 50.0)
    assert (load["producerCount"], load["consumerCount"]) == (2, 3)


def test_counters_of_a_reopened_topic_start_at_zero() -> None:
    before = stats(0.0, counted(messages_in=1_000, bytes_in=10_000))
    loads = topic_loads(before, stats(10.0, counted(messages_in=50, bytes_in=20_000)))
    assert loads is not None
    assert loads[A]["msgRateIn"] == 5.0
    assert loads[A]["msgThroughputIn"] == 2_000.0


def test_counters_of_a_new_topic_start_at_zero() -> None:
    loads = topic_loads(stats(0.0), stats(10.0, counted(messages_in=50)))
    assert loads is not None
    assert loads[A]["msgRateIn"] == 5.0


@pytest.mark.parametrize(
    ("age_s", "rate"), [(20.0, 5.0), (1.0, 10.0), (90.0, 100 / 60)], ids=["since it was open", "at least 10 s", "later"]
)
def test_topic_opened_within_the_interval_is_measured_since_it_was_opened(age_s: float, rate: float) -> None:
    for before in (stats(0.0), stats(0.0, counted(messages_in=1_000))):
        loads = topic_loads(before, stats(60.0, counted(messages_in=100)), {A: age_s})
        assert loads is not None
        assert loads[A]["msgRateIn"] == pytest.approx(rate)


def test_topic_granted_again_while_open_is_measured_over_the_interval() -> None:
    loads = topic_loads(stats(0.0, counted(messages_in=40)), stats(60.0, counted(messages_in=100)), {A: 20.0})
    assert loads is not None
    assert loads[A]["msgRateIn"] == 1.0


@pytest.mark.parametrize("previous", [None, stats(0.0, counted(), pid=2), stats(0.0, counted(), start_timestamp=6)])
def test_rates_are_zero_without_earlier_statistics_of_the_process(previous: BrokerStats | None) -> None:
    loads = topic_loads(previous, stats(10.0, counted(messages_in=50, producers=1)))
    assert loads is not None
    assert loads[A]["msgRateIn"] == 0.0
    assert loads[A]["producerCount"] == 1


@pytest.mark.parametrize("at_s", [10.0, 9.0, 10.001])
def test_no_load_is_computed_when_the_broker_clock_stands_still(at_s: float) -> None:
    assert topic_loads(stats(10.0, counted()), stats(at_s, counted(messages_in=10**9))) is None


def test_bundle_loads_are_sums_of_topics_and_unknown_topics_are_named() -> None:
    loads = topic_loads(
        stats(0.0),
        stats(1.0, counted(A, 10, 100, consumers=1), counted(B, 20, 200, producers=2), counted(C, 1, 1)),
    )
    assert loads is not None
    bundles, unmapped = bundle_loads(loads, {A: "t/ns/x", B: "t/ns/x"}.get)
    assert unmapped == [C]
    assert bundles == {
        "t/ns/x": {
            "msgRateIn": 30.0,
            "msgThroughputIn": 300.0,
            "msgRateOut": 0.0,
            "msgThroughputOut": 0.0,
            "consumerCount": 1,
            "producerCount": 2,
            "topics": 2,
            "cacheSize": 0,
        }
    }
    assert traffic(loads).in_bytes_per_s == 301.0


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ([{"topic": "not a topic"}], "topics.0.topic: topic 'not a topic'"),
        ([{"topic": A}, {"topic": A}], "topics: topic 'persistent://t/ns/a' is listed twice"),
        ([{"topic": A, "messagesIn": 2**63}], f"messages_in of {A!r}: expected at most 2^62"),
        ([{"topic": A, "producers": 10**400}], f"producers of {A!r}: expected at most 2^62"),
    ],
)
def test_impossible_statistics_are_rejected_by_name(topics: list[dict[str, object]], said: str) -> None:
    body = json.dumps({"pid": 1, "monotonicS": 0.0, "topics": topics}).encode()
    with pytest.raises(InvalidRecordError, match="stats") as refusal:
        parse_model(BrokerStats, body, "stats")
    assert said in str(refusal.value)


@given(
    before=st.dictionaries(st.sampled_from([A, B, C]), st.tuples(COUNT, COUNT, COUNT, COUNT)),
    now=st.dictionaries(st.sampled_from([A, B, C]), st.tuples(COUNT, COUNT, COUNT, COUNT)),
    elapsed_s=st.floats(0.01, 1e6),
)
def test_rates_are_between_zero_and_the_counters(
    before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]], elapsed_s: float
) -> None:
    loads = topic_loads(stats(50.0, *_topics(before)), stats(50.0 + elapsed_s + 0.01, *_topics(now)))
    assert loads is not None
    assert set(loads) == set(now)
    for topic, (messages_in, messages_out, bytes_in, bytes_out) in now.items():
        load = loads[topic]
        assert 0 <= load["msgRateIn"] * elapsed_s <= messages_in
        assert 0 <= load["msgRateOut"] * elapsed_s <= messages_out
        assert 0 <= load["msgThroughputIn"] * elapsed_s <= bytes_in
        assert 0 <= load["msgThroughputOut"] * elapsed_s <= bytes_out


@given(
    counts=st.dictionaries(st.sampled_from([A, B, C]), st.tuples(COUNT, COUNT, COUNT, COUNT)),
    mapping=st.dictionaries(st.sampled_from([A, B, C]), st.sampled_from(["t/ns/x", "t/ns/y"])),
)
def test_load_is_conserved(counts: dict[str, tuple[int, ...]], mapping: dict[str, str]) -> None:
    loads = topic_loads(stats(0.0), stats(2.0, *_topics(counts)))
    assert loads is not None
    bundles, unmapped = bundle_loads(loads, mapping.get)
    assert set(unmapped) == set(counts) - set(mapping)
    assert sum(entry["topics"] for entry in bundles.values()) == len(set(counts) & set(mapping))
    expected = sum(load["msgThroughputIn"] for topic, load in loads.items() if topic in mapping)
    assert sum(entry["msgThroughputIn"] for entry in bundles.values()) == pytest.approx(expected)


def _topics(counts: dict[str, tuple[int, ...]]) -> list[TopicStats]:
    return [
        TopicStats(topic=topic, messages_in=values[0], messages_out=values[1], bytes_in=values[2], bytes_out=values[3])
        for topic, values in counts.items()
    ]
