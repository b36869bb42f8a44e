from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kazoo.exceptions import NodeExistsError
from support.pulsar import LeaderLog, Writers, contents, read_dump, run_loadmanager
from support.waiting import eventually_sync

from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.operations import Operator
from examples.pulsar.skew import RunningLoad, Skew
from examples.pulsar.znodes import connect, read_tree

pytestmark = [
    pytest.mark.pulsar,
    pytest.mark.parametrize("cluster", ["4.0.1-modular", "4.2.4-modular"], indirect=True, scope="session"),
]

SHEDDING = "loadBalancerSheddingEnabled"
_STEADY = 0.03
_LOADED = 1.0
"""Messages per second."""


@pytest.mark.timeout(1800)
def test_offline_decision_equals_that_of_the_leader(
    cluster: PulsarCluster, operator: Operator, skew: Skew, load: RunningLoad, tmp_path: Path
) -> None:
    load.wait_until_flowing()
    averages = Averages(cluster, [f"{skew.namespace}/{each}" for each in operator.bundles_of(skew.namespace)])
    eventually_sync(averages.are_steady, "averages that stand still", least_s=900, poll_s=5)
    line = tmp_path / "dump.jsonl"
    line.write_text(json.dumps(read_dump(cluster)), encoding="utf-8")
    done = run_loadmanager("decide", str(line), "--shed", "UniformLoadShedder", "--json")
    assert done.returncode == 0, done.stderr
    decisions = json.loads(done.stdout)["decisions"]
    log = LeaderLog.follow(cluster)
    operator.set_dynamic(SHEDDING, "true")
    eventually_sync(lambda: len(log.moved()) >= len(decisions), "the leader's own round", least_s=120)
    operator.set_dynamic(SHEDDING, "false")
    assert [(each["bundle"], each["source"]) for each in decisions] == [
        (each.bundle, each.source) for each in log.moved()
    ]


@dataclass(slots=True)
class Averages:
    """Short-term averages of the bundles of a namespace, as the leader wrote them.

    They keep wrong first samples for longer than ten samples of a minute, so a test waits until they stand still, not
    until they are right: a decision from a dump and a later one of the leader then see the same figures. Averages
    without load count for no decision; they shrink to nothing without end.
    """

    cluster: PulsarCluster
    bundles: list[str]
    rates: dict[str, float] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)
    """The last relative change of each bundle's average."""

    def are_steady(self) -> bool:
        """Return True if the last sample changed no average by more than 3 %, less than any two bundles differ."""
        known = contents(read_tree(self.cluster.zookeeper), "/loadbalance/bundle-data")
        for bundle in self.bundles:
            rate = known[bundle]["shortTermData"]["msgRateIn"] if bundle in known else 0.0
            before = self.rates.get(bundle, 0.0)
            if before and rate != before:
                self.changes[bundle] = abs(rate / before - 1)
            self.rates[bundle] = rate
        loaded = [bundle for bundle, rate in self.rates.items() if rate >= _LOADED]
        return bool(loaded) and all(self.changes.get(bundle, 1.0) <= _STEADY for bundle in loaded)


@pytest.mark.parametrize("command", ["serve", "agent"])
def test_serve_and_agent_refuse_the_root_of_a_pulsar(cluster: PulsarCluster, tmp_path: Path, command: str) -> None:
    config = tmp_path / f"{command}.yaml"
    more = {
        "serve": "webServicePort: 0\n",
        "agent": "agentPort: 0\nbrokerUrl: http://127.0.0.1:1\nbrokerId: b1:8080\nloadManagerUrls: [http://127.0.0.1:1]\n",
    }[command]
    config.write_text(f"metadataStoreUrl: zk:{cluster.zookeeper}\n{more}", encoding="utf-8")
    writers = Writers.watch(cluster)
    done = run_loadmanager(command, "--config", str(config))
    assert done.returncode == 2, done.stderr
    assert f"zk:{cluster.zookeeper}: this is a Pulsar's metadata (/admin/clusters)" in done.stderr
    assert writers.others()
    assert writers.changes_by_others() == []


def test_writes_of_other_sessions_are_seen(cluster: PulsarCluster) -> None:
    writers = Writers.watch(cluster)
    with connect(cluster.zookeeper) as client:
        client.create("/of-a-test", b"1")
        client.set("/of-a-test", b"2")
        with pytest.raises(NodeExistsError):
            client.create("/of-a-test")
        client.delete("/of-a-test")
        several = client.transaction()
        several.create("/of-a-test")
        several.delete("/of-a-test")
        several.commit()
    seen = [(each.kind, each.path) for each in writers.changes_by_others()]
    assert seen[:2] == [("create", "/of-a-test"), ("set", "/of-a-test")]
    assert seen[-2:] == [("delete", "/of-a-test"), ("several", "")]
