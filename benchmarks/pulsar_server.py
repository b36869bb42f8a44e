"""Brokers of a large Pulsar for bench_pulsar: answers of real sizes, compressed, from one process.

    python benchmarks/pulsar_server.py BROKERS BUNDLES modular|extensible READY_FILE

Each broker has a loopback address of its own; all have the same port. `/sent` answers the number of bytes so far.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
from pathlib import Path

import orjson
from aiohttp import web

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.util.atomic_write import write_ready_file

NAMESPACE_BUNDLES = 100
TOPICS_EACH = 10
ANSWERS = Path(__file__).parents[1] / "tests" / "unit" / "pulsar" / "answers"
OTHER_METRICS = {f"brk_ml_{number}_of_a_managed_ledger": 0.0 for number in range(450)}
"""Other metrics, which a broker returns together with those of its load: 15 kB."""


class Cluster:
    """Answers of one cluster. Each namespace has bundles at every broker, and rates change with each request."""

    def __init__(self, brokers: int, bundles: int, load_manager: str, port: int) -> None:
        folder = ANSWERS / f"{load_manager}-4.2.4"
        self.brokers = [f"127.0.1.{number}:{port}" for number in range(1, brokers + 1)]
        self._settings = orjson.loads((folder / "runtime-balancer.json").read_bytes()) | {"clusterName": "bench"}
        self._report = orjson.loads((ANSWERS / "modular-4.2.4" / "load-report.json").read_bytes())
        self._load = next(iter(self._report["lastStats"].values()))
        topics = orjson.loads((ANSWERS / "extensible-4.2.4" / "topics.json").read_bytes())["shop/carts"]
        self._topic = next(iter(next(iter(topics.values()))["persistent"].values()))
        boundaries = equal_boundaries(NAMESPACE_BUNDLES)
        self._edges = {"boundaries": [f"0x{each:08x}" for each in boundaries], "numBundles": NAMESPACE_BUNDLES}
        ranges = NamespaceBundles(boundaries).range_texts()
        self._namespaces = [f"bench/namespace-{number}" for number in range(bundles // NAMESPACE_BUNDLES)]
        names = [f"{namespace}/{each}" for namespace in self._namespaces for each in ranges]
        self._owned = {broker: names[number::brokers] for number, broker in enumerate(self.brokers)}
        self._topics: dict[str, bytes] = {}

    def answer(self, broker: str, path: str) -> object:
        """Return a broker's answer to a GET; None for an unknown path."""
        last = path.rpartition("/")[2]
        fixed = {
            "brokers": self.brokers,
            "leaderBroker": {"brokerId": self.brokers[0], "serviceUrl": f"http://{self.brokers[0]}"},
            "values": {},
            "runtime": self._settings,
            "tenants": ["bench"],
            "bench": self._namespaces,
            "bundles": self._edges,
            "failureDomains": {},
            "namespaceIsolationPolicies": {},
            "version": "4.2.4",
            "antiAffinity": "",
        }
        if last in fixed:
            return fixed[last]
        if last == "ownedNamespaces":
            state = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
            return dict.fromkeys(self._owned[broker], state)
        made = {"load-report": self._make_report, "metrics": self._make_metrics}.get(last)
        return None if made is None else made(broker)

    def topics(self, broker: str) -> bytes:
        """Return the compressed topics of a broker."""
        if broker not in self._topics:
            found: dict[str, dict[str, object]] = {}
            for bundle in self._owned[broker]:
                namespace, _, text = bundle.rpartition("/")
                names = (f"persistent://{namespace}/{text}-{number}" for number in range(TOPICS_EACH))
                found.setdefault(namespace, {})[text] = {"persistent": {name: self._make_topic() for name in names}}
            self._topics[broker] = gzip.compress(orjson.dumps(found))
        return self._topics[broker]

    def _make_topic(self) -> object:
        rates = {key: random.uniform(1e4, 1e6) for key in self._topic if key.startswith("msg")}
        publishers = [each | rates for each in self._topic["publishers"]]
        return self._topic | rates | {"publishers": publishers, "storageSize": random.randrange(10**9)}

    def _make_report(self, broker: str) -> object:
        owned = self._owned[broker]
        rates = [key for key in self._load if key.startswith("msg")]
        stats = {name: self._load | {key: random.uniform(1e4, 1e6) for key in rates} for name in owned}
        totals = {key: sum(each[key] for each in stats.values()) for key in rates}
        named = {"webServiceUrl": f"http://{broker}", "lastStats": stats, "bundles": owned}
        return {**self._report, **totals, **named}

    def _make_metrics(self, broker: str) -> object:
        usage = {f"brk_lb_{key}_usage": random.uniform(10, 60) for key in ("cpu", "memory", "directMemory")}
        dimensions = {"broker": broker, "metric": "loadBalancing"}
        return [{"metrics": OTHER_METRICS, "dimensions": {}}, {"metrics": usage, "dimensions": dimensions}]


async def serve(brokers: int, bundles: int, load_manager: str, ready_file: Path) -> None:
    sent = 0
    cluster: Cluster

    async def answer(request: web.Request) -> web.Response:
        nonlocal sent
        if request.path == "/sent":
            return web.json_response(sent)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        if request.path.endswith("/topics"):
            body = cluster.topics(request.host)
        else:
            found = cluster.answer(request.host, request.path)
            if found is None:
                return web.Response(status=404)
            body = gzip.compress(found.encode() if isinstance(found, str) else orjson.dumps(found), compresslevel=6)
        sent += len(body)
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    cluster = Cluster(brokers, bundles, load_manager, runner.addresses[0][1])
    write_ready_file(ready_file, {"url": f"http://{cluster.brokers[0]}"})
    await asyncio.Event().wait()


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
