"""A broker that keeps the contract passes the check; one that breaks a rule is caught by that rule. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from aiohttp import web
from support.contract_broker import BREAKS, BrokersProcess, ContractBroker, Hanging
from support.virtual_loop import VirtualLoop, serve

from loadmanager.broker.conformance.broker_under_test import BrokerUnderTest
from loadmanager.broker.conformance.rule_runner import Finding, check
from loadmanager.broker.conformance.rule_stage import Rule, RulePace, RuleStage
from loadmanager.broker.conformance.rule_verdicts import EventLog, RuleVerdict
from loadmanager.broker.conformance.rules import RULES
from loadmanager.broker.conformance.scripted_agent import ScriptedAgent
from loadmanager.net.http_client import HttpClient

AGENT_PORT, BROKER_PORT = 7_070, 9_000
BY_NAME = {rule.name: rule for rule in RULES}


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.end()


async def checked(broker: ContractBroker, rules: Sequence[Rule] = RULES) -> list[Finding]:
    async def listen(app: web.Application) -> web.AppRunner:
        return await serve(app, AGENT_PORT)

    await serve(broker.app(), BROKER_PORT)
    running = asyncio.create_task(broker.run())
    event_log = EventLog()
    async with HttpClient() as http:
        stage = RuleStage(
            ScriptedAgent(event_log),
            BrokerUnderTest(f"http://127.0.0.1:{BROKER_PORT}", http, event_log, RulePace().timeout_s),
            event_log,
            RulePace(),
            listen,
            broker,
            Hanging(broker),
            BrokersProcess(broker),
        )
        findings = await check(stage, rules, {})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return findings


def a_broker(*breaks: str, **more: object) -> ContractBroker:
    return ContractBroker(f"http://127.0.0.1:{AGENT_PORT}", *([tuple(breaks)] if breaks else []), **more)  # type: ignore[arg-type]


def test_conforming_broker_passes(loop: VirtualLoop) -> None:
    findings = loop.run(checked(a_broker()))
    assert {each.rule.name: (each.verdict, each.why) for each in findings} == {
        rule.name: (RuleVerdict.KEPT, "") for rule in RULES
    }


@pytest.mark.parametrize(("rule", "how"), [(rule, how) for rule, ways in BREAKS.items() for how in ways])
def test_broker_that_breaks_a_rule_fails_that_rule(loop: VirtualLoop, rule: str, how: str) -> None:
    (finding,) = loop.run(checked(a_broker(rule, how), [BY_NAME[rule]]))
    assert (finding.verdict, bool(finding.why), bool(finding.events)) == (RuleVerdict.BROKEN, True, True), finding.why


def test_optional_rules_do_not_apply_to_a_plain_broker(loop: VirtualLoop) -> None:
    findings = loop.run(checked(a_broker(is_plain=True)))
    others = {each.rule.name: each.verdict for each in findings if each.verdict is not RuleVerdict.KEPT}
    assert others == dict.fromkeys(("sole-process", "prepare", "opening-is-told"), RuleVerdict.DOES_NOT_APPLY)


def test_stopped_rule_is_not_judged_when_another_process_serves(loop: VirtualLoop) -> None:
    (finding,) = loop.run(checked(a_broker("sole-process", "another process serves"), [BY_NAME["stopped"]]))
    assert finding.verdict is RuleVerdict.NOT_JUDGED
    assert "by another process" in finding.why


def test_every_rule_is_broken_by_a_test_broker() -> None:
    assert set(BREAKS) == set(BY_NAME)
