"""Beside a real Pulsar: commands in processes of their own, who wrote what, and what its leader decided."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from support.waiting import patience

from examples.pulsar.admin import demand
from examples.pulsar.cluster import Broker, PulsarCluster
from examples.pulsar.znodes import Transaction, Znode, last_zxid, read_transactions, read_tree
from loadmanager.lab.decide.broker_settings import RUNTIME_CONFIGURATION, settings_in
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats
from loadmanager.wire.dump_line import BrokerAverages
from loadmanager.wire.pulsar_records import HASH_FUNCTION, only

_MOVED = re.compile(r"Unloading bundle: (\S+) from broker (\S+) to dest broker (\S+)")


def run_loadmanager(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, to its end."""
    command = [sys.executable, "-m", "loadmanager", *arguments]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(), env=environment, check=False)


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "/loadbalance/brokers": tuple(LocalBrokerData.__annotations__),
    "/loadbalance/bundle-data": ("shortTermData", "longTermData", "topics"),
    "/loadbalance/broker-time-average": tuple(BrokerAverages.__annotations__),
}
"""What a line for `decide` has of each record of the modular load manager, by the path above the record."""


_STATS = tuple(NamespaceBundleStats.__annotations__)


def read_line(cluster: PulsarCluster) -> dict[str, Any]:
    """A line for `decide` from the znodes and the settings of a Pulsar with the modular load manager."""
    tree, broker = read_tree(cluster.zookeeper), cluster.brokers[0]
    told = settings_in(demand(broker.web_url, "GET", RUNTIME_CONFIGURATION).body, broker.web_url)
    assert told is not None
    brokers, bundles, averages = (
        {name: only(content, fields) for name, content in contents(tree, below).items()}
        for below, fields in _FIELDS.items()
    )
    namespaces: dict[str, dict[str, Any]] = {
        name: {"hashFunction": HASH_FUNCTION, "boundaries": content["bundles"]["boundaries"]}
        for name, content in contents(tree, "/admin/local-policies").items()
    }
    for bundle, owner in contents(tree, "/namespace").items():
        namespace, _, bundle_range = bundle.rpartition("/")
        ownership = namespaces.setdefault(namespace, {"hashFunction": HASH_FUNCTION}).setdefault("ownership", {})
        named = owner.get("brokerId") or urlsplit(owner["httpUrl"]).netloc
        ownership[bundle_range] = {"state": "Owned", "owner": named}
    for broker_data in brokers.values():
        stats = broker_data.get("lastStats") or {}
        broker_data["lastStats"] = {
            name: only(each, NamespaceBundleStats.__annotations__) for name, each in stats.items()
        }
    return {
        "takenAt": time.time_ns() // 1_000_000,
        "brokers": brokers,
        "bundleData": bundles,
        "timeAverages": {name: each for name, each in averages.items() if any(each.values())},
        "namespaces": namespaces,
        "configuration": told.texts,
    }


def contents(tree: Mapping[str, Znode], below: str) -> dict[str, Any]:
    """The objects in the znodes below a path, by what follows it."""
    start = f"{below}/"
    return {
        path.removeprefix(start): node.content() for path, node in tree.items() if path.startswith(start) and node.data
    }


@dataclass(slots=True)
class Writers:
    """Who has written to Pulsar's ZooKeeper since this was made: ZooKeeper's log names the session of every write."""

    cluster: PulsarCluster
    since_zxid: int
    pulsars: set[int]

    @classmethod
    def watch(cls, cluster: PulsarCluster) -> Writers:
        pulsars = cluster.own_sessions()
        assert len(pulsars) > len(cluster.serving())  # each broker's, and the bookie's
        return cls(cluster, last_zxid(cluster.zookeeper), pulsars)

    def others(self) -> list[Transaction]:
        """What sessions did that are none of Pulsar's own: beginning and ending alone change nothing."""
        pulsars = self.pulsars | self.cluster.own_sessions()
        done = read_transactions(self.cluster.zookeeper_data, self.since_zxid)
        return [each for each in done if each.session not in pulsars]

    def changes_by_others(self) -> list[Transaction]:
        return [each for each in self.others() if not each.kind.startswith("session")]


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that Pulsar's own leader made, as its log has it."""

    bundle: str
    source: str
    destination: str


@dataclass(slots=True)
class LeaderLog:
    """What the brokers' logs say from now on; the leader alone sheds."""

    cluster: PulsarCluster
    starts: dict[Broker, int]

    @classmethod
    def follow(cls, cluster: PulsarCluster) -> LeaderLog:
        return cls(cluster, {each: cluster.log_of(each).stat().st_size for each in cluster.brokers})

    def lines(self) -> Iterator[str]:
        for broker, start in self.starts.items():
            with self.cluster.log_of(broker).open("rb") as log:
                log.seek(start)
                yield from log.read().decode(errors="replace").splitlines()

    def moved(self) -> list[Moved]:
        return [Moved(*found.groups()) for line in self.lines() if (found := _MOVED.search(line))]
