"""The demo's broker as a process of its own, against a fake agent: it serves what it may, and nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.demo import BrokerProcess, HandDrivenClient, a_broker, a_client_of, a_controlled_agent
from support.processes import ended
from support.waiting import eventually

from loadmanager.dev.demo.data_protocol import ChannelCloseReason, Kind
from loadmanager.testing import ControlledAgent
from loadmanager.util.clock import now_s

TOPIC = "persistent://demo/orders/topic-000"
SUBSCRIBER, PRODUCER = 1, 2


@pytest.fixture
async def agent() -> AsyncIterator[ControlledAgent]:
    async with a_controlled_agent() as agent:
        agent.owned.add(TOPIC)
        yield agent


@pytest.fixture
async def broker(agent: ControlledAgent, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with a_broker(agent, tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[HandDrivenClient]:
    async with a_client_of(broker) as client:
        yield client


async def attach(client: HandDrivenClient) -> None:
    assert (await client.open(Kind.SUBSCRIBE, SUBSCRIBER, TOPIC)).kind is Kind.OPENED
    assert (await client.open(Kind.PRODUCE, PRODUCER, TOPIC)).kind is Kind.OPENED


async def test_an_owned_topic_is_served_and_counted(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await attach(client)
    accepted = await client.publish(PRODUCER, 0, 5)
    messages = client.others.pop()
    client.send(Kind.RECEIVED, SUBSCRIBER, messages.first, messages.messages)
    assert (accepted.kind, accepted.first, accepted.messages) == (Kind.ACCEPTED, 0, 5)
    assert (messages.kind, messages.channel, messages.first, messages.messages) == (Kind.MESSAGES, SUBSCRIBER, 0, 5)
    assert (await broker.stats())[TOPIC] == {
        "topic": TOPIC,
        "messagesIn": 5,
        "messagesOut": 5,
        "bytesIn": 50,
        "bytesOut": 50,
        "producers": 1,
        "consumers": 1,
    }
    (opened,) = broker.serving_log("opened")
    assert opened["topic"] == TOPIC
    assert opened["instance"] == broker.instance
    assert opened["incarnation"] == 7


async def test_a_topic_the_broker_does_not_own_is_refused(broker: BrokerProcess, client: HandDrivenClient) -> None:
    refused = await client.open(Kind.SUBSCRIBE, SUBSCRIBER, "persistent://demo/orders/another")
    assert (refused.kind, refused.text) == (Kind.REFUSED, ChannelCloseReason.NOT_OWNER)
    assert broker.serving_log("opened") == []


async def test_an_ownership_of_another_incarnation_is_refused(agent: ControlledAgent, client: HandDrivenClient) -> None:
    await attach(client)
    agent.may_answer.clear()
    other = "persistent://demo/orders/other"
    agent.owned.add(other)
    client.send(Kind.SUBSCRIBE, 9, body=other.encode())
    await eventually(lambda: agent.answers_held == 1)
    agent.incarnation = 8
    closed = await client.receive(Kind.CLOSED)
    assert closed.text == ChannelCloseReason.LEASE_LAPSED
    agent.owned.clear()
    agent.may_answer.set()
    assert (await client.receive(Kind.OPENED, Kind.REFUSED)).kind is Kind.REFUSED


async def test_nothing_is_served_without_a_lease(agent: ControlledAgent, tmp_path: Path) -> None:
    agent.valid_for_ms = None
    async with a_broker(agent, tmp_path) as broker, a_client_of(broker) as client:
        assert (await client.open(Kind.SUBSCRIBE, SUBSCRIBER, TOPIC)).kind is Kind.REFUSED
        assert agent.questions == 0
        agent.valid_for_ms = 3_000
        leases = agent.leases
        await eventually(lambda: agent.leases > leases + 1)
        assert (await client.open(Kind.SUBSCRIBE, SUBSCRIBER, TOPIC)).kind is Kind.OPENED


async def test_serving_stops_without_a_lease(
    agent: ControlledAgent, broker: BrokerProcess, client: HandDrivenClient
) -> None:
    await attach(client)
    agent.valid_for_ms = None
    assert (await client.receive(Kind.CLOSED)).text == ChannelCloseReason.LEASE_LAPSED
    assert await broker.stats() == {}


async def test_serving_stops_when_the_lease_lapses_and_the_agent_is_silent(tmp_path: Path) -> None:
    async with a_controlled_agent() as agent:
        agent.owned.add(TOPIC)
        agent.valid_for_ms = 1_500
        async with a_broker(agent, tmp_path) as broker, a_client_of(broker) as client:
            await attach(client)
            agent.url = ""
            another = tmp_path / "another-agent.json"
            another.write_text('{"url": "http://127.0.0.1:1"}')
            another.replace(tmp_path / "broker-agent-file.json")  # a broker never reads half a file
            before_s = now_s()
            assert (await client.receive(Kind.CLOSED)).text == ChannelCloseReason.LEASE_LAPSED
            (closed,) = broker.serving_log("closed")
            assert closed["at_s"] <= before_s + 1.5
            assert (await client.open(Kind.SUBSCRIBE, 3, TOPIC)).kind is Kind.REFUSED


async def test_unload_delivers_then_closes(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await attach(client)
    assert (await client.publish(PRODUCER, 0, 5)).kind is Kind.ACCEPTED
    unload = asyncio.create_task(broker.agent.unload([TOPIC]))
    await eventually(lambda: _is_draining(client))
    assert not unload.done()
    for messages in client.others:
        client.send(Kind.RECEIVED, SUBSCRIBER, messages.first, messages.messages)
    await unload
    assert (await client.receive(Kind.CLOSED)).text == ChannelCloseReason.UNLOADED
    (closed,) = broker.serving_log("closed")
    assert closed["reason"] == ChannelCloseReason.UNLOADED
    assert broker.serving_log("dropped") == []
    assert await broker.stats() == {}


async def _is_draining(client: HandDrivenClient) -> bool:
    return (await client.publish(PRODUCER, 5, 1)).kind is Kind.BUSY


async def test_unload_times_out_and_reports_dropped_messages(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await attach(client)
    assert (await client.publish(PRODUCER, 0, 5)).kind is Kind.ACCEPTED
    await broker.agent.unload([TOPIC])
    (dropped,) = broker.serving_log("dropped")
    assert dropped["ranges"] == [[0, 5]]


async def test_repeated_or_unknown_unload_succeeds(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await attach(client)
    await broker.agent.unload([TOPIC])
    await broker.agent.unload([TOPIC, "persistent://demo/orders/unknown"])
    assert len(broker.serving_log("closed")) == 1


async def test_unload_voids_an_open_answer(
    agent: ControlledAgent, client: HandDrivenClient, broker: BrokerProcess
) -> None:
    agent.may_answer.clear()
    client.send(Kind.SUBSCRIBE, SUBSCRIBER, body=TOPIC.encode())
    await eventually(lambda: agent.answers_held == 1)
    agent.owned.clear()
    await broker.agent.unload([TOPIC])
    agent.may_answer.set()
    assert (await client.receive(Kind.OPENED, Kind.REFUSED)).kind is Kind.REFUSED
    assert agent.questions == 2
    assert broker.serving_log("opened") == []


async def test_paused_broker_wakes_closed(
    agent: ControlledAgent, broker: BrokerProcess, client: HandDrivenClient
) -> None:
    await attach(client)
    assert (await client.publish(PRODUCER, 0, 1)).kind is Kind.ACCEPTED
    broker.process.send_signal(signal.SIGSTOP)
    stopped_at_s = now_s()
    client.send(Kind.PUBLISH, PRODUCER, 1, 1, b"x")
    agent.valid_for_ms = None
    await asyncio.sleep(3.5)  # the lease ends with time, and with nothing else
    client.others.clear()
    broker.process.send_signal(signal.SIGCONT)
    answer = await client.receive(Kind.CLOSED)
    assert answer.text == ChannelCloseReason.LEASE_LAPSED
    assert [frame.kind for frame in client.others if frame.first == 1] == []
    (closed,) = broker.serving_log("closed")
    assert closed["at_s"] <= stopped_at_s + 3
    assert closed["written_at_s"] > closed["at_s"]
    assert await broker.stats() == {}


async def test_lease_from_before_a_pause(
    agent: ControlledAgent, broker: BrokerProcess, client: HandDrivenClient
) -> None:
    await attach(client)
    agent.valid_for_ms = 1_000
    leases = agent.leases
    # A third of a second lies between two of them: by then no lease of 3 s is valid any more.
    await eventually(lambda: agent.leases > leases + 11)
    broker.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)
    broker.process.send_signal(signal.SIGCONT)
    assert (await client.receive(Kind.CLOSED)).text == ChannelCloseReason.LEASE_LAPSED
    agent.valid_for_ms = 3_000
    leases = agent.leases
    await eventually(lambda: agent.leases > leases + 2)
    assert (await client.open(Kind.SUBSCRIBE, 3, TOPIC)).kind is Kind.OPENED


async def test_sigterm_delivers_and_closes_everything(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await attach(client)
    broker.process.terminate()
    assert (await client.receive(Kind.CLOSED)).text == ChannelCloseReason.SHUTDOWN
    assert (await ended(broker.process))[0] == 0
    assert len(broker.serving_log("closed")) == 1


async def test_what_is_no_frame_costs_the_connection_and_not_the_broker(broker: BrokerProcess) -> None:
    async with a_client_of(broker) as client:
        client.send(Kind.ACCEPTED, 1)
        with pytest.raises(ConnectionError):
            await client.receive(Kind.OPENED)
    assert await broker.stats() == {}


async def test_messages_wait_for_the_next_subscriber(broker: BrokerProcess, client: HandDrivenClient) -> None:
    await client.open(Kind.PRODUCE, PRODUCER, TOPIC)
    assert (await client.publish(PRODUCER, 0, 3)).kind is Kind.ACCEPTED
    async with a_client_of(broker) as late:
        await late.open(Kind.SUBSCRIBE, SUBSCRIBER, TOPIC)
        messages = await late.receive(Kind.MESSAGES)
        assert (messages.first, messages.messages) == (0, 3)
