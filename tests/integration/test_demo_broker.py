"""The demo's broker as a process of its own, against a fake agent: it serves what it may, and nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.demo import BrokerProcess, a_broker, a_controlled_agent
from support.processes import ended
from support.waiting import eventually

from loadmanager.testing import ControlledAgent
from loadmanager.util.clock import now_s

TOPIC = "persistent://demo/orders/topic-000"


@pytest.fixture
async def agent() -> AsyncIterator[ControlledAgent]:
    async with a_controlled_agent() as agent:
        agent.owned.add(TOPIC)
        yield agent


@pytest.fixture
async def broker(agent: ControlledAgent, tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with a_broker(agent, tmp_path) as broker:
        assert await broker.publish(TOPIC, 5) == (200, broker.instance)
        yield broker


async def test_owned_topic_is_served_and_counted(broker: BrokerProcess) -> None:
    counted = (await broker.stats())[TOPIC]
    assert (counted["messagesIn"], counted["bytesIn"]) == (5, 50)
    assert (counted["messagesOut"], counted["bytesOut"]) == (5, 50)
    (opened,) = broker.serving_log("opened")
    assert opened["topic"] == TOPIC
    assert opened["instance"] == broker.instance
    assert opened["incarnation"] == 7


async def test_topic_of_another_broker_is_refused(broker: BrokerProcess) -> None:
    status, reason = await broker.publish("persistent://demo/orders/another")
    assert (status, "not the owner" in reason) == (409, True)
    assert (await broker.publish("orders"))[0] == 409
    assert len(broker.serving_log("opened")) == 1


async def test_nothing_is_served_without_a_lease(agent: ControlledAgent, tmp_path: Path) -> None:
    agent.valid_for_ms = None
    async with a_broker(agent, tmp_path) as broker:
        assert (await broker.publish(TOPIC))[0] == 409
        assert agent.questions == 0
        agent.valid_for_ms = 3_000
        leases = agent.leases
        await eventually(lambda: agent.leases > leases + 1)
        assert (await broker.publish(TOPIC))[0] == 200


async def test_serving_stops_without_a_lease(agent: ControlledAgent, broker: BrokerProcess) -> None:
    agent.valid_for_ms = None
    await eventually(lambda: broker.serving_log("closed"))
    assert broker.serving_log("closed")[0]["reason"] == "lapsed"
    assert await broker.stats() == {}


async def test_serving_stops_when_the_lease_lapses_and_the_agent_is_silent(tmp_path: Path) -> None:
    async with a_controlled_agent() as agent:
        agent.owned.add(TOPIC)
        agent.valid_for_ms = 1_500
        async with a_broker(agent, tmp_path) as broker:
            assert (await broker.publish(TOPIC))[0] == 200
            agent.url = ""
            another = tmp_path / "another-agent.json"
            another.write_text('{"url": "http://127.0.0.1:1"}')
            another.replace(tmp_path / "broker-agent-file.json")  # a broker never reads half a file
            before_s = now_s()
            await eventually(lambda: broker.serving_log("closed"))
            (closed,) = broker.serving_log("closed")
            assert closed["reason"] == "lapsed"
            assert closed["at_s"] <= before_s + 1.5
            assert (await broker.publish(TOPIC))[0] == 409


async def test_repeated_or_unknown_unload_succeeds(agent: ControlledAgent, broker: BrokerProcess) -> None:
    agent.owned.clear()
    await broker.agent.unload([TOPIC])
    await broker.agent.unload([TOPIC, "persistent://demo/orders/unknown"])
    (closed,) = broker.serving_log("closed")
    assert closed["reason"] == "unloaded"
    assert (await broker.publish(TOPIC))[0] == 409


async def test_unload_voids_an_open_answer(agent: ControlledAgent, broker: BrokerProcess) -> None:
    agent.may_answer.clear()
    other = "persistent://demo/orders/other"
    agent.owned.add(other)
    publishing = asyncio.create_task(broker.publish(other))
    await eventually(lambda: agent.answers_held == 1)
    agent.owned.clear()
    await broker.agent.unload([other])
    agent.may_answer.set()
    assert (await publishing)[0] == 409
    assert len(broker.serving_log("opened")) == 1


async def test_paused_broker_wakes_closed(agent: ControlledAgent, broker: BrokerProcess) -> None:
    broker.process.send_signal(signal.SIGSTOP)
    stopped_at_s = now_s()
    publishing = asyncio.create_task(broker.publish(TOPIC))
    agent.valid_for_ms = None
    await asyncio.sleep(3.5)  # the lease ends with time, and with nothing else
    broker.process.send_signal(signal.SIGCONT)
    assert (await publishing)[0] == 409
    await eventually(lambda: broker.serving_log("closed"))
    (closed,) = broker.serving_log("closed")
    assert closed["reason"] == "lapsed"
    assert closed["at_s"] <= stopped_at_s + 3
    assert closed["written_at_s"] > closed["at_s"]
    assert await broker.stats() == {}


async def test_lease_from_before_a_pause(agent: ControlledAgent, broker: BrokerProcess) -> None:
    agent.valid_for_ms = 1_000
    leases = agent.leases
    # A third of a second lies between two of them: by then no lease of 3 s is valid any more.
    await eventually(lambda: agent.leases > leases + 11)
    broker.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)
    broker.process.send_signal(signal.SIGCONT)
    await eventually(lambda: broker.serving_log("closed"))
    agent.valid_for_ms = 3_000
    leases = agent.leases
    await eventually(lambda: agent.leases > leases + 2)
    assert (await broker.publish(TOPIC))[0] == 200


async def test_sigterm_closes_everything(broker: BrokerProcess) -> None:
    broker.process.terminate()
    assert (await ended(broker.process))[0] == 0
    (closed,) = broker.serving_log("closed")
    assert closed["reason"] == "ended"
