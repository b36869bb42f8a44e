"""Rules about the question who owns a topic: what opens it, and what makes an answer void."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loadmanager.broker.conformance.rule_stage import RuleStage
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    LateError,
    RuleRequirement,
    UnsettledError,
    rule,
)
from loadmanager.broker.conformance.scripted_agent import Reply, lease, owned

_UNTIL_IT_ASKED_S = 0.2
"""So long the second of two clients is given to have come to the broker, too."""


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
            async with asyncio.timeout(stage.pace.patience_s):
                served = [tried.served for tried in await asyncio.gather(client, second)]
        except TimeoutError:
            raise LateError(
                f"two clients that came together were not answered in {stage.pace.patience_s:g} s"
            ) from None
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
    "An answer that is cut off, no JSON, or has another status than 200 is none: no lease comes of it, it opens no"
    " topic, and the broker goes on.",
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
