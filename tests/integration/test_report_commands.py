"""Every command that a report prints runs as it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pandas as pd
import pytest
from support.background import a_cluster_in_another_thread
from support.nodes import Cluster
from support.reported import RECOMMENDED, contents_of, summary_of
from typer.testing import CliRunner

from loadmanager.cli.admin_command import admin
from loadmanager.lab.simulate.scenario import parse_yaml
from loadmanager.pipeline.reporting.actions import MORE_BROKERS, find_actions
from loadmanager.pipeline.whatif_file import WhatIf

BROKER, NAMESPACE = "b1:8080", "public/shop"
BUNDLE, NEIGHBOUR = f"{NAMESPACE}/0x00000000_0x40000000", f"{NAMESPACE}/0x40000000_0x80000000"
SUBJECTS = {
    "unsplittable": BUNDLE,
    "split_blocked": BUNDLE,
    "split": f"{NAMESPACE}/0x80000000_0xc0000000",
    "unknown_limits": BROKER,
    "quiet_reports": BROKER,
    "merge": BUNDLE,
}


async def _prepare(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    await cluster.a_broker(BROKER)
    for number in range(64):  # until each bundle has an owner that can be asked for topics
        if number == 0:
            await cluster.a_namespace(NAMESPACE, bundles={"numBundles": 4})
        await leader.lookup(f"persistent://{NAMESPACE}/topic-{number}")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with a_cluster_in_another_thread(_prepare) as cluster:
        yield cluster


def test_every_command_of_a_report_runs_as_printed(cluster: Cluster) -> None:
    rows = pd.DataFrame({"kind": SUBJECTS.keys(), "subject": SUBJECTS.values(), "text": "x"})
    rows["evidence"] = '{"loadBalancerNamespaceMaximumBundles": 4}'
    inconsistent = pd.DataFrame({"broker": [BROKER], "what": ["topics"], "reports": [9], "inconsistent": [3]})
    contents = {**contents_of(20), "advice": rows, "inconsistent_brokers": inconsistent}
    actions = find_actions(contents, summary_of(20), RECOMMENDED)
    commands = [shlex.split(each) for action in actions for each in action.commands]
    assert all(action.commands for action in actions)
    runner = CliRunner(env={"LOADMANAGER_ADMIN_URL": cluster.nodes[0].node.service_url, "NO_COLOR": "1"})
    for words in (each for each in commands if each[1] == "admin"):
        done = runner.invoke(admin, words[2:])
        assert done.exit_code == 0, (words, done.output)
    (tried,) = (each for each in commands if each[1] == "pipeline")
    assert tried[:3] == ["loadmanager", "pipeline", "run"]
    assert tried[-3:-1] == ["whatif", "--scenarios"]
    assert parse_yaml(WhatIf, actions[0].files[MORE_BROKERS], MORE_BROKERS).fleets[1].added[0].count == 2
    assert len(commands) == len(SUBJECTS) + 4  # and one on more brokers, two keys, one on reports
