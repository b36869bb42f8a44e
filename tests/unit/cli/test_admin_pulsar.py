"""`loadmanager admin pulsar`: what each command asks a process beside a Pulsar, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from support.pulsar_harness import pulsar_harness
from support.recording_node import RecordingNode
from typer.testing import CliRunner, Result

from loadmanager.cli.admin_command import admin
from loadmanager.wire.pulsar_records import PulsarServiceStatus

BASE = "/loadbalance/v1/pulsar"
STATUS = PulsarServiceStatus(
    mode="act",
    cluster="c1",
    leading=True,
    acting=True,
    obstacles=[],
    stopped=False,
    failures=0,
    misses=1,
    brokers=3,
    bundles=64,
    pulsars_leader="b1:8080",
    pulsar_sheds=False,
    oldest_report_s=12.25,
    unserved=[],
    faults={},
)
REQUESTS = {
    "status": ("GET", BASE),
    "status --json": ("GET", BASE),
    "diary": ("GET", f"{BASE}/diary?rounds=60"),
    "diary --rounds 5": ("GET", f"{BASE}/diary?rounds=5"),
    "diary --rounds 5 --json": ("GET", f"{BASE}/diary/entries?limit=5"),
    "scores": ("GET", f"{BASE}/scores/table"),
    "scores --json": ("GET", f"{BASE}/scores"),
    "resume": ("POST", f"{BASE}/resume"),
}


def run(line: str, url: str) -> Result:
    return CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(admin, ["pulsar", *line.split(), "--url", url])


def shown(node: RecordingNode, **changes: Any) -> list[str]:  # noqa: ANN401 - whatever a field may be
    """Return what `status` prints for such a process."""
    node.status, node.body = 200, STATUS.model_copy(update=changes).model_dump_json(by_alias=True).encode()
    done = run("status", node.url)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "asked"), REQUESTS.items(), ids=list(REQUESTS))
def test_command_sends_the_expected_request(node: RecordingNode, line: str, asked: tuple[str, str]) -> None:
    assert run(line, node.url).exit_code == 0
    assert node.asked == [(*asked, b"")]


async def test_every_command_requests_an_existing_route(tmp_path: Path) -> None:
    async with pulsar_harness(tmp_path) as harness:
        await harness.start()
        for method, path in REQUESTS.values():
            resolved = await harness.apps[0].router.resolve(make_mocked_request(method, path))
            assert resolved.route.resource is not None
            assert resolved.route.resource.canonical == path.partition("?")[0]


def test_status_of_an_acting_process_has_one_line_per_figure(node: RecordingNode) -> None:
    assert shown(node) == [
        "mode                    act",
        "cluster                 c1: 3 brokers, 64 bundles",
        "Pulsar's leader         b1:8080",
        "Pulsar sheds by itself  no",
        "oldest report           12 s old",
        "failures in succession  0",
        "misses                  1",
        "acts                    yes",
        "unserved bundles        none",
        "faults                  none",
    ]


def test_every_obstacle_and_fault_has_a_line(node: RecordingNode) -> None:
    lines = shown(
        node,
        acting=False,
        obstacles=["No move because it is Sunday", "No move because it rains"],
        stopped=True,
        failures=3,
        pulsars_leader=None,
        pulsar_sheds=True,
        oldest_report_s=None,
        unserved=["t/ns/0x00000000_0x80000000"],
        faults={"/admin/clusters": "several, and no clusterName"},
    )
    assert lines[2:] == [
        "Pulsar's leader         none",
        "Pulsar sheds by itself  yes",
        "oldest report           none yet",
        "failures in succession  3, stopped until resume",
        "misses                  1",
        "acts                    no",
        "  No move because it is Sunday",
        "  No move because it rains",
        "unserved bundles",
        "  t/ns/0x00000000_0x80000000: it has clients, and no owner; a lookup of one of its topics assigns it",
        "faults",
        "  /admin/clusters: several, and no clusterName",
    ]


def test_status_of_another_version_is_shown_generically(node: RecordingNode) -> None:
    node.status, node.body = 200, b'{"mode":"watch"}'
    assert run("status", node.url).stdout == "mode  watch\n"


def test_status_is_printed_as_json(node: RecordingNode) -> None:
    node.status, node.body = 200, b'{"mode": "observe"}'
    assert json.loads(run("status --json", node.url).stdout) == {"mode": "observe"}


@pytest.mark.parametrize("line", ["diary", "scores"])
def test_text_is_printed_unchanged(node: RecordingNode, line: str) -> None:
    node.status, node.body, node.content_type = 200, b"2026-01-01 12:00 So.\n    And so.\n", "text/plain"
    assert run(line, node.url).stdout == "2026-01-01 12:00 So.\n    And so.\n"


def test_default_url_has_the_port_of_pulsar_processes() -> None:
    done = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(admin, ["pulsar", "status", "--help"])
    assert "http://127.0.0.1:8085" in done.stdout
