"""Runner of all rules. A rule is tried again while attempts prove nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loadmanager.broker.conformance.rule_stage import Rule, RuleStage
from loadmanager.broker.conformance.rule_verdicts import (
    BrokenError,
    LateError,
    NotApplicableError,
    RuleRequirement,
    RuleVerdict,
    UnsettledError,
)
from loadmanager.broker.conformance.rules import lease_rules

TRIES = 5
TIMES_LATE = 3
LONGEST_TRY_S = 90.0

_NO_TIME = "no time was left for it (--timeout)"


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict about one rule. `why` is the event that broke it, or the missing requirement; `events` is the log of the
    last failed attempt.
    """

    rule: Rule
    verdict: RuleVerdict
    took_s: float
    why: str = ""
    events: tuple[str, ...] = ()


async def check(
    stage: RuleStage,
    rules: Iterable[Rule],
    unmet: Mapping[RuleRequirement, str],
    timeout_s: float = math.inf,
    begin: Callable[[Rule], None] = lambda _: None,
    tell: Callable[[Finding], None] = lambda _: None,
) -> list[Finding]:
    """Check all rules and return the findings. `unmet` maps missing requirements to reasons; `begin` and `tell` are
    called for each rule. No attempt starts after the timeout.
    """
    until_s = time.monotonic() + timeout_s
    findings: list[Finding] = []
    for rule in rules:
        begin(rule)
        if rule is not lease_rules.without_agent:
            await stage.open_port()
        missing = [reason for need, reason in unmet.items() if need in rule.needs]
        if RuleRequirement.PROBE in rule.needs and _is_never_served(findings):
            missing = ["nothing is ever served: see `serves`"]
        if time.monotonic() >= until_s:
            missing = [_NO_TIME]
        finding = Finding(rule, RuleVerdict.NOT_TESTED, 0.0, "; ".join(missing[:1]))
        if not missing:
            finding = await _judge(stage, rule, until_s)
        findings.append(finding)
        tell(finding)
    return findings


def _is_never_served(findings: Iterable[Finding]) -> bool:
    return any(each.rule is lease_rules.serves and each.verdict is not RuleVerdict.KEPT for each in findings)


async def _judge(stage: RuleStage, rule: Rule, until_s: float) -> Finding:
    """Try a rule up to `TRIES` times. A slow machine can delay the broker; late `TIMES_LATE` times means broken."""
    began_s = time.monotonic()
    times_late = 0
    for _ in range(TRIES):
        await stage.begin()
        outcome, why = await _try(stage, rule, until_s)
        times_late += outcome is LateError
        if outcome not in (LateError, UnsettledError) or times_late == TIMES_LATE:
            break
    verdict = RuleVerdict.BROKEN if times_late == TIMES_LATE else _VERDICTS[outcome]
    events = () if verdict is RuleVerdict.KEPT else stage.event_log.events()
    return Finding(rule, verdict, time.monotonic() - began_s, why, events)


_VERDICTS: dict[type[Exception] | None, RuleVerdict] = {
    None: RuleVerdict.KEPT,
    BrokenError: RuleVerdict.BROKEN,
    NotApplicableError: RuleVerdict.DOES_NOT_APPLY,
    UnsettledError: RuleVerdict.NOT_JUDGED,
    LateError: RuleVerdict.NOT_JUDGED,
}


async def _try(stage: RuleStage, rule: Rule, until_s: float) -> tuple[type[Exception] | None, str]:
    """Return the class of the error that ended the scenario, and its message."""
    limit_s = min(LONGEST_TRY_S, until_s - time.monotonic())
    try:
        async with asyncio.timeout(limit_s):
            await rule.scenario(stage)
    except (BrokenError, NotApplicableError, UnsettledError) as error:
        return type(error), str(error)
    except TimeoutError:
        return UnsettledError, f"it took longer than {limit_s:.0f} s"
    return None, ""
