"""Rules about ownership questions, and about the statistics."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loadmanager.broker.conformance.rule_stage import RuleStage, rule
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    LateError,
    NotApplicableError,
    RuleRequirement,
    UnsettledError,
)
from loadmanager.broker.conformance.scripted_agent import Reply, lease, owned

_UNTIL_IT_ASKED_S = 0.2
"""Time for the second of two clients to reach the broker."""


@rule(
    "other-incarnation",
    "`owned: true` with an incarnation that is not the lease's: the topic stays closed.",
    RuleRequirement.PROBE,
)
async def other_incarnation(stage: RuleStage) -> None:
    topic = stage.topic("other-incarnation")
    await stage.calm()
    for other in (stage.incarnation - 1, stage.incarnation + 1):
        stage.own(topic, other)
        await stage.refused(topic, f"on an answer of incarnation {other} under a lease of {stage.incarnation}")
    await stage.open(topic)


@rule(
    "void-by-unload",
    "An owner answer is held back, an unload that names the topic is answered with 204, then the owner answer arrives:"
    " the topic stays closed until it was asked for again.",
    RuleRequirement.PROBE,
)
async def void_by_unload(stage: RuleStage) -> None:
    topic = stage.topic("void-by-unload")
    await stage.calm()
    async with stage.held_question(topic) as (question, client):
        await stage.broker.unload(topic)
        await stage.reply_in_vain(question, client, "the answer to a question that an unload had made void")
    stage.require_no_gap()
    await stage.open(topic)


@rule("void-by-lapse", "The same with the lease lapsing in between.", RuleRequirement.PROBE)
async def void_by_lapse(stage: RuleStage) -> None:
    topic = stage.topic("void-by-lapse")
    await stage.lapse()
    stage.agent.reply(await stage.fresh_lease_question(), lease(stage.incarnation, 2 * stage.pace.short_ms))
    async with stage.held_question(topic, stage.agent.valid_until_s) as (question, client):
        if question.asked_s >= stage.agent.valid_until_s:
            raise UnsettledError("the broker asked who owns the topic when its lease had lapsed already")
        await stage.lapse()
        await stage.granted(lease(stage.incarnation, stage.pace.calm_ms))
        await stage.reply_in_vain(question, client, "the answer to a question that the lapse of the lease made void")


@rule(
    "opened-once", "Two clients that ask for the same topic at the same time: it is opened once.", RuleRequirement.PROBE
)
async def opened_once(stage: RuleStage) -> None:
    """Check that two concurrent clients share one opening: a second one would reset the first client's counters."""
    await stage.calm()
    after = stage.topic("one-after-the-other")
    await stage.open(after)
    await stage.served(after)
    expected = await stage.broker.messages_in(after)
    together = stage.topic("opened-once")
    async with stage.held_question(together) as (_, client):
        second = asyncio.create_task(stage.attempt(together))
        try:
            await asyncio.wait([second], timeout=_UNTIL_IT_ASKED_S)
            stage.own(together)
            stage.agent.reply_to_all(owned(stage.incarnation))
            async with asyncio.timeout(stage.pace.timeout_s):
                served = [tried.served for tried in await asyncio.gather(client, second)]
        except TimeoutError:
            raise LateError(f"two clients that came together were not answered in {stage.pace.timeout_s:g} s") from None
        finally:
            second.cancel()
    counted = await stage.broker.messages_in(together)
    stage.require_no_gap()
    if not all(served):
        raise UnsettledError("of two clients that came together, one was refused")
    if not expected:
        raise UnsettledError("the statistics do not count what clients of --probe send (`messagesIn`)")
    if counted < expected:
        raise BrokenError(f"of two clients at once `messagesIn` has {counted}, of two in turn {expected}")


@rule(
    "broken-answers",
    "An answer that is cut off, not JSON, or has another status than 200 gives no lease and opens no topic, and the"
    " broker goes on.",
    RuleRequirement.PROBE,
)
async def broken_answers(stage: RuleStage) -> None:
    topic = stage.topic("broken-answers")
    stage.own(topic)
    await stage.lapse()
    for reply in _broken(lease(stage.incarnation, stage.pace.calm_ms)):
        stage.agent.reply(await stage.fresh_lease_question(), reply)
        await stage.refused(topic, f"on an answer for a lease that was {reply.shown}", times=2)
    await stage.calm()
    for reply in _broken(owned(stage.incarnation)):
        stage.agent.owners[topic] = reply
        await stage.refused(topic, f"on an answer about the topic that was {reply.shown}", times=1)
    await stage.open(topic)


def _broken(good: Reply) -> list[Reply]:
    return [
        replace(good, shown="cut off", is_cut=True),
        replace(good, shown="no JSON", body=b"<html>" + good.body, valid_for_ms=0),
        replace(good, shown="503 with the body of a 200", status=503),
        Reply("an empty object", 200, b"{}"),
    ]


_TRIES_BEFORE = 5
_BETWEEN_STATISTICS_S = 0.005


@rule(
    "opening-is-told",
    "If there is `opening`: an owner answer is held back, and the topic is in it. It stays there after the answer,"
    " until it is in `topics`, however long its opening takes.",
    RuleRequirement.PROBE,
)
async def opening_is_told(stage: RuleStage) -> None:
    """Check that a topic is listed while it is opened. A broker that closes unused topics may have closed it when the
    client hears that it was served: then only the pending question is checked.
    """
    topic, other = stage.topic("opening-is-told"), stage.topic("stays-open")
    await stage.calm()
    if (await stage.broker.stats()).opening is None:
        raise NotApplicableError("its statistics have no `opening`")
    await stage.open(other)
    stays_open = await stage.broker.names(other)
    async with stage.held_question(topic) as (question, client):
        await _require_listed(stage, topic, "while the question about it was outstanding")
        if not stays_open:
            return
        stage.own(topic)
        stage.agent.reply(question, owned(stage.incarnation))
        while not client.done():
            await _require_listed(stage, topic, "between the answer and its opening")
            await asyncio.wait([client], timeout=_BETWEEN_STATISTICS_S)
        if not client.result().served:
            raise UnsettledError(f"the client was not served: {client.result().reply}")
    await _require_listed(stage, topic, "when it was open")


async def _require_listed(stage: RuleStage, topic: str, when: str) -> None:
    stats = await stage.broker.stats()
    if topic not in (stats.opening or ()) and all(each.topic != topic for each in stats.topics):
        stage.require_no_gap()
        raise BrokenError(f"the topic was neither in `opening` nor in `topics` {when}")


@rule(
    "statistics",
    "The statistics name each open topic once; counters start at 0 when a topic is opened again; `monotonicS` never"
    " goes back while the process lives.",
    RuleRequirement.PROBE,
)
async def statistics(stage: RuleStage) -> None:
    """Check the statistics, including those read by all earlier rules."""
    topic = stage.topic("statistics")
    await stage.calm()
    await stage.open(topic)
    for _ in range(_TRIES_BEFORE):
        await stage.served(topic)
        await stage.broker.stats()
    before = await stage.broker.counted(topic)
    await stage.broker.unload(topic)
    await stage.served(topic)
    after = await stage.broker.counted(topic)
    if stage.broker.fault:
        raise BrokenError(stage.broker.fault)
    stage.require_no_gap()
    if not any(before):
        raise UnsettledError("the statistics do not count what clients of --probe do")
    if any(now > then > 0 for now, then in zip(after, before, strict=True)):
        raise BrokenError(f"a counter went on from {max(before)} when the topic was opened again")
