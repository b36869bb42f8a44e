"""Three brokers on one host with 100 kB/s, by the generated configuration and the agents' defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.waiting import eventually

from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import render_yaml
from loadmanager.dev.demo import demo_cluster
from loadmanager.dev.demo.demo_cluster import DemoCluster
from loadmanager.dev.demo.demo_settings import TENANT, DemoSettings, DemoWorkload

pytestmark = [pytest.mark.deep, pytest.mark.zookeeper]

WORKLOAD = DemoWorkload(messages_per_s=200, message_bytes=512, topics=60, hot_share=0)
SETTINGS = DemoSettings(nodes=1, brokers=1, client_processes=1, bundles_per_namespace=8, workload=WORKLOAD)


def node(_: DemoSettings, connect_string: str, history: Path) -> dict[str, Any]:
    """A short grace period: on a slow machine the third broker comes a round after the second has been filled."""
    return {
        **yaml.safe_load(render_yaml(Settings)),
        "loadBalancerSheddingGracePeriodMinutes": 0.5,
        "metadataStoreUrl": f"zk:{connect_string}",
        "historyUrl": str(history),
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "webServicePort": 0,
    }


def agent(connect_string: str, broker_ready: dict[str, Any], node_urls: Sequence[str]) -> dict[str, Any]:
    """A long session: a broker that loses its own on a busy machine comes back as new, and gets nothing for minutes."""
    return {
        "metadataStoreSessionTimeoutMillis": 60_000,
        "metadataStoreUrl": f"zk:{connect_string}",
        "brokerId": broker_ready["broker_id"],
        "brokerUrl": broker_ready["url"],
        "brokerServiceUrl": broker_ready["data_url"],
        "loadManagerUrls": list(node_urls),
        "bindAddress": "127.0.0.1",
        "agentPort": 0,
        "agentLocalPort": 0,
        "loadBalancerHostUsageCheckIntervalMinutes": 0.05,
        "statsUpdateFrequencyInSecs": 2,
    }


def logs_of_agents(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in folder.glob("broker-*-agent.log")]


async def test_small_fleet_is_levelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_cluster, "node_configuration", node)
    monkeypatch.setattr(demo_cluster, "agent_configuration", agent)
    rates = dict(zip(WORKLOAD.topic_names(), WORKLOAD.rates(), strict=True))
    async with DemoCluster.started(SETTINGS, tmp_path) as cluster, aiohttp.ClientSession() as http:
        url = cluster.node_urls[0]

        async def carried() -> list[float]:
            """Messages/s of each broker, by the topics that it has open."""
            found = []
            for broker in cluster.brokers.values():
                async with http.get(f"{broker.url}/loadmanager/v1/stats") as answer:
                    found.append(sum(rates[each["topic"]] for each in (await answer.json())["topics"]))
            return found

        async def known() -> bool:
            async with http.get(f"{url}/admin/v2/brokers") as answer:
                return len(await answer.json()) == 1

        await eventually(known)
        for namespace in WORKLOAD.namespaces:
            body = {"bundles": {"numBundles": SETTINGS.bundles_per_namespace}}
            async with http.put(f"{url}/admin/v2/namespaces/{TENANT}/{namespace}", json=body) as answer:
                assert answer.status == 204
        await cluster.start_clients()

        async def all_open() -> bool:
            return sum(await carried()) == pytest.approx(200)

        await eventually(all_open, "one broker has all topics")
        for _ in range(2):
            await cluster.start_broker()

        async def is_even() -> bool:
            now = await carried()
            return sum(now) == pytest.approx(200) and max(now) <= 1.4 * 200 / 3

        await eventually(is_even, "each has a third, but for the size of bundles", least_s=180)
    assert len(logs := logs_of_agents(tmp_path)) == 3
    measured = re.compile(r"broker_measured .*scope=process")
    assert all(measured.search(log) for log in logs), "each measured its broker's process"
