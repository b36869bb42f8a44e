from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_offline_decision_equals_that_of_the_leader(
    cluster: PulsarCluster, operator: Operator, skew: Skew, load: RunningLoad, tmp_path: Path
) -> None:
    load.wait_until_flowing()
    eventually_sync(
        lambda: averages_are_true(cluster, operator, skew), "averages that are those of the load", least_s=240
    )
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


def averages_are_true(cluster: PulsarCluster, operator: Operator, skew: Skew) -> bool:
    """Return True if the leader's averages are the sent rates, to within less than bundles differ."""
    known = kept_averages(cluster)
    for i, bundle in enumerate(operator.bundles_of(skew.namespace)):
        data = known.get(f"{skew.namespace}/{bundle}")
        sent = skew.rate(i) * skew.topics_each
        if data is None or abs(data["shortTermData"]["msgRateIn"] / sent - 1) > 0.02:
            return False
    return True


def kept_averages(cluster: PulsarCluster) -> dict[str, Any]:
    return contents(read_tree(cluster.zookeeper), "/loadbalance/bundle-data")


@pytest.mark.parametrize("command", ["serve", "agent"])
def test_serve_and_agent_refuse_the_root_of_a_pulsar(cluster: PulsarCluster, tmp_path: Path, command: str) -> None:
    config = tmp_path / f"{command}.yaml"
    more = {
        "serve": "webServicePort: 0\n",
        "agent": "agentPort: 0\nbrokerUrl: http://127.0.0.1:1\nbrokerId: b1:8080\nloadManagerUrls: [http://127.0.0.1:1]\n",
    }[command]
    config.write_text(f"metadataStoreUrl: zk:{cluster.zookeeper}\n{more}", encoding="utf-8")
    writers, before = Writers.watch(cluster), set(read_tree(cluster.zookeeper))
    done = run_loadmanager(command, "--config", str(config))
    assert done.returncode == 2, done.stderr
    assert f"zk:{cluster.zookeeper}: this is a Pulsar's metadata (/admin/clusters)" in done.stderr
    assert writers.others()
    assert writers.changes_by_others() == []
    assert set(read_tree(cluster.zookeeper)) >= before - {path for path in before if path.startswith("/counters")}


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
