"""Rules about the lease: nothing is served without one, on the broker's own clock."""

from __future__ import annotations

import asyncio
import time

from loadmanager.broker.conformance.rule_stage import RuleStage, rule
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    NotApplicableError,
    RuleRequirement,
    UnsettledError,
)
from loadmanager.broker.conformance.scripted_agent import lease

_LONGER = (1, 2, 4, 8, 16)
"""Factors of a short lease by attempt: a slow broker needs time to open a topic under it."""

_BETWEEN_TRIES_S = 0.01


@rule("without-agent", "Without an agent it starts, serves nothing, and does not crash.", RuleRequirement.PROBE)
async def without_agent(stage: RuleStage) -> None:
    """The only rule that runs before the agent's port is open."""
    await stage.broker.stats()
    await stage.refused(stage.topic("without-agent"), "although there is no agent yet")
    await stage.open_port()
    await stage.wait_for_lease_question(0)
    await stage.broker.stats()


@rule("serves", "With a lease and `owned: true` a topic is opened and served.", RuleRequirement.PROBE)
async def serves(stage: RuleStage) -> None:
    topic = stage.topic("serves")
    await stage.calm()
    await stage.open(topic)
    named, begin = await stage.broker.names(topic), len(stage.agent.questions)
    await stage.served(topic)
    if not named and stage.agent.first_about(topic, begin) is None:
        raise BrokenError(
            "the statistics do not have a topic among `topics` that clients were served on before and after"
        )


@rule(
    "lease-lapses",
    "A lease with `validForMs: 300` that is not renewed: nothing is served 300 ms after the request was **sent**.",
    RuleRequirement.PROBE,
)
async def lease_lapses(stage: RuleStage) -> None:
    topic = stage.topic("lease-lapses")
    stage.own(topic)
    for times in _LONGER:
        if await _is_served_under(stage, topic, times * stage.pace.short_ms):
            break
    else:
        raise UnsettledError(f"no client was served in time under a lease of {times * stage.pace.short_ms} ms")
    await stage.lapse()
    await stage.refused(topic, "after the lease had lapsed")
    stage.disown(topic)
    await stage.granted(lease(stage.incarnation, stage.pace.calm_ms))
    await stage.refused(topic, "although the lease had lapsed since the topic was opened: it was to be asked for again")


async def _is_served_under(stage: RuleStage, topic: str, valid_for_ms: int) -> bool:
    """Tell if a client is served under one lease once all earlier ones have lapsed."""
    await stage.lapse()
    stage.agent.reply(await stage.fresh_lease_question(), lease(stage.incarnation, valid_for_ms))
    while (left_s := stage.agent.valid_until_s - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left_s):
                if (await stage.attempt(topic)).served:
                    return True
        except TimeoutError:
            return False
        await asyncio.sleep(_BETWEEN_TRIES_S)
    return False


@rule(
    "late-lease",
    "The answer to a lease request is held back for longer than its `validForMs`: it never becomes valid.",
    RuleRequirement.PROBE,
)
async def late_lease(stage: RuleStage) -> None:
    topic = stage.topic("late-lease")
    stage.own(topic)
    await stage.lapse()
    question = await stage.fresh_lease_question()
    await asyncio.sleep(2 * stage.pace.short_ms / 1000)
    if question.is_given_up:
        raise UnsettledError("the broker gave the question for a lease up before it was answered")
    stage.agent.reply(question, lease(stage.incarnation, stage.pace.short_ms))
    await stage.refused(topic, "under a lease whose answer came after it had lapsed")


@rule(
    "stopped",
    "`SIGSTOP` for twice the lease, then `SIGCONT`, with clients sending all the time: no message is acknowledged"
    " between the wake-up and the next valid lease.",
    RuleRequirement.PROBE,
    RuleRequirement.PROCESS,
)
async def stopped(stage: RuleStage) -> None:
    """Answer a lease question while the process is stopped, so that it resumes with the answer in its socket."""
    topic = stage.topic("stopped")
    await stage.calm()
    await stage.open(topic)
    question = await stage.fresh_lease_question()
    with stage.stopped():
        stage.agent.reply(question, lease(stage.incarnation, stage.pace.calm_ms))
        clients = [asyncio.create_task(stage.attempt(topic)) for _ in range(3)]
        await stage.lapse()
        await asyncio.sleep(stage.pace.calm_ms / 1000)
        if any(client.done() and client.result().served for client in clients):
            raise UnsettledError("a client was served while the process was stopped, by another process then")
    done, waiting = await asyncio.wait(clients, timeout=stage.pace.refusal_s)
    for client in waiting:
        client.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for client in done:
        if client.result().served:
            raise BrokenError(f"a client that came while the process was stopped was served: {client.result().reply}")
    await stage.refused(topic, "after the process woke up, and before it was given another lease")


@rule(
    "sole-process",
    "If there is `soleProcess`: while the process `pid` is stopped nobody is served, also under a valid lease.",
    RuleRequirement.PROBE,
    RuleRequirement.PROCESS,
)
async def sole_process(stage: RuleStage) -> None:
    """The leader gives the bundles of this process away as soon as it exits."""
    topic = stage.topic("sole-process")
    await stage.calm()
    if not (await stage.broker.stats()).sole_process:
        raise NotApplicableError("its statistics have no `soleProcess: true`")
    await stage.open(topic)
    with stage.stopped():
        await stage.refused(topic, "while the process was stopped that is said to be the only one that serves", times=1)


@rule(
    "incarnation-changes",
    "A lease with another incarnation: all topics are closed before anything is served under it.",
    RuleRequirement.PROBE,
)
async def incarnation_changes(stage: RuleStage) -> None:
    topic = stage.topic("incarnation-changes")
    await stage.calm()
    await stage.open(topic)
    stage.incarnation += 1
    stage.disown(topic)
    await stage.granted(lease(stage.incarnation, stage.pace.calm_ms))
    await stage.refused(topic, "on a topic that was opened under another incarnation of the lease")
    stage.require_no_gap()


@rule(
    "large-incarnation",
    "The incarnation survives as an integer above 2^53.",
    RuleRequirement.PROBE,
)
async def large_incarnation(stage: RuleStage) -> None:
    """Two incarnations that are equal as floating-point numbers: an answer for one is not valid for the other."""
    for large in (2**53 + 1, 2**62 + 1):
        topic = stage.topic("large-incarnation")
        await stage.calm(large)
        stage.own(topic, large - 1)
        await stage.refused(topic, f"on an answer of incarnation {large - 1} under a lease of {large}")
        await stage.open(topic)
