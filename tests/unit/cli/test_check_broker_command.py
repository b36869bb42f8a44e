from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import typer
from aiohttp import web
from support.background import in_another_thread
from support.servers import serving
from typer.testing import CliRunner, Result

from loadmanager.broker.conformance.rule_runner import Finding
from loadmanager.broker.conformance.rule_verdicts import RuleVerdict
from loadmanager.broker.conformance.rules import RULES
from loadmanager.cli import check_broker_command as command

NOBODY = "http://127.0.0.1:1"
"""The same in every process of a run: names of tests are made of it."""


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.check_broker)
    return CliRunner().invoke(app, [*arguments, "--start-timeout", "0"])


@asynccontextmanager
async def answering(status: int, body: str) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    async with serving([web.route("*", "/{path:.*}", answer)]) as url:
        yield url


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (404, "no such path", "answered 404 'no such path'"),
        (200, "<html>", "Invalid JSON"),
        (200, '{"brokers":[]}', "pid: Field required"),
    ],
)
def test_url_of_no_broker_is_rejected_with_a_sentence(status: int, body: str, says: str) -> None:
    with in_another_thread(lambda: answering(status, body)) as url:
        done = run(url, "--start", "sleep 100")
    assert done.exit_code == 2
    assert f"{url} is no broker by the contract" in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((NOBODY,), "expected --agent-port PORT, at which the broker asks its agent, or --start COMMAND"),
        ((NOBODY, "--start", "true", "--only", "lease"), "no rule is called 'lease', expected one of: without-agent,"),
        ((NOBODY, "--start", "/no/such/broker"), "--start '/no/such/broker': No such file or directory"),
        ((NOBODY, "--start", "'"), '--start "\'": No closing quotation'),
        ((NOBODY, "--start", ""), "--start '': expected a command"),
        ((NOBODY, "--start", "sleep 100"), f"no broker answers: {NOBODY}/loadmanager/v1/stats"),
        (("nowhere", "--start", "sleep 100"), "no broker answers: nowhere/loadmanager/v1/stats"),
    ],
)
def test_invalid_arguments_are_rejected_with_the_fix(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


def test_port_in_use_is_named() -> None:
    with in_another_thread(lambda: answering(200, "{}")) as url:
        done = run(url, "--agent-port", url.rpartition(":")[2])
    assert done.exit_code == 2
    assert f"--agent-port {url.rpartition(':')[2]}: Address already in use" in done.stderr


def findings(*verdicts: RuleVerdict) -> list[Finding]:
    return [
        Finding(rule, verdict, 1.0, "why", ("what happened",)) for rule, verdict in zip(RULES, verdicts, strict=False)
    ]


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ((RuleVerdict.KEPT, RuleVerdict.DOES_NOT_APPLY), 0),
        ((RuleVerdict.KEPT, RuleVerdict.NOT_TESTED), 3),
        ((RuleVerdict.KEPT, RuleVerdict.NOT_JUDGED), 3),
        ((RuleVerdict.NOT_TESTED, RuleVerdict.BROKEN), 1),
    ],
)
def test_exit_status_and_table_report_the_findings(
    verdicts: tuple[RuleVerdict, ...], status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def found(*_: object) -> list[Finding]:
        return findings(*verdicts)

    monkeypatch.setattr(command, "_check", found)
    for option in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            typer.main.get_command(app_of())([NOBODY, "--start", "true", *option])
        assert ended.value.code == status
    table, _, record = capfd.readouterr().out.partition("{")
    said = json.loads("{" + record)
    assert [each["verdict"] for each in said["rules"]] == list(verdicts)
    assert said["exitStatus"] == status
    assert all(verdict in table for verdict in verdicts)
    assert ("what happened" in table) == (RuleVerdict.BROKEN in verdicts)


def app_of() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.check_broker)
    return app
