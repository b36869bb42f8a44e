"""Helpers for a real Pulsar: run commands, list writers of znodes, and read the leader's decisions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from examples.pulsar.admin import demand
from examples.pulsar.cluster import Broker, PulsarCluster
from examples.pulsar.znodes import Transaction, Znode, last_zxid, read_transactions
from loadmanager.pulsar.broker_settings import RUNTIME_CONFIGURATION, settings_in

_MOVED = re.compile(r"Unloading bundle: (\S+) from broker (\S+) to dest broker (\S+)")


def run_loadmanager(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a loadmanager command and wait for its exit."""
    command = [sys.executable, "-m", "loadmanager", *arguments]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def read_dump(cluster: PulsarCluster) -> dict[str, Any]:
    """Dump a Pulsar with the modular load manager; add the settings of a broker, which ZooKeeper does not have."""
    done = run_loadmanager("dump", "--pulsar", "--metadata-store-url", f"zk:{cluster.zookeeper}")
    assert (done.returncode, done.stderr) == (0, "")
    dump: dict[str, Any] = json.loads(done.stdout)
    url = cluster.brokers[0].web_url
    told = settings_in(demand(url, "GET", RUNTIME_CONFIGURATION).body, url)
    assert told is not None
    return {**dump, "configuration": {**told.texts, **dump.get("configuration", {})}}


def contents(tree: Mapping[str, Znode], below: str) -> dict[str, Any]:
    """The objects in the znodes below a path, by what follows it."""
    start = f"{below}/"
    return {
        path.removeprefix(start): node.content() for path, node in tree.items() if path.startswith(start) and node.data
    }


@dataclass(slots=True)
class Writers:
    """Sessions that have written to Pulsar's ZooKeeper since this was made, from ZooKeeper's log."""

    cluster: PulsarCluster
    since_zxid: int
    pulsars: set[int]

    @classmethod
    def watch(cls, cluster: PulsarCluster) -> Writers:
        pulsars = cluster.own_sessions()
        assert len(pulsars) > len(cluster.serving())  # each broker's, and the bookie's
        return cls(cluster, last_zxid(cluster.zookeeper), pulsars)

    def others(self) -> list[Transaction]:
        """Return the transactions of sessions that are not Pulsar's own, without the begins and ends of sessions."""
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
    """Logs of the brokers from now on; the leader alone sheds."""

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
