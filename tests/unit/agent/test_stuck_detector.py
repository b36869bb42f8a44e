from __future__ import annotations

import pytest
from support.clock import ManualClock
from support.fake_broker import FakeBroker

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.broker_watch import KEPT_S, NO_LEASE_S, REFUSED_S, STATISTICS, BrokerWatch, StuckDetector
from loadmanager.agent.grants import Grants
from loadmanager.core.domain.names import BrokerId
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import HttpClient
from loadmanager.wire.http_bodies import BrokerStats, TopicStats

TOPIC = "persistent://t/ns/a"
BUNDLE = "t/ns/0x00000000_0xffffffff"


def stats(*topics: str, opening: list[str] | None = None, opened: int | None = None, pid: int = 1) -> BrokerStats:
    open_ = [TopicStats(topic=topic) for topic in topics]
    return BrokerStats(pid=pid, monotonic_s=0.0, topics=open_, opening=opening, opened=opened)


@pytest.fixture
def detector() -> StuckDetector:
    detector = StuckDetector(longest_lease_s=3.0)
    detector.note_statistics(stats(opening=[], opened=0), 0, 0.0)
    return detector


def read(detector: StuckDetector, one: BrokerStats, granted: int, times: int = 1) -> str | None:
    for _ in range(times):
        detector.note_statistics(one, granted, 0.0)
    return detector.find_fault(0.0)


# Leases


def test_broker_that_stops_asking_for_leases_is_stuck_until_it_asks(detector: StuckDetector) -> None:
    assert detector.find_fault(1_000.0) is None, "it never asked: it may be another kind of broker"
    detector.note_lease_request(0.0)
    assert not detector.asks_for_no_lease(NO_LEASE_S)
    assert detector.asks_for_no_lease(NO_LEASE_S + 2)
    assert detector.find_fault(NO_LEASE_S + 2) == "it answers, and has asked for no lease for 12 s"
    detector.note_lease_request(NO_LEASE_S + 2)
    assert detector.find_fault(NO_LEASE_S + 2) is None


def test_allowed_silence_grows_with_the_lease_length() -> None:
    detector = StuckDetector(longest_lease_s=10.0)
    detector.note_lease_request(0.0)
    assert [detector.asks_for_no_lease(at_s) for at_s in (30.0, 30.1)] == [False, True]


async def test_suspended_agent_hears_its_broker_before_declaring_it_lost() -> None:
    clock, detector, grants = ManualClock(), StuckDetector(1.0), Grants(BrokerId("b:1"))
    async with FakeBroker() as broker, HttpClient() as http:
        watch = BrokerWatch(
            BrokerClient(http, broker.url),
            grants,
            AgentMetrics(grants.broker),
            detector,
            clock,
            stats_interval_s=1.0,
            probe_interval_s=1.0,
            silence_s=1.0,
            last_lease_at_s=lambda: None,
            on_change=lambda: None,
        )

        async def look(times: int) -> bool:
            for _ in range(times):
                await watch.look()
            return watch.process is not None

        detector.note_lease_request(clock())
        assert await look(1)
        clock.advance(60.0)
        assert await look(2)
        detector.note_lease_request(clock())
        assert await look(3)
        clock.advance(60.0)
        assert not await look(3)
        assert not await look(3), "it answers, and is not taken back for that"
        detector.note_lease_request(clock())
        assert await look(1)


# Topics


def test_granted_but_never_opened_topics_are_a_fault(detector: StuckDetector) -> None:
    idle = stats(opening=[])
    assert read(detector, idle, granted=1, times=STATISTICS - 1) is None
    assert read(detector, idle, granted=1) == "it was granted topics, and opens none"


@pytest.mark.parametrize(
    "sign",
    [stats(TOPIC, opening=[]), stats(opening=[TOPIC]), stats(opening=[], opened=1), stats(opening=None)],
    ids=["open", "opening", "opened since", "does not say"],
)
def test_sign_of_serving_ends_the_fault(detector: StuckDetector, sign: BrokerStats) -> None:
    idle = stats(opening=[], opened=0)
    assert read(detector, idle, granted=1, times=STATISTICS) is not None
    assert read(detector, sign, granted=2) is None
    assert read(detector, stats(opening=[], opened=sign.opened or 0), granted=2, times=STATISTICS) is None


def test_broker_that_closed_its_last_topic_is_not_stuck(detector: StuckDetector) -> None:
    assert read(detector, stats(TOPIC, opening=[]), granted=1) is None
    assert read(detector, stats(opening=[]), granted=1, times=10) is None


def test_fault_ends_after_a_while(detector: StuckDetector) -> None:
    read(detector, stats(opening=[]), granted=1, times=STATISTICS)
    assert detector.find_fault(KEPT_S) is not None
    assert detector.find_fault(KEPT_S + 1) is None


# Unloads


def test_refusing_to_close_a_bundle_for_a_minute_is_a_fault(detector: StuckDetector) -> None:
    for at_s in (0.0, 20.0, 40.0):
        detector.note_refusal(BUNDLE, at_s)
        assert detector.find_fault(at_s) is None
    detector.note_refusal(BUNDLE, REFUSED_S)
    assert detector.find_fault(REFUSED_S) == f"it has refused to close {BUNDLE} for 45 s"
    assert detector.find_fault(REFUSED_S + KEPT_S + 1) is None
    detector.note_closed(BUNDLE)
    assert detector.find_fault(REFUSED_S) is None


def test_refusals_of_different_moves_do_not_add_up(detector: StuckDetector) -> None:
    for at_s in (0.0, 600.0, 1_200.0):
        detector.note_refusal(BUNDLE, at_s)
    assert detector.find_fault(1_200.0) is None


def test_restarted_broker_is_not_stuck(detector: StuckDetector) -> None:
    detector.note_lease_request(0.0)
    detector.note_refusal(BUNDLE, 0.0)
    detector.note_refusal(BUNDLE, 25.0)
    detector.note_refusal(BUNDLE, 50.0)
    assert read(detector, stats(opening=[]), granted=1, times=STATISTICS) is not None
    assert read(detector, stats(opening=[], pid=2), granted=1) is None
    assert detector.find_fault(50.0) is None
