from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError
from support.pulsar import LeaderLog, Writers, read_dump, run_loadmanager
from support.waiting import eventually_sync

from examples.pulsar.admin import demand
from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.operations import Operator
from examples.pulsar.skew import RunningLoad, Skew
from examples.pulsar.znodes import Znode, looking_at, read_tree

pytestmark = [
    pytest.mark.pulsar,
    pytest.mark.parametrize("cluster", ["4.0.1-modular", "4.2.4-modular"], indirect=True, scope="session"),
]

SHEDDING = "loadBalancerSheddingEnabled"


def contents(tree: dict[str, Znode], below: str) -> dict[str, Any]:
    """The objects in the znodes below a path, by what follows it."""
    start = f"{below}/"
    return {
        path.removeprefix(start): node.content() for path, node in tree.items() if path.startswith(start) and node.data
    }


def read_both(cluster: PulsarCluster) -> tuple[dict[str, Any], dict[str, Znode]]:
    """A dump, and the znodes that were the same before and after it."""
    read: list[tuple[dict[str, Any], dict[str, Znode]]] = []

    def agree() -> bool:
        before, dump, after = read_tree(cluster.zookeeper), read_dump(cluster), read_tree(cluster.zookeeper)
        read[:] = [(dump, after)]
        return before == after

    eventually_sync(agree, "nothing changes while a dump is made", least_s=120)
    return read[0]


def test_the_settings_of_a_dump_are_those_that_a_broker_goes_by(cluster: PulsarCluster, operator: Operator) -> None:
    operator.set_dynamic("loadBalancerBrokerThresholdShedderPercentage", "7")
    broker = cluster.brokers[1]
    eventually_sync(lambda: operator.settings_of(broker)["loadBalancerBrokerThresholdShedderPercentage"] == "7")
    configuration = read_dump(cluster, "--admin-url", broker.web_url)["configuration"]
    told = operator.settings_of(broker)
    assert len(configuration) > 40
    assert {key: told[key].strip("[]").replace(", ", ",") for key in configuration} == configuration
    assert configuration["loadBalancerBrokerThresholdShedderPercentage"] == "7"
    assert configuration["maxUnloadPercentage"] == "0.5"


def test_a_decision_is_the_one_that_the_leader_makes(
    cluster: PulsarCluster, operator: Operator, skew: Skew, load: RunningLoad, tmp_path: Path
) -> None:
    load.wait_until_flowing()
    eventually_sync(
        lambda: averages_are_true(cluster, operator, skew), "averages that are those of the load", least_s=240
    )
    line = tmp_path / "dump.jsonl"
    line.write_text(json.dumps(read_dump(cluster, "--admin-url", cluster.brokers[0].web_url)), encoding="utf-8")
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
    """Whether what the leader has kept of each bundle is what is sent, to within less than bundles differ by."""
    known = kept_averages(cluster)
    for i, bundle in enumerate(operator.bundles_of(skew.namespace)):
        data = known.get(f"{skew.namespace}/{bundle}")
        sent = skew.rate(i) * skew.topics_each
        if data is None or abs(data["shortTermData"]["msgRateIn"] / sent - 1) > 0.02:
            return False
    return True


def kept_averages(cluster: PulsarCluster) -> dict[str, Any]:
    return contents(read_tree(cluster.zookeeper), "/loadbalance/bundle-data")


def test_a_dump_has_what_the_znodes_have(
    cluster: PulsarCluster, operator: Operator, skew: Skew, load: RunningLoad
) -> None:
    load.wait_until_flowing()
    for form in ("V1", "V2"):  # by which brokers get the namespaces of their own checks, in both forms
        for broker in cluster.brokers:
            demand(broker.web_url, "GET", f"/admin/v2/brokers/health?topicVersion={form}")
    operator.set_dynamic("loadBalancerBrokerThresholdShedderPercentage", "20")
    eventually_sync(lambda: self_tests_reported(cluster) == {2, 3}, "checks' bundles of both forms in a report")
    eventually_sync(lambda: len(kept_averages(cluster)) >= skew.bundles, "the leader has written averages", least_s=150)
    dump, tree = read_both(cluster)
    reports = contents(tree, "/loadbalance/brokers")
    assert dump["brokers"].keys() == reports.keys() == {each.name for each in cluster.brokers}
    for name, report in reports.items():
        assert dump["brokers"][name].items() <= report.items()
    bundle_data = contents(tree, "/loadbalance/bundle-data")
    assert bundle_data
    assert dump["bundleData"] == bundle_data
    averages = contents(tree, "/loadbalance/broker-time-average")
    assert dump["timeAverages"].keys() == averages.keys()
    for name, average in averages.items():
        assert dump["timeAverages"][name].items() <= average.items()
    ours = dump["namespaces"][skew.namespace]
    assert ours["boundaries"] == tree[f"/admin/local-policies/{skew.namespace}"].content()["bundles"]["boundaries"]
    owners = {name: each["owner"] for name, each in ours["ownership"].items() if each["owner"]}
    assert owners == operator.owners(skew.namespace)
    assert dump["configuration"] == tree["/admin/configuration"].content()


def self_tests_reported(cluster: PulsarCluster) -> set[int]:
    """Of how many parts the names are of the namespaces that brokers test themselves by, of those in reports."""
    reports = contents(read_tree(cluster.zookeeper, "/loadbalance/brokers"), "/loadbalance/brokers")
    bundles = [name for report in reports.values() for name in report["bundles"]]
    return {name.count("/") for name in bundles if name.startswith("pulsar/")}


@pytest.mark.parametrize("command", ["serve", "agent"])
def test_what_writes_refuses_a_pulsars_root(cluster: PulsarCluster, tmp_path: Path, command: str) -> None:
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


def test_whatever_another_session_writes_is_seen(cluster: PulsarCluster) -> None:
    writers = Writers.watch(cluster)
    with looking_at(cluster.zookeeper) as client:
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


def test_reading_writes_nothing(cluster: PulsarCluster) -> None:
    writers = Writers.watch(cluster)
    read_dump(cluster, "--admin-url", cluster.brokers[0].web_url)
    sessions = {each.session for each in writers.others()}
    assert len(sessions) >= 1
    assert writers.changes_by_others() == []
