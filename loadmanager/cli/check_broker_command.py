"""`loadmanager check-broker`: test a broker against each rule of the contract, in the place of its agent."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import orjson
import psutil
import typer

from loadmanager.broker.conformance.broker_under_test import (
    BrokerUnderTest,
    LocalProcess,
    find_process,
    process_of,
    started,
)
from loadmanager.broker.conformance.probes import Probe, probe_of
from loadmanager.broker.conformance.rule_runner import Finding, check
from loadmanager.broker.conformance.rule_stage import Rule, RulePace, RuleStage
from loadmanager.broker.conformance.rule_verdicts import EventLog, RuleRequirement, RuleVerdict
from loadmanager.broker.conformance.rules import RULES
from loadmanager.broker.conformance.scripted_agent import ScriptedAgent, bind_port
from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.text.text_tables import format_table, get_terminal_width, write_lines
from loadmanager.errors import ConfigurationError, InvalidRecordError
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import HttpClient, PeerNotReachedError, PeerUnavailableError

EXIT_NOT_ALL_TESTED = 3
_LOOK_AGAIN_S = 0.1
_AGENT = "{agent}"


@dataclass(frozen=True, slots=True)
class _Options:
    url: str
    agent_port: int
    probe: str | None
    hang: str | None
    start: str | None
    pid: int | None
    lease_ms: int
    start_timeout_s: float
    timeout_s: float


def check_broker(
    url: Annotated[
        str, typer.Argument(help="URL of the broker's endpoints for its agent, such as http://127.0.0.1:8081.")
    ],
    agent_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="The port of 127.0.0.1 at which the broker asks its agent: that agent is played here. 0, with --start:"
            " any free one.",
        ),
    ] = 0,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="PROBE",
            help="A client: http://...{topic}... (a POST; served if 2xx), 'GET http://...{topic}...', ws://...{topic}..."
            " (a text is sent; served if it comes back), a command with {topic} (served if it exits with 0), or one"
            " without it (reads a topic a line, answers each with a line, `served` or not).",
        ),
    ] = None,
    hang: Annotated[
        str | None,
        typer.Option(
            metavar="PROBE",
            help="The same, for a client that prevents the broker from closing {topic} while it is connected.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Command that starts the broker, which is ended afterwards; {agent} is the URL of the test's agent.",
        ),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="The broker's process id; the process is paused (SIGSTOP) for some seconds.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Try this rule; may be repeated.")] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Do not try this rule; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,  # noqa: FBT002 - a command-line flag
    lease_ms: Annotated[
        int, typer.Option(min=500, help="Length of leases that should not lapse; shorter leases make the test faster.")
    ] = 3_000,
    start_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the broker's first answer.")] = 30.0,
    timeout: Annotated[float, typer.Option(min=1, help="Timeout of the whole test in seconds.")] = 900.0,
) -> None:
    """Check whether a broker, in any language, keeps the contract (docs/broker-contract.md).

    The broker's own agent must not run. This command takes its place, and answers late, incompletely, with another
    incarnation or not at all. It checks that no client is served that must not be. The exit status is 0 if all rules
    were kept, 1 if one was broken, and 2 if the check was impossible. It is 3 if no rule was broken, but not all could
    be tested.
    """
    rules = _chosen(only or (), skip or ())
    options = _Options(url.rstrip("/"), agent_port, probe, hang, start, pid, lease_ms, start_timeout, timeout)
    if not agent_port and start is None:
        fail("expected --agent-port PORT, at which the broker asks its agent, or --start COMMAND", EXIT_CONFIGURATION)
    try:
        findings = asyncio.run(_check(options, rules))
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    if as_json:
        write_lines([orjson.dumps(_as_record(url, findings), option=orjson.OPT_INDENT_2).decode()])
    else:
        _show(findings)
    raise typer.Exit(_exit_status(findings))


def _chosen(only: Collection[str], skip: Collection[str]) -> list[Rule]:
    names = [rule.name for rule in RULES]
    for name in (*only, *skip):
        if name not in names:
            fail(f"no rule is called {name!r}, expected one of: {', '.join(names)}", EXIT_CONFIGURATION)
    return [rule for rule in RULES if (not only or rule.name in only) and rule.name not in skip]


async def _check(options: _Options, rules: Sequence[Rule]) -> list[Finding]:
    async with _open_stage(options) as stage:
        return await check(stage, rules, _find_unmet(options, stage), options.timeout_s, _begin, _show_finding)


@asynccontextmanager
async def _open_stage(options: _Options) -> AsyncIterator[RuleStage]:
    """Wait until the broker answers. The port of its agent is bound but does not answer yet."""
    async with AsyncExitStack() as stack:
        try:
            listen, port = stack.enter_context(bind_port(options.agent_port))
        except OSError as error:
            raise ConfigurationError(f"--agent-port {options.agent_port}: {error.strerror}") from None
        running = None
        if options.start is not None:
            running = stack.enter_context(started(_words(options.start.replace(_AGENT, f"http://127.0.0.1:{port}"))))
        http = await stack.enter_async_context(HttpClient())
        pid = await _first_answer(options, BrokerClient(http, options.url), running.poll if running else lambda: None)
        event_log, pace = EventLog(), RulePace(options.lease_ms)
        process = process_of(options.pid) if options.pid else find_process(pid, options.url)
        if process is None and running is not None:
            process = LocalProcess(psutil.Process(running.pid))
        stage = RuleStage(
            ScriptedAgent(event_log),
            BrokerUnderTest(options.url, http, event_log, pace.timeout_s),
            event_log,
            pace,
            listen,
            _probe(stack, options.probe),
            _probe(stack, options.hang),
            process,
        )
        stack.push_async_callback(stage.leave)
        yield stage


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"--start {command!r}: {error}") from None
    if not words:
        raise ConfigurationError(f"--start {command!r}: expected a command")
    return words


def _probe(stack: AsyncExitStack, text: str | None) -> Probe | None:
    if text is None:
        return None
    probe = probe_of(text)
    stack.push_async_callback(probe.close)
    return probe


async def _first_answer(options: _Options, client: BrokerClient, exit_status: Callable[[], int | None]) -> int:
    """Return the broker's pid. Raises `ConfigurationError` if it does not answer in time, or is no broker."""
    deadline_s = time.monotonic() + options.start_timeout_s
    while True:
        try:
            return (await client.stats()).pid
        except PeerNotReachedError as error:
            if time.monotonic() >= deadline_s:
                raise ConfigurationError(f"no broker answers: {error}") from None
        except (PeerUnavailableError, InvalidRecordError) as error:
            raise ConfigurationError(
                f"{options.url} is no broker by the contract, whose statistics have a `pid` and a `monotonicS`: {error}"
            ) from None
        if (status := exit_status()) is not None:
            raise ConfigurationError(f"--start {options.start!r}: it ended with {status} before it answered")
        await asyncio.sleep(_LOOK_AGAIN_S)


def _find_unmet(options: _Options, stage: RuleStage) -> dict[RuleRequirement, str]:
    there = {
        RuleRequirement.PROBE: stage.probe is not None,
        RuleRequirement.PROCESS: stage.process is not None,
        RuleRequirement.START: options.start is not None,
        RuleRequirement.HANG: stage.hang is not None,
    }
    return {need: need.value for need, is_there in there.items() if not is_there}


def _begin(rule: Rule) -> None:
    print(f"{rule.name} ...", file=sys.stderr, flush=True)


def _show_finding(finding: Finding) -> None:
    print(f"{finding.rule.name}: {finding.verdict}, {finding.took_s:.1f} s", file=sys.stderr, flush=True)


def _exit_status(findings: Sequence[Finding]) -> int:
    verdicts = {each.verdict for each in findings}
    if RuleVerdict.BROKEN in verdicts:
        return EXIT_FAILURE
    return EXIT_NOT_ALL_TESTED if verdicts & {RuleVerdict.NOT_TESTED, RuleVerdict.NOT_JUDGED} else 0


def _as_record(url: str, findings: Sequence[Finding]) -> Mapping[str, object]:
    return {
        "broker": url,
        "exitStatus": _exit_status(findings),
        "rules": [
            {
                "rule": each.rule.name,
                "text": each.rule.text,
                "verdict": each.verdict.value,
                "why": each.why,
                "tookS": round(each.took_s, 3),
                "events": each.events,
            }
            for each in findings
        ],
    }


def _show(findings: Sequence[Finding]) -> None:
    lines = []
    for each in findings:
        if each.verdict is RuleVerdict.BROKEN:
            lines += ["", f"{each.rule.name}: {each.rule.text}", *(f"  {event}" for event in each.events)]
    rows = [[each.rule.name, each.verdict.value, each.why] for each in findings]
    counted = Counter(each.verdict for each in findings)
    counts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in RuleVerdict if counted[verdict])
    write_lines([*lines, "", *format_table(["Rule", "Verdict", "Why"], rows, get_terminal_width()), "", counts])
