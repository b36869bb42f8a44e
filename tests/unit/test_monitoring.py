"""The dashboard and the alerts: every metric in them exists, and alarms go off when they should."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.nodes import Cluster
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.core.domain.names import parse_broker_id

FOLDER = Path(__file__).parents[2] / "config" / "monitoring"
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = orjson.loads((FOLDER / "dashboard.json").read_bytes())
OPERATIONS = (FOLDER.parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
RUNBOOK = FOLDER.parents[1] / "docs" / "runbook.md"

OUR_NAME = re.compile(r"\b(?:loadmanager|pulsar|process)_\w+")
OF_NAMES = re.compile(r'__name__=~"(\w*)\(([\w|]+)\)(\w*)"')

WITH_FAILURE_DOMAINS = "loadmanager_usage_after_loss_of_domain"


def rules() -> Iterator[dict[str, Any]]:
    for group in ALERTS["groups"]:
        yield from group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """Location and text of each expression."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def metrics_of(expression: str) -> set[str]:
    for prefix, names, suffix in OF_NAMES.findall(expression):
        expression += " ".join(f" {prefix}{name}{suffix}" for name in names.split("|"))
    without_labels = re.sub(r'"[^"]*"', "", expression)
    return {name for name in OUR_NAME.findall(without_labels) if not name.endswith("_")}


def names_in(text: str) -> set[str]:
    """Every sample, and every family, also one without samples."""
    families = list(text_string_to_metric_families(text))
    counters = {f"{family.name}_total" for family in families if family.type == "counter"}
    return {family.name for family in families} | counters | {each.name for one in families for each in one.samples}


async def all_metrics() -> set[str]:
    """Metrics of a leader with brokers, and of an agent."""
    async with Cluster() as cluster:
        leader = await cluster.start_leader()
        agent = await cluster.a_broker("b1:8080")
        names = await cluster.a_namespace("t/ns")
        await asyncio.gather(*(leader.node.assigner.request(name) for name in names))
        await cluster.a_broker("b2:8080")
        await agent.report(a_record("b1:8080", {names[0]: load_of(8.0)}, agent_url=agent.url, cpu=80))
        await eventually(lambda: bool(leader.node.planner.snapshot().bundles.movable.any()))
        await leader.node.shedding.run_round()
        of_node = (await leader.get("/metrics")).body.decode()
    of_agent = AgentMetrics(parse_broker_id("b1:8080"))
    of_agent.show("registered", "as the agent's service does", lambda: 1.0)
    return names_in(of_node) | names_in(generate_latest(of_agent.registry).decode())


async def test_every_queried_metric_exists() -> None:
    known = await all_metrics()
    unknown = {
        place: sorted(missing)
        for place, expression in expressions()
        if (missing := metrics_of(expression) - known - {WITH_FAILURE_DOMAINS})
    }
    assert not unknown


def test_every_queried_metric_is_documented() -> None:
    undocumented = {
        name
        for _, expression in expressions()
        for name in metrics_of(expression)
        if not re.search(re.escape(re.sub(r"_(bucket|count|sum|total)$", "", name)), OPERATIONS)
        and not name.startswith(("pulsar_lb_cpu", "pulsar_lb_bandwidth", "loadmanager_recorded"))
    }
    assert not undocumented - {WITH_FAILURE_DOMAINS}


def test_mistyped_metric_is_detected() -> None:
    assert metrics_of('max(loadmanager_leadr{cluster="loadmanager_x"}) > 0') == {"loadmanager_leadr"}
    assert metrics_of('max({__name__=~"pulsar_lb_(cpu|bandwidth_in)_usage"})') == {
        "pulsar_lb_cpu_usage",
        "pulsar_lb_bandwidth_in_usage",
    }


def test_every_alert_has_a_description_and_a_severity() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, rule["alert"]


def test_every_alert_has_a_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (Loadmanager\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert sections == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    seen = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & seen, panel["title"]
        assert max(x for x, _ in cells) < 24
        seen |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian's package prometheus): rules are not tried"
)


@needs_promtool
def test_prometheus_accepts_the_rules_and_alerts_fire() -> None:
    for command in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts-test.yaml")):
        done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_every_dashboard_expression(tmp_path: Path) -> None:
    replaced = [
        (place, each.replace("$__rate_interval", "5m").replace("$cluster", ".*")) for place, each in expressions()
    ]
    rules_file = tmp_path / "rules.yaml"
    records = [{"record": f"expression:{number}", "expr": each} for number, (_, each) in enumerate(replaced)]
    rules_file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": records}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(rules_file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
