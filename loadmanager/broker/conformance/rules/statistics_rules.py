"""Rules about the statistics: what is open, what is being opened, and what is counted."""

from __future__ import annotations

import asyncio

from loadmanager.broker.conformance.rule_stage import RuleStage
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    NotApplicableError,
    RuleRequirement,
    UnsettledError,
    rule,
)
from loadmanager.broker.conformance.scripted_agent import owned

_TRIES_BEFORE = 5
_BETWEEN_STATISTICS_S = 0.005


@rule(
    "opening-is-told",
    "If there is `opening`: an owner answer is held back, and the topic is in it. It stays there after the answer,"
    " until it is in `topics`, however long its opening takes.",
    RuleRequirement.PROBE,
)
async def opening_is_told(stage: RuleStage) -> None:
    """A broker that closes what nobody uses may not have the topic any more when the client hears that it was served:
    of such a one only the outstanding question is looked at.
    """
    topic, other = stage.topic("opening-is-told"), stage.topic("stays-open")
    await stage.calm()
    if (await stage.broker.stats()).opening is None:
        raise NotApplicableError("its statistics have no `opening`")
    await stage.open(other)
    stays_open = await stage.broker.names(other)
    async with stage.held_question(topic) as (question, client):
        await _require_named(stage, topic, "while the question about it was outstanding")
        if not stays_open:
            return
        stage.own(topic)
        stage.agent.reply(question, owned(stage.incarnation))
        while not client.done():
            await _require_named(stage, topic, "between the answer and its opening")
            await asyncio.wait([client], timeout=_BETWEEN_STATISTICS_S)
        if not client.result().served:
            raise UnsettledError(f"the client was not served: {client.result().said}")
    await _require_named(stage, topic, "when it was open")


async def _require_named(stage: RuleStage, topic: str, when: str) -> None:
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
    """The statistics of all rules before count, too."""
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
