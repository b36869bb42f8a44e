from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.hosting import Clock, Held, settled

from loadmanager.broker import Hosting
from loadmanager.broker import Topic as Hosted
from loadmanager.broker.agent_client import Named
from loadmanager.dev.demo.data_protocol import ChannelCloseReason, Frame, Kind
from loadmanager.dev.demo.demo_host import MAX_RETAINED_BYTES, Channel, DemoTopic, TopicHost
from loadmanager.dev.demo.evidence import DemoJournal, read_journal

TOPIC = "persistent://demo/orders/t"
BUNDLE = "demo/orders/0x00000000_0xffffffff"


class Link:
    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.congested = False

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def is_congested(self) -> bool:
        return self.congested

    def kinds(self) -> list[Kind]:
        return [frame.kind for frame in self.sent]


class DemoHosting(Held):
    """A host with its agent, clock and serving log."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "serving.jsonl"
        self.journal = DemoJournal(self.path)
        super().__init__(self._make)

    def _make(self, clock: Clock) -> Hosting:
        self.host = TopicHost("http://127.0.0.1:1", self.journal, clock=clock)
        self.host.instance = "b:1#17"
        return self.host.hosting

    async def open(self) -> DemoTopic:
        topic = await self.host.find_or_open(TOPIC)
        assert topic is not None
        return topic

    def unload(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.hosting._unload(Named(BUNDLE, (TOPIC,), None)))

    def log(self) -> list[dict[str, Any]]:
        return read_journal(self.path)

    def log_events(self) -> list[str]:
        return [record["event"] for record in self.log()]


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[DemoHosting]:
    demo = DemoHosting(tmp_path)
    async with demo.hosting:
        demo.lease()
        yield demo
    demo.journal.close()


async def test_a_topic_is_opened_once_and_recorded(demo: DemoHosting) -> None:
    topic = await demo.open()
    assert await demo.open() is topic
    assert demo.host.serves(topic)
    assert demo.log_events() == ["opened"]


async def test_what_may_not_be_opened_is_none(demo: DemoHosting) -> None:
    demo.agent.owned = False
    assert await demo.host.find_or_open(TOPIC) is None
    assert await demo.host.find_or_open("orders") is None
    assert demo.log() == []


async def test_a_lapsed_lease_closes_everything_and_serving_ended_with_the_lease(demo: DemoHosting) -> None:
    await demo.open()
    demo.clock.now_s += 10
    demo.pass_time(0)
    await settled()
    closed = demo.log()[-1]
    assert (closed["event"], closed["at_s"], closed["written_at_s"]) == ("closed", 103.0, 110.0)
    assert closed["reason"] == ChannelCloseReason.LEASE_LAPSED


async def test_a_topic_that_did_serve_after_its_lease_is_on_record_with_that_moment(demo: DemoHosting) -> None:
    topic = await demo.open()
    demo.clock.now_s += 5
    topic.accept(0, 1, b"x")
    demo.pass_time(5)
    await settled()
    assert next(record for record in demo.log() if record["event"] == "closed")["at_s"] == 105.0


async def test_a_topic_that_nobody_wants_any_more_is_closed(demo: DemoHosting) -> None:
    await demo.open()
    async with asyncio.timeout(10.0):
        await demo.hosting.close(TOPIC)
    assert [(record["event"], record.get("reason")) for record in demo.log()] == [("opened", None), ("closed", "left")]


async def test_an_unload_waits_until_a_subscriber_has_what_was_accepted(demo: DemoHosting) -> None:
    topic, link = await demo.open(), Link()
    subscriber = Channel(link, 1)
    topic.attach_subscriber(subscriber)
    assert topic.accept(0, 3, b"abc")
    unload = demo.unload()
    again = demo.unload()
    await settled()
    assert not unload.done()
    assert not demo.host.serves(topic), "nothing new while it drains"
    assert await demo.host.find_or_open(TOPIC) is None
    topic.confirm(subscriber, 0, 3)
    await asyncio.gather(unload, again)
    assert link.kinds() == [Kind.MESSAGES, Kind.CLOSED]
    assert demo.log_events() == ["opened", "closed"]


async def test_a_lapse_in_the_middle_of_an_unload_closes_at_once_and_says_what_was_dropped(demo: DemoHosting) -> None:
    topic, link = await demo.open(), Link()
    topic.attach_subscriber(Channel(link, 1))
    topic.accept(0, 3, b"abc")
    unload = demo.unload()
    await settled()
    demo.pass_time(3)
    await unload
    dropped = next(record for record in demo.log() if record["event"] == "dropped")
    assert dropped["ranges"] == [[0, 3]]
    assert link.sent[-1].text == ChannelCloseReason.LEASE_LAPSED


def a_topic() -> DemoTopic:
    return DemoTopic(Hosted(TOPIC, 7), Clock())


def test_every_subscriber_gets_every_batch_and_a_late_one_what_is_retained() -> None:
    topic, early, late = a_topic(), Link(), Link()
    topic.attach_subscriber(Channel(early, 1))
    topic.accept(0, 2, b"ab")
    topic.attach_subscriber(Channel(late, 2))
    topic.accept(2, 1, b"c")
    assert [frame.first for frame in early.sent] == [0, 2]
    assert [frame.first for frame in late.sent] == [0, 2]
    assert topic.hosted.messages_in == 3
    assert topic.hosted.messages_out == 6


def test_a_batch_is_retained_until_somebody_has_it() -> None:
    topic, link = a_topic(), Link()
    channel = Channel(link, 1)
    topic.attach_subscriber(channel)
    topic.accept(0, 2, b"ab")
    topic.detach(channel)
    assert topic.undelivered().as_lists() == [[0, 2]]
    again = Channel(link, 2)
    topic.attach_subscriber(again)
    topic.confirm(again, 0, 2)
    assert not topic.undelivered()
    assert topic.drained.is_set()


def test_a_topic_with_too_much_to_deliver_takes_nothing_more() -> None:
    topic, link = a_topic(), Link()
    channel = Channel(link, 1)
    topic.attach_subscriber(channel)
    assert topic.accept(0, 1, bytes(MAX_RETAINED_BYTES))
    assert not topic.accept(1, 1, b"x")
    topic.confirm(channel, 0, 1)
    assert topic.accept(1, 1, b"x")
    link.congested = True
    assert not topic.accept(2, 1, b"x")
