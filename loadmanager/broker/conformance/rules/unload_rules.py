"""Rules about unloads: 204 when the topics are closed, and not before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadmanager.broker.conformance.rule_stage import RuleStage, rule
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    LateError,
    NotApplicableError,
    RuleRequirement,
    UnsettledError,
)
from loadmanager.broker.conformance.scripted_agent import lease, owned, with_unknown_field

_CLIENTS = 4
_BETWEEN_REQUESTS_S = 0.001
_HANGING_S = 1.5
_BETWEEN_STATISTICS_S = 0.1
_UNTIL_STOPPED_S = (0.0, 0.01)
"""Pauses after an unload was sent: usually the broker has not received it yet, or is executing it."""


@rule("unload-unknown", "An unload that names topics which are not open, or unknown: 204.")
async def unload_unknown(stage: RuleStage) -> None:
    await stage.calm()
    await stage.broker.unload_once(stage.topic("never-heard-of"), stage.topic("unknown"))


@rule(
    "unload-twice",
    "An unload twice, at the same time and one after the other: 204 both times.",
    RuleRequirement.PROBE,
)
async def unload_twice(stage: RuleStage) -> None:
    topic = stage.topic("unload-twice")
    await stage.calm()
    await stage.open(topic)
    stage.disown(topic)
    await asyncio.gather(stage.broker.unload_once(topic), stage.broker.unload_once(topic))
    await stage.broker.unload_once(topic)
    await stage.refused(topic, "after two unloads were answered with 204")
    stage.require_no_gap()


@rule(
    "unload-under-load",
    "An unload while a client sends at full speed: no message is acknowledged after the 204.",
    RuleRequirement.PROBE,
)
async def unload_under_load(stage: RuleStage) -> None:
    """Check that no request sent after the 204 is served."""
    topic = stage.topic("unload-under-load")
    await stage.calm()
    await stage.open(topic)
    async with _many_clients(stage, topic) as requests:
        await _some_more(stage, requests)
        stage.disown(topic)
        closed_s = await stage.broker.unload(topic)
        await _some_more(stage, requests)
    late = [request for request in requests if request.served and request.sent_s >= closed_s]
    if late:
        raise BrokenError(
            f"a client was served that sent its request {late[0].sent_s - closed_s:.3f} s after the unload was answered"
            " with 204"
        )
    stage.require_no_gap()


@dataclass(frozen=True, slots=True)
class _Request:
    sent_s: float
    served: bool


@asynccontextmanager
async def _many_clients(stage: RuleStage, topic: str) -> AsyncIterator[list[_Request]]:
    """Run clients that send one request after the other; yield the answered requests."""
    requests: list[_Request] = []

    async def send() -> None:
        while True:
            sent_s = time.monotonic()
            requests.append(_Request(sent_s, (await stage.attempt(topic)).served))
            await asyncio.sleep(_BETWEEN_REQUESTS_S)

    clients = [asyncio.create_task(send()) for _ in range(_CLIENTS)]
    try:
        yield requests
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def _some_more(stage: RuleStage, requests: list[_Request]) -> None:
    """Wait until each client may have been answered twice. Do not wait for clients that are kept waiting."""
    enough, deadline_s = len(requests) + 3 * _CLIENTS, time.monotonic() + stage.refusal_limit_s
    while True:
        if len(requests) >= enough or time.monotonic() >= deadline_s:
            return
        await asyncio.sleep(_BETWEEN_REQUESTS_S)


@rule(
    "unload-hangs",
    "An unload of a topic that hangs in closing: no 204, and the statistics are still answered.",
    RuleRequirement.PROBE,
    RuleRequirement.HANG,
)
async def unload_hangs(stage: RuleStage) -> None:
    """A client of `--hang` delays the closing of the topic: meanwhile the broker must answer other calls."""
    topic = stage.topic("unload-hangs")
    await stage.calm()
    await stage.open(topic)
    async with stage.hanging(topic):
        stage.disown(topic)
        unload = asyncio.create_task(stage.broker.unload(topic))
        try:
            hung = await _hangs(stage, unload)
            if not hung and await stage.broker.names(topic):
                raise BrokenError("an unload was answered with 204, and the statistics still have the topic open")
        finally:
            unload.cancel()
            await asyncio.gather(unload, return_exceptions=True)
    await stage.refused(topic, "while it was being closed, or after that")
    await stage.broker.unload(topic)
    if not hung:
        raise UnsettledError("the client of --hang did not keep the broker from closing the topic")


async def _hangs(stage: RuleStage, unload: asyncio.Task[float]) -> bool:
    """Tell if the unload stays unanswered while statistics are answered."""
    until_s = time.monotonic() + _HANGING_S
    while not unload.done() and time.monotonic() < until_s:
        await stage.broker.stats()
        await asyncio.sleep(_BETWEEN_STATISTICS_S)
    return not unload.done()


@rule(
    "unload-stopped",
    "`SIGSTOP` in the middle of an unload, for longer than the lease, then `SIGCONT`: the unload is answered with 204,"
    " and under the next lease the topic is served again, and others are.",
    RuleRequirement.PROBE,
    RuleRequirement.PROCESS,
)
async def unload_stopped(stage: RuleStage) -> None:
    """The broker resumes with two things to do at once: finish the closing, and close without a lease."""
    for pause_s in _UNTIL_STOPPED_S:
        topic, other = stage.topic("unload-stopped"), stage.topic("not-unloaded")
        await stage.calm()
        await stage.open(topic)
        await stage.open(other)
        unload = asyncio.create_task(stage.broker.unload(topic))
        try:
            await asyncio.sleep(pause_s)
            with stage.stopped():
                await stage.lapse()
            await stage.granted(lease(stage.incarnation, stage.pace.calm_ms))
            await unload
        finally:
            unload.cancel()
            await asyncio.gather(unload, return_exceptions=True)
        await stage.served(topic)
        await stage.served(other)


@rule(
    "prepare",
    "If there is `prepare`: after it, only topics that were asked for and granted are served.",
    RuleRequirement.PROBE,
)
async def prepare(stage: RuleStage) -> None:
    """Check that a prepared topic stays closed on a "no", and that an unload voids its question."""
    topic = stage.topic("prepare")
    await stage.calm()
    stage.disown(topic)
    if not await stage.broker.prepare(topic):
        raise NotApplicableError("it answers that it does not know how to prepare")
    await stage.refused(topic, "on a topic that was to be prepared and is not owned")
    async with stage.held_question(topic) as (question, client):
        await stage.broker.unload(topic)
        await stage.reply_in_vain(question, client, "the answer about a prepared topic that an unload had made void")
    stage.require_no_gap()
    await stage.open(topic)


@rule("unknown-fields", "A field that it does not know, in any body, changes nothing.", RuleRequirement.PROBE)
async def unknown_fields(stage: RuleStage) -> None:
    topic = stage.topic("unknown-fields")
    stage.incarnation += 1
    await stage.granted(with_unknown_field(lease(stage.incarnation, stage.pace.calm_ms)))
    stage.agent.owners[topic] = with_unknown_field(owned(stage.incarnation))
    await stage.served(topic)
    stage.disown(topic)
    await stage.broker.unload_once(topic, notYetKnown={"a": [1]})
    await stage.refused(topic, "after an unload was answered with 204")


@rule("told-to-end", "Told to end (`SIGTERM`), it closes all topics and ends.", RuleRequirement.START)
async def told_to_end(stage: RuleStage) -> None:
    """The last rule: afterwards the broker is gone."""
    assert stage.process is not None
    stage.process.end()
    deadline_s = time.monotonic() + stage.pace.timeout_s
    while not stage.process.has_ended():
        if time.monotonic() >= deadline_s:
            raise LateError(f"the process had not ended {stage.pace.timeout_s:g} s after SIGTERM")
        await asyncio.sleep(_BETWEEN_STATISTICS_S)
