from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.demo import a_controlled_agent
from support.hosting import Clock, Held, settled
from support.servers import closed_port, end_app, serving
from support.waiting import eventually

from loadmanager.broker import CloseReason, Closing, Health, Hosting, Refusal, RefusedError, Topic
from loadmanager.broker.agent_client import Named, NotDoneError
from loadmanager.broker.contract import Close
from loadmanager.testing import ControlledAgent
from loadmanager.wire.http_bodies import BrokerStats

TOPIC, OTHER = "persistent://t/ns/one", "persistent://t/ns/other"
BUNDLE = "t/ns/0x00000000_0xffffffff"


class CallbackBroker(Held):
    """A broker that notes what it is called for; `on_open`, `on_close` wait for `may_open`, `may_close`."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.may_open, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.may_close.set()
        self.error: Exception | None = None
        super().__init__(self._make)

    def _make(self, clock: Clock) -> Hosting:
        return Hosting(
            "http://127.0.0.1:1",
            port=None,
            on_open=self._open,
            on_close=self._close,
            on_prepare=self._prepare,
            clock=clock,
        )

    async def _open(self, topic: Topic) -> None:
        self.calls.append(("open", topic.name))
        await self.may_open.wait()
        if self.error is not None:
            raise self.error

    async def _close(self, topic: Topic, closing: Closing) -> None:
        self.calls.append((closing.reason, topic.name))
        if closing.reason is not CloseReason.LAPSED:
            await self.may_close.wait()
        if self.error is not None:
            raise self.error

    async def _prepare(self, bundle: str, topics: Sequence[str]) -> None:
        self.calls.append((bundle, *topics))
        if self.error is not None:
            raise self.error

    def unload(self, *topics: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.hosting._unload(Named(BUNDLE, topics or (TOPIC,), "b2:8080")))


@pytest.fixture
async def broker() -> AsyncIterator[CallbackBroker]:
    broker = CallbackBroker()
    async with broker.hosting:
        broker.lease()
        yield broker
        broker.error = None
        broker.may_close.set()


async def test_awaited_topic_stays_open_until_closed(broker: CallbackBroker) -> None:
    topic = await broker.hosting.open(TOPIC)
    assert await broker.hosting.open(TOPIC) is topic
    assert broker.hosting.serving(TOPIC) is topic
    assert (topic.name, topic.incarnation) == (TOPIC, 7)
    await broker.hosting.close(TOPIC)
    assert broker.hosting.serving(TOPIC) is None
    assert broker.hosting.topics == []
    assert broker.calls == [("open", TOPIC), (CloseReason.LEFT, TOPIC)]


async def test_topic_held_by_blocks_is_closed_with_the_last_one(broker: CallbackBroker) -> None:
    async with broker.hosting.open(TOPIC) as topic:
        async with broker.hosting.open(TOPIC) as same:
            assert same is topic
        assert broker.hosting.serving(TOPIC) is topic
    assert broker.hosting.serving(TOPIC) is None
    async with broker.hosting.open(TOPIC) as anew:
        assert anew is not topic, "who comes while it is put away waits for that, and opens it anew"
    await settled()
    assert broker.calls == [("open", TOPIC), (CloseReason.LEFT, TOPIC)] * 2


async def test_end_of_a_block_does_not_close_a_kept_topic(broker: CallbackBroker) -> None:
    async with broker.hosting.open(TOPIC):
        await broker.hosting.open(TOPIC)
    await settled()
    assert broker.hosting.serving(TOPIC) is not None


async def test_concurrent_opens_share_one_opening(broker: CallbackBroker) -> None:
    topics = await asyncio.gather(*(broker.hosting.open(TOPIC) for _ in range(5)))
    assert len(set(map(id, topics))) == 1
    assert broker.agent.asked == [(TOPIC, 0)]
    assert broker.calls == [("open", TOPIC)]


async def test_topic_nobody_waits_for_is_closed_after_the_answer(broker: CallbackBroker) -> None:
    broker.agent.may_answer.clear()
    wanting = asyncio.create_task(broker.hosting._keep(TOPIC))
    await settled()
    wanting.cancel()
    await settled()
    broker.agent.may_answer.set()
    await settled()
    assert broker.hosting.topics == []
    assert broker.calls == [("open", TOPIC), (CloseReason.LEFT, TOPIC)]


async def test_cancelled_open_closes_the_topic(broker: CallbackBroker) -> None:
    broker.may_open.clear()
    wanting = asyncio.create_task(broker.hosting._keep(TOPIC))
    await settled()
    wanting.cancel()
    await settled()
    assert broker.hosting.topics == []


@pytest.mark.parametrize(
    ("owned", "refusal", "said"),
    [
        (False, Refusal.NOT_OWNER, f"{TOPIC}: not the owner: b2:8080 is"),
        (None, Refusal.NO_ANSWER, f"{TOPIC}: the agent gave no answer: no node answered"),
    ],
)
async def test_refusal_has_a_reason(
    broker: CallbackBroker,
    owned: bool | None,  # noqa: FBT001 - a parameter
    refusal: Refusal,
    said: str,
) -> None:
    broker.agent.owned = owned
    with pytest.raises(RefusedError) as refused:
        await broker.hosting.open(TOPIC)
    assert (refused.value.refusal, str(refused.value)) == (refusal, said)
    assert broker.calls == []


async def test_invalid_topic_name_is_a_value_error(broker: CallbackBroker) -> None:
    with pytest.raises(ValueError, match=r"topic 'orders': expected 'persistent://tenant/namespace/topic'"):
        await broker.hosting.open("orders")
    with pytest.raises(ValueError, match=r"topic domain 'http'"):
        async with broker.hosting.open("http://t/ns/one"):
            pass
    assert broker.agent.asked == []


async def test_error_of_on_open_reaches_every_caller(broker: CallbackBroker) -> None:
    broker.error = OSError("no such file")
    both = await asyncio.gather(broker.hosting.open(TOPIC), broker.hosting.open(TOPIC), return_exceptions=True)
    assert all(each is broker.error for each in both)
    assert broker.hosting.topics == []
    broker.error = None
    assert await broker.hosting.open(TOPIC)


async def test_topic_unloaded_while_opening_is_refused(broker: CallbackBroker) -> None:
    broker.may_open.clear()
    wanting = asyncio.create_task(broker.hosting._keep(TOPIC))
    await settled()
    await broker.unload()
    with pytest.raises(RefusedError, match="being closed"):
        await wanting
    assert broker.calls == [("open", TOPIC), (CloseReason.UNLOADED, TOPIC)]


async def test_unload_ends_when_on_close_returns(broker: CallbackBroker) -> None:
    topic = await broker.hosting.open(TOPIC)
    broker.may_close.clear()
    unload, again = broker.unload(), broker.unload()
    await settled()
    assert broker.hosting.serving(TOPIC) is None
    assert not unload.done()
    assert topic.closing == Closing(CloseReason.UNLOADED, BUNDLE, "b2:8080", 1)
    with pytest.raises(RefusedError, match="being closed"):
        await broker.hosting.open(TOPIC)
    broker.may_close.set()
    await asyncio.gather(unload, again)
    assert broker.calls.count((CloseReason.UNLOADED, TOPIC)) == 1


async def test_lapsed_lease_calls_on_close_again_as_urgent(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    broker.may_close.clear()
    unload = broker.unload()
    await settled()
    broker.pass_time(3.0)
    await unload
    assert broker.calls[1:] == [(CloseReason.UNLOADED, TOPIC), (CloseReason.LAPSED, TOPIC)]


async def test_broker_waking_without_a_lease_recovers(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    await broker.hosting.open(OTHER)
    broker.may_close.clear()
    unload = broker.unload()
    await settled()
    broker.clock.now_s += 4.0
    broker.may_close.set()
    await unload
    await settled()
    assert broker.calls[2:] == [(CloseReason.UNLOADED, TOPIC), (CloseReason.LAPSED, OTHER)]
    broker.lease()
    assert await broker.hosting.open(TOPIC)


async def test_on_close_that_swallows_its_cancellation_is_not_called_again() -> None:
    """`wait_for` of Python 3.11 swallows a cancellation that comes together with the result."""
    broker = CallbackBroker()
    calls: list[CloseReason] = []

    async def close(_: Topic, closing: Closing) -> None:
        calls.append(closing.reason)
        with contextlib.suppress(asyncio.CancelledError):
            await broker.may_close.wait()

    broker.hosting._on_close = close
    async with broker.hosting:
        broker.lease()
        await broker.hosting.open(TOPIC)
        broker.may_close.clear()
        unload = broker.unload()
        await settled()
        broker.pass_time(3.0)
        await unload
        assert (calls, broker.hosting.topics) == ([CloseReason.UNLOADED], [])


async def test_on_close_waits_for_the_end_of_a_cancelled_on_open() -> None:
    broker = CallbackBroker()
    calls: list[str] = []
    may_end = asyncio.Event()

    async def opens(_: Topic) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            calls.append("open ended")

    async def close(_: Topic, closing: Closing) -> None:
        calls.append(closing.reason)

    broker.hosting._on_open, broker.hosting._on_close = opens, close
    async with broker.hosting:
        broker.lease()
        wanting = asyncio.create_task(broker.hosting._keep(TOPIC))
        await settled()
        unload = broker.unload()
        await settled()
        broker.pass_time(3.0)
        await settled()
        may_end.set()
        await unload
        assert calls == ["open ended", CloseReason.LAPSED]
        await asyncio.wait([wanting])


async def test_cancelled_unload_does_not_block_other_unloads(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    broker.may_close.clear()
    first, second = broker.unload(), broker.unload()
    await settled()
    first.cancel()
    await settled()
    broker.may_close.set()
    await second
    assert broker.hosting.topics == []


async def test_failed_action_does_not_block_the_next_actions(
    broker: CallbackBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.hosting.open(TOPIC)
    await broker.hosting.open(OTHER)
    close = broker.hosting._close_topic

    def fails_once(wanted: Close) -> None:
        monkeypatch.undo()
        raise KeyError(wanted.topic)

    monkeypatch.setattr(broker.hosting, "_close_topic", fails_once)
    broker.pass_time(3.0)
    await settled()
    assert broker.calls[2:] == [(CloseReason.LAPSED, OTHER)]
    assert "an action of the contract failed: Close" in caplog.text
    close(Close(TOPIC, CloseReason.LAPSED))  # so that the fixture can end


async def test_unload_after_the_end_fails_while_a_topic_is_held() -> None:
    broker = CallbackBroker()
    async with broker.hosting:
        broker.lease()
        await broker.hosting.open(TOPIC)
    await broker.unload()
    broker.hosting._topics[TOPIC] = Topic(TOPIC, 7)  # as after an end that was cancelled
    with pytest.raises(NotDoneError):
        await broker.unload()


async def test_failed_on_close_is_reported_and_called_again(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    broker.error = OSError("disk full")
    with pytest.raises(Exception, match=f"{TOPIC}: OSError: disk full"):
        await broker.unload()
    broker.error = None
    await broker.unload()
    assert broker.hosting.topics == []


async def test_cancellation_raised_by_on_close_is_a_failure(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    broker.error = asyncio.CancelledError()  # type: ignore[assignment]  # what an author forgot to catch
    with pytest.raises(Exception, match="CancelledError"):
        await broker.unload()


async def test_resumed_process_serves_nothing_after_its_lease(broker: CallbackBroker) -> None:
    await broker.hosting.open(TOPIC)
    broker.clock.now_s += 3.0
    assert broker.hosting.serving(TOPIC) is None
    assert not broker.hosting.has_lease


async def test_first_request_of_a_prepared_topic_waits_for_its_owner(broker: CallbackBroker) -> None:
    await broker.hosting._prepare(Named(BUNDLE, (TOPIC,), None))
    assert broker.calls == [(BUNDLE, TOPIC)]
    await broker.hosting.open(TOPIC)
    await broker.hosting.open(OTHER)
    await broker.hosting.close(TOPIC)
    await broker.hosting.open(TOPIC)
    assert broker.agent.asked == [(TOPIC, 2_000), (OTHER, 0), (TOPIC, 0)]


async def test_prepared_topic_is_forgotten_after_30_s(broker: CallbackBroker) -> None:
    await broker.hosting._prepare(Named(BUNDLE, (TOPIC,), None))
    broker.clock.now_s += 31.0
    broker.lease()
    await broker.hosting.open(TOPIC)
    assert broker.agent.asked == [(TOPIC, 0)]
    await broker.hosting._prepare(Named(BUNDLE, (OTHER,), None))
    assert list(broker.hosting._prepared) == [OTHER]


async def test_error_of_on_prepare_is_reported(broker: CallbackBroker) -> None:
    broker.error = OSError("no room")
    with pytest.raises(Exception, match="OSError: no room"):
        await broker.hosting._prepare(Named(BUNDLE, (TOPIC,), None))


async def test_end_closes_everything_and_refuses_later_requests() -> None:
    broker = CallbackBroker()
    async with broker.hosting:
        broker.lease()
        await broker.hosting.open(TOPIC)
        held = asyncio.create_task(hold(broker.hosting))
        await settled()
        broker.agent.may_answer.clear()
        waiting = asyncio.create_task(broker.hosting._keep("persistent://t/ns/late"))
        await settled()
    assert broker.calls[2:] == [(CloseReason.ENDED, TOPIC), (CloseReason.ENDED, OTHER)]
    with pytest.raises(RefusedError, match="about to end"):
        await waiting
    with pytest.raises(RefusedError, match="about to end"):
        await broker.hosting.open(TOPIC)
    held.cancel()
    await asyncio.wait([held])


async def hold(hosting: Hosting) -> None:
    async with hosting.open(OTHER):
        await asyncio.Event().wait()


# Over HTTP


@contextlib.asynccontextmanager
async def a_broker(agent: ControlledAgent) -> AsyncIterator[tuple[Hosting, aiohttp.ClientSession]]:
    """With an agent, and what asks in its place."""
    async with Hosting(agent.url, version="1.4", health=lambda: Health(4.2, queue=3)) as hosting:
        await eventually(lambda: hosting.has_lease)
        async with aiohttp.ClientSession(hosting.url) as http:
            yield hosting, http


async def stats(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get("/loadmanager/v1/stats") as answer:
        body: dict[str, Any] = await answer.json()
        return body


async def test_statistics_satisfy_the_agent(agent: ControlledAgent) -> None:
    async with a_broker(agent) as (hosting, http):
        agent.owned.add(TOPIC)
        topic = await hosting.open(TOPIC)
        topic.messages_in, topic.bytes_out, topic.consumers = 5, 50, 1
        agent.may_answer.clear()
        opening = asyncio.create_task(hosting._keep(OTHER))
        await eventually(lambda: agent.answers_held)
        said = await stats(http)
        agent.may_answer.set()
        with pytest.raises(RefusedError):
            await opening
    believed = BrokerStats.model_validate_json(json.dumps(said))
    assert believed.pid == os.getpid()
    assert said["soleProcess"] is True
    assert said["opening"] == [OTHER]
    assert said["health"] == {"latencyMs": 4.2, "queue": 3}
    assert said["topics"] == [
        {
            "topic": TOPIC,
            "messagesIn": 5,
            "messagesOut": 0,
            "bytesIn": 0,
            "bytesOut": 50,
            "producers": 0,
            "consumers": 1,
        }
    ]


async def test_agent_unloads_and_prepares(agent: ControlledAgent) -> None:
    async with a_broker(agent) as (hosting, http):
        agent.owned.add(TOPIC)
        await hosting.open(TOPIC)
        body = {"bundle": BUNDLE, "topics": [TOPIC, OTHER], "destination": "b2:8080", "news": {}}
        for path in ("prepare", "unload", "unload"):
            async with http.post(f"/loadmanager/v1/{path}", json=body) as answer:
                assert answer.status == 204
        assert hosting.topics == []


async def test_failed_unload_is_500_with_the_reason(agent: ControlledAgent) -> None:
    async def fails(_topic: Topic, closing: Closing) -> None:
        if closing.reason is CloseReason.UNLOADED:
            raise OSError("disk full")

    async with Hosting(agent.url, on_close=fails) as hosting, aiohttp.ClientSession(hosting.url) as http:
        await eventually(lambda: hosting.has_lease)
        agent.owned.add(TOPIC)
        await hosting.open(TOPIC)
        async with http.post("/loadmanager/v1/unload", json={"bundle": BUNDLE, "topics": [TOPIC]}) as answer:
            assert (answer.status, await answer.json()) == (500, {"reason": f"{TOPIC}: OSError: disk full"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", 'expected {"bundle"'),
        ('{"topics":[]}', "bundle: expected a name"),
        ('{"bundle":"b","topics":"t"}', "topics: expected a list of names"),
        ('{"bundle":"b","topics":[1]}', "topics: expected a list of names"),
    ],
)
async def test_invalid_body_is_400_with_the_field(agent: ControlledAgent, body: str, reason: str) -> None:
    async with a_broker(agent) as (_, http), http.post("/loadmanager/v1/unload", data=body) as answer:
        assert answer.status == 400
        assert reason in (await answer.json())["reason"]


# Agents that are none


@pytest.mark.parametrize("address", ["", "127.0.0.1:9091", "https://agent:1", "unix:socket", "http://"])
def test_invalid_agent_address_is_rejected_at_once(address: str) -> None:
    with pytest.raises(ValueError, match=r"agent '.*': expected such as http://127\.0\.0\.1:9091"):
        Hosting(address)


async def test_missing_agent_is_logged_once(caplog: pytest.LogCaptureFixture, agent: ControlledAgent) -> None:
    caplog.set_level(logging.INFO, "loadmanager.broker")
    address = f"http://127.0.0.1:{closed_port()}"
    async with Hosting(lambda: address) as hosting:
        await eventually(lambda: "cannot be reached" in caplog.text)
        with pytest.raises(RefusedError, match=r"no lease: the agent at .* cannot be reached .*is this its agentLocal"):
            await hosting.open(TOPIC)
        address = agent.url
        await eventually(lambda: hosting.has_lease)
    assert caplog.text.count("cannot be reached") == 1
    assert "the agent gives a lease" in caplog.text


async def test_agent_address_may_be_unknown_at_first(caplog: pytest.LogCaptureFixture) -> None:
    def find() -> str:
        raise FileNotFoundError("no agent.json")

    async with Hosting(find):
        await eventually(lambda: "the agent cannot be reached (no agent.json)" in caplog.text)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, '{"reason":"not registered"}', "answered 503 .*not registered"),
        (404, "Not Found", "answered 404 'Not Found' to /loadmanager/v1/lease"),
        (200, "<html>", "gave no answer to /loadmanager/v1/lease: Expecting value"),
        (200, "[]", r"answered 200 '\[\]'"),
        (200, '{"validForMs":"3"}', "validForMs: expected a whole number"),
        (200, '{"validForMs":true}', "validForMs: expected a whole number"),
        (200, '{"validForMs":-1,"incarnation":1}', "validForMs: -1: expected 0 to"),
        (200, '{"validForMs":3000}', "incarnation: expected a whole number"),
        (200, " " * 1_100_000, "more than 1048576 bytes"),
        (302, "", "answered 302"),
    ],
)
async def test_wrong_server_gives_no_lease(caplog: pytest.LogCaptureFixture, status: int, body: str, said: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        headers = {"Location": "/"} if status == 302 else None
        return web.Response(status=status, text=body, headers=headers)

    async with serving([web.get("/loadmanager/v1/lease", answer)]) as url, Hosting(url) as hosting:
        await eventually(lambda: len(caplog.messages))
        with pytest.raises(RefusedError, match=said):
            await hosting.open(TOPIC)
        assert not hosting.has_lease


@pytest.fixture
async def agent() -> AsyncIterator[ControlledAgent]:
    async with a_controlled_agent() as agent:
        yield agent


async def test_example_of_the_contract_page_works(agent: ControlledAgent) -> None:
    page = (Path(__file__).parents[3] / "docs" / "broker-contract.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(shown.replace("http://127.0.0.1:9091", agent.url).replace("port=8090", "port=0"), found)
    agent.owned.add(TOPIC)
    async with found["a_broker"]() as hosting:
        await eventually(lambda: hosting.has_lease)
        assert await found["publish"](hosting, TOPIC, b"hello") == "stored"
        assert await found["publish"](hosting, OTHER, b"hello") == f"not here: {OTHER}: not the owner"
        assert found["stored"] == {TOPIC: [b"hello"]}
    assert found["stored"] == {}


async def test_agent_can_be_asked_through_a_unix_socket(tmp_path: Path) -> None:
    agent = ControlledAgent()
    agent.owned.add(TOPIC)
    app = web.Application()
    app.add_routes(agent.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "agent.sock")).start()
    async with Hosting(f"unix:{tmp_path / 'agent.sock'}", port=None) as hosting:
        await eventually(lambda: hosting.has_lease)
        assert await hosting.open(TOPIC)
    await end_app(runner)
