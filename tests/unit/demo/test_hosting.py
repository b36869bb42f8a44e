from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmanager.demo.hosting import TopicHost
from loadmanager.demo.journal import DemoJournal, read_journal
from loadmanager.demo.lease import Lease
from loadmanager.demo.protocol import CloseReason, Frame, Kind
from loadmanager.demo.topics import MAX_RETAINED_BYTES, Channel, Topic
from loadmanager.wire.http import LeaseAnswer, OwnerAnswer

TOPIC = "persistent://demo/orders/t"
BUNDLE = "demo/orders/0x00000000_0xffffffff"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Agent:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.answer: OwnerAnswer | None = OwnerAnswer(owned=True, incarnation=7)
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def find_owner(self, topic: str) -> OwnerAnswer | None:
        del topic
        self.asked += 1
        answer = self.answer
        await self.may_answer.wait()
        return answer


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


class World:
    """A host with its agent, clock and serving log."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.agent = Agent()
        self.path = folder / "serving.jsonl"
        self.journal = DemoJournal(self.path)
        self.lease = Lease(self.clock)
        self.host = TopicHost("b:1#17", self.lease, self.agent, self.journal, self.clock)
        self.renew()

    def renew(self, incarnation: int = 7, valid_for_ms: int = 3_000, asked_at_s: float | None = None) -> None:
        answer = LeaseAnswer(broker_id="b:1", incarnation=incarnation, valid_for_ms=valid_for_ms)
        self.host.renew_lease(self.clock.now_s if asked_at_s is None else asked_at_s, answer)

    async def open(self) -> Topic:
        topic = await self.host.find_or_open(TOPIC)
        assert topic is not None
        return topic

    def log(self) -> list[dict[str, Any]]:
        return read_journal(self.path)

    def log_events(self) -> list[str]:
        return [record["event"] for record in self.log()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.journal.close()


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_granted_topic_is_opened_once_for_all_who_ask_at_once(world: World) -> None:
    topics = await asyncio.gather(*(world.host.find_or_open(TOPIC) for _ in range(5)))
    assert len({id(topic) for topic in topics}) == 1
    assert world.agent.asked == 1
    assert world.log_events() == ["opened"]


@pytest.mark.parametrize(
    "answer",
    [None, OwnerAnswer(owned=False, incarnation=7), OwnerAnswer(owned=True, incarnation=6)],
    ids=["no answer", "not owned", "owned by an earlier life of this broker"],
)
async def test_a_topic_is_not_opened_without_the_agents_word(world: World, answer: OwnerAnswer | None) -> None:
    world.agent.answer = answer
    assert await world.host.find_or_open(TOPIC) is None
    assert world.log() == []


async def test_the_lease_may_lapse_while_the_agent_thinks(world: World) -> None:
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    world.clock.now_s += 3
    world.agent.may_answer.set()
    assert await opening is None
    assert world.log() == []


async def test_an_unload_makes_an_outstanding_answer_void(world: World) -> None:
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    await world.host.unload(BUNDLE, [TOPIC])
    world.agent.answer = OwnerAnswer(owned=False, incarnation=7)
    world.agent.may_answer.set()
    assert await opening is None
    assert world.agent.asked == 2


async def test_a_topic_is_told_to_be_opening_from_before_the_question_until_it_is_open_or_given_up(
    world: World,
) -> None:
    assert world.host.opening() == []
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    assert (world.agent.asked, world.host.opening(), world.host.topics()) == (1, [TOPIC], [])
    await world.host.unload(BUNDLE, [TOPIC])
    assert world.host.opening() == [TOPIC], "it is asked for again"
    world.agent.answer = OwnerAnswer(owned=False, incarnation=7)
    world.agent.may_answer.set()
    assert await opening is None
    await settled()
    assert world.host.opening() == []


async def test_a_lapse_makes_an_outstanding_answer_void_even_if_the_lease_came_back(world: World) -> None:
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    world.clock.now_s += 3
    assert not world.host.may_serve()
    world.renew()
    world.agent.answer = OwnerAnswer(owned=False, incarnation=7)
    world.agent.may_answer.set()
    assert await opening is None
    assert world.agent.asked == 2


async def test_an_unload_of_another_topic_leaves_the_answer_good(world: World) -> None:
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    await world.host.unload(BUNDLE, ["persistent://demo/orders/other"])
    world.agent.may_answer.set()
    assert await opening is not None


async def test_a_topic_that_is_closed_right_after_it_was_opened_is_not_handed_out(world: World) -> None:
    world.agent.may_answer.clear()
    opening = asyncio.create_task(world.host.find_or_open(TOPIC))
    await settled()
    world.agent.may_answer.set()
    for _ in range(10):
        await asyncio.sleep(0)
        if world.host.topics():
            break
    assert not opening.done(), "opened, and nobody has been told yet"
    world.host.close_all(CloseReason.LEASE_LAPSED)
    assert await opening is None


async def test_a_lapsed_lease_closes_everything_and_serving_ended_with_the_lease(world: World) -> None:
    await world.open()
    world.clock.now_s += 10
    assert not world.host.may_serve()
    assert world.host.topics() == []
    closed = world.log()[-1]
    assert (closed["event"], closed["at_s"], closed["written_at_s"]) == ("closed", 103.0, 110.0)
    assert closed["reason"] == CloseReason.LEASE_LAPSED


async def test_a_topic_that_did_serve_after_its_lease_is_on_record_with_that_moment(world: World) -> None:
    topic = await world.open()
    world.clock.now_s += 5
    topic.accept(0, 1, b"x")
    world.clock.now_s += 5
    world.host.may_serve()
    assert next(record for record in world.log() if record["event"] == "closed")["at_s"] == 105.0


async def test_a_renewal_that_comes_after_the_lapse_does_not_keep_topics_open(world: World) -> None:
    await world.open()
    world.clock.now_s += 4
    world.renew()
    assert world.host.topics() == []
    assert world.host.may_serve()


async def test_a_lease_of_another_incarnation_closes_everything_first(world: World) -> None:
    await world.open()
    world.clock.now_s += 1
    world.renew(incarnation=8)
    assert world.host.topics() == []
    assert world.log()[-1]["incarnation"] == 7


async def test_a_renewal_in_time_keeps_topics_open(world: World) -> None:
    topic = await world.open()
    for _ in range(5):
        world.clock.now_s += 2
        world.renew()
    assert await world.host.find_or_open(TOPIC) is topic


async def test_an_unload_waits_until_a_subscriber_has_what_was_accepted(world: World) -> None:
    topic, link = await world.open(), Link()
    subscriber = Channel(link, 1)
    topic.attach_subscriber(subscriber)
    assert topic.accept(0, 3, b"abc")
    unload = asyncio.create_task(world.host.unload(BUNDLE, [TOPIC]))
    again = asyncio.create_task(world.host.unload(BUNDLE, [TOPIC]))
    await settled()
    assert not unload.done()
    assert not topic.accept(3, 1, b"d"), "nothing new while it drains"
    assert await world.host.find_or_open(TOPIC) is None
    topic.confirm(subscriber, 0, 3)
    await asyncio.gather(unload, again)
    assert link.kinds() == [Kind.MESSAGES, Kind.CLOSED]
    assert world.log_events() == ["opened", "closed", "unloaded", "unloaded"]


async def test_a_lapse_in_the_middle_of_an_unload_closes_at_once_and_says_what_was_dropped(world: World) -> None:
    topic, link = await world.open(), Link()
    topic.attach_subscriber(Channel(link, 1))
    topic.accept(0, 3, b"abc")
    unload = asyncio.create_task(world.host.unload(BUNDLE, [TOPIC]))
    await settled()
    world.clock.now_s += 3
    world.host.may_serve()
    await unload
    dropped = next(record for record in world.log() if record["event"] == "dropped")
    assert dropped["ranges"] == [[0, 3]]
    assert link.sent[-1].text == CloseReason.LEASE_LAPSED


async def test_the_end_of_a_lease_by_the_agents_word_closes_everything(world: World) -> None:
    await world.open()
    world.host.end_lease()
    assert world.host.topics() == []
    assert await world.host.find_or_open(TOPIC) is None


def a_topic() -> Topic:
    return Topic(TOPIC, 7, Clock())


def test_every_subscriber_gets_every_batch_and_a_late_one_what_is_retained() -> None:
    topic, early, late = a_topic(), Link(), Link()
    topic.attach_subscriber(Channel(early, 1))
    topic.accept(0, 2, b"ab")
    topic.attach_subscriber(Channel(late, 2))
    topic.accept(2, 1, b"c")
    assert [frame.first for frame in early.sent] == [0, 2]
    assert [frame.first for frame in late.sent] == [0, 2]
    assert topic.stats().messages_in == 3
    assert topic.stats().messages_out == 6


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
