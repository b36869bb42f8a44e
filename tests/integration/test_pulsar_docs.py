"""docs/pulsar.md is true: its commands end as it says, one after the other, and what it lists is complete."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from support.background import in_another_thread
from support.pulsar_harness import Harness, pulsar_harness
from support.waiting import eventually_sync
from typer.testing import CliRunner

from loadmanager.cli.admin_command import admin
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.pulsar.pulsar_service import PulsarService

TOP = Path(__file__).parents[2]
TEXT = (TOP / "docs" / "pulsar.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^\$ loadmanager admin (.+?)(?:  # ends with (\d))?$", re.MULTILINE)
CONFIGURATION = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMESPACE = "shop/orders"
MOVE = re.compile(r"--move (\S+)=\S+")
HASH = re.compile(r"^hash +([0-9a-f]{64})$", re.MULTILINE)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    @asynccontextmanager
    async def made() -> AsyncIterator[Harness]:
        async with pulsar_harness(tmp_path) as harness:
            await harness.pulsar.add_namespace(NAMESPACE, 4, [harness.pulsar.brokers[0].broker_id])
            await harness.pulsar.report()
            await harness.leader()
            yield harness

    with in_another_thread(made) as harness:
        yield harness


def test_documented_commands_end_as_shown(harness: Harness) -> None:
    url = harness.nodes[0].service_url
    runner = CliRunner(env={"LOADMANAGER_ADMIN_URL": url, "NO_COLOR": "1", "TERM": "dumb"})
    names: dict[str, str] = {f"broker-{n}:8080": broker.broker_id for n, broker in enumerate(harness.pulsar.brokers, 1)}
    commands = COMMAND.findall(TEXT)
    assert len(commands) > 25
    node = harness.nodes[0]
    for line, code in commands:
        for name, real in names.items():
            line = line.replace(name, real)  # noqa: PLW2901 - as it would be typed
        # What a command before has begun, as a drain, is seen through first.
        eventually_sync(lambda: not node.actuator.move_log.history.in_progress, what="no move under way")
        done = runner.invoke(admin, shlex.split(MOVE.sub(lambda found: _elsewhere(node, found[1]), line)))
        assert done.exit_code == int(code or 0), (line, done.output)
        if found := HASH.search(done.output):
            names["HASH"] = found[1]


def _elsewhere(node: PulsarService, bundle: str) -> str:
    """The move to a broker that does not have the bundle already, wherever a drain has taken it."""
    owner = node.intake.owners[bundle]
    others = sorted(each for each in node.mirror.registrations if owner is None or each != owner.broker)
    return f"--move {bundle}={others[-1]}"


def test_documented_refusal_is_the_real_one(harness: Harness) -> None:
    env = {"LOADMANAGER_ADMIN_URL": harness.nodes[0].service_url}
    done = CliRunner(env=env).invoke(admin, ["namespaces", "create", "shop/returns"])
    assert done.stderr in TEXT


@pytest.mark.parametrize("text", CONFIGURATION.findall(TEXT))
def test_documented_configurations_are_valid(text: str) -> None:
    assert load_settings(PulsarServiceSettings, None, yaml.safe_load(text)).admin_urls


def test_every_guardrail_is_documented() -> None:
    missing = [reason.value for reason in GuardrailReason if f"`{reason.value}`" not in TEXT]
    assert missing == []


def test_every_comparison_metric_is_documented(harness: Harness) -> None:
    samples = [*harness.nodes[0].comparison.gauges(), *harness.nodes[0].comparison.counters()]
    assert samples
    missing = [name for name, *_ in samples if name not in TEXT]
    assert missing == []


def test_every_logged_warning_is_documented() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (TOP / "loadmanager" / "pulsar").glob("*.py"))
    events = set(re.findall(r'log\.(?:warning|error)\(\s*"(\w+)"', sources))
    assert len(events) > 5
    assert [event for event in sorted(events) if f"`{event}`" not in TEXT] == []


def test_documented_limits_have_their_defaults() -> None:
    table = TEXT.partition("| limit | default | |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (`.+?`) \| (.+?) \|", table, re.MULTILINE))
    fields = {PulsarServiceSettings.key(name): field for name, field in PulsarServiceSettings.model_fields.items()}
    for keys, values in rows.items():
        for key, value in zip(re.findall(r"`(\w+)`", keys), values.split(", "), strict=True):
            assert float(value) == fields[key].default, key
