"""Skewed load: a few hot bundles, all at the same broker, and many cool ones everywhere."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.operations import Operator, topics_in
from examples.pulsar.progress import wait_until
from loadmanager.errors import EmbeddedServerError

_ROOT = Path(__file__).parents[2]
_CONNECT_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Skew:
    """Skewed load. Half of the bundles, with the hot ones, begin at the first broker, the rest at the others.

    No two bundles have the same load, so their order by load is unique.
    """

    namespace: str = "shop/orders"
    bundles: int = 16
    topics_each: int = 2
    hot_bundles: int = 6
    hot_rate: float = 50.0
    """Messages per second of a topic in the hottest bundle; each following bundle has a tenth of it less."""
    cool_rate: float = 4.0
    """Messages per second of a topic in the hottest cool bundle; each following one has a twentieth of it less."""

    def rate(self, bundle: int) -> float:
        """Return the messages per second of each topic in the bundle with this index."""
        if bundle < self.hot_bundles:
            return self.hot_rate * (1 - bundle / 10)
        return self.cool_rate * (1 - (bundle - self.hot_bundles) / 20)

    def prepare(self, cluster: PulsarCluster) -> dict[str, float]:
        """Create the namespace if needed, and place the bundles; return the rate of each topic."""
        operator = Operator(cluster)
        if self.namespace not in _namespaces(operator, self.namespace):
            operator.make_namespace(self.namespace, self.bundles)
        ranges = operator.bundles_of(self.namespace)
        first, *others = cluster.brokers
        half = len(ranges) // 2
        where = {each: first if i < half or not others else others[i % len(others)] for i, each in enumerate(ranges)}
        operator.spread(self.namespace, where)
        return {
            topic: self.rate(i)
            for i, each in enumerate(ranges)
            for topic in topics_in(self.namespace, each, self.topics_each)
        }


@dataclass(slots=True)
class RunningLoad:
    """Handle of a process that sends and receives (`examples.pulsar.load`)."""

    process: subprocess.Popen[bytes]
    counts: list[dict[str, Any]] = field(default_factory=list)
    """Counts so far, one entry per second."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """Final counts of all messages, after its end."""
    _reader: threading.Thread | None = None

    def listen(self) -> None:
        self._reader = threading.Thread(target=self._read_counts, daemon=True)
        self._reader.start()

    def wait_until_flowing(self, messages: int = 1) -> None:
        """Wait until `messages` more messages were received."""
        wanted = messages + (self.counts[-1]["receipts"] if self.counts else 0)
        wait_until(
            lambda: self.counts and self.counts[-1]["receipts"] >= wanted,
            "messages flow",
            timeout_s=_CONNECT_TIMEOUT_S,
            check=self._check,
        )

    def finish(self) -> dict[str, Any]:
        """Stop sending and wait for in-flight messages; return the final counts."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(_END_TIMEOUT_S)
        self.close()
        if not self.outcome:
            raise EmbeddedServerError(f"the load ended with exit code {self.process.returncode} and no outcome")
        return self.outcome

    def close(self) -> None:
        """End the process and read its last output. Idempotent."""
        self.process.wait()
        assert self._reader is not None
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _check(self) -> None:
        if self.process.poll() is not None:
            raise EmbeddedServerError(f"the load ended with exit code {self.process.returncode}")

    def _read_counts(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            content = json.loads(line)
            if "outcome" in content:
                self.outcome = content["outcome"]
            else:
                self.counts.append(content)


@contextlib.contextmanager
def running_load(cluster: PulsarCluster, rates: Mapping[str, float], name: str = "load") -> Iterator[RunningLoad]:
    """Run the load in this block. Call `finish` for the final counts."""
    file = cluster.folder / f"{name}.json"
    file.write_text(json.dumps(rates), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.pulsar.load", cluster.service_url, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_ROOT,
    )
    load = RunningLoad(process)
    load.listen()
    try:
        load.wait_until_flowing()
        yield load
    finally:
        process.kill()
        load.close()


def _namespaces(operator: Operator, namespace: str) -> list[str]:
    tenant = namespace.partition("/")[0]
    if tenant not in operator.get("/admin/v2/tenants"):
        return []
    found: list[str] = operator.get(f"/admin/v2/namespaces/{tenant}")
    return found
