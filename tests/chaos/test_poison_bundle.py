"""Real brokers are killed as soon as they have a bundle: the third time it is given to nobody, whoever leads."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.waiting import eventually

from loadmanager.demo.cluster import DemoCluster
from loadmanager.demo.settings import DemoSettings
from loadmanager.history.gaps import TERM_ENDED
from loadmanager.history.reader import History
from loadmanager.history.schemas import EVENTS

pytestmark = [pytest.mark.deep, pytest.mark.zookeeper, pytest.mark.slow]

NAMESPACE = "tenant/poison"
DEADLY = f"{NAMESPACE}/deadly"


async def test_the_fourth_broker_lives(tmp_path: Path) -> None:
    settings = DemoSettings(nodes=2, brokers=4)
    async with DemoCluster.started(settings, tmp_path) as demo, aiohttp.ClientSession() as http:

        async def ask(method: str, path: str, **options: Any) -> tuple[int, Any]:  # noqa: ANN401 - aiohttp's options
            async with http.request(method, f"{demo.node_urls[-1]}{path}", **options) as answer:
                return answer.status, await answer.json() if "json" in answer.content_type else None

        async def lookup(topic: str) -> tuple[int, Any]:
            return await ask("GET", f"/lookup/v2/topic/persistent/{topic}")

        async def leads() -> bool:
            return (await ask("GET", "/loadbalance/v1/poison"))[0] == 200

        switch = "/admin/v2/brokers/configuration/loadBalancerPoisonBundleDeaths/3"
        assert (await ask("POST", switch))[0] == 200
        assert (await ask("PUT", f"/admin/v2/namespaces/{NAMESPACE}", json={"bundles": {"numBundles": 16}}))[0] == 204
        died = []
        for _ in range(3):
            owner = None

            async def has_owner() -> bool:
                nonlocal owner
                status, body = await lookup(DEADLY)
                owner = body["brokerId"] if status == 200 else None
                return owner in {broker.broker_id for broker in demo.brokers.values()}

            await eventually(has_owner, what="it is given to a broker that lives")
            victim = next(broker for broker in demo.brokers.values() if broker.broker_id == owner)
            await demo.kill_broker(victim.name)
            died.append(victim.broker_id)

        async def is_poison() -> bool:
            return bool((await ask("GET", "/loadbalance/v1/poison"))[1]["bundles"])

        await eventually(is_poison, what="its bundle is poison")
        (found,) = (await ask("GET", "/loadbalance/v1/poison"))[1]["bundles"]
        assert [death["broker"] for death in found["deaths"]] == died
        _, leader = await ask("GET", "/admin/v2/brokers/leaderBroker")
        await demo.kill_node(next(node.name for node in demo.nodes.values() if node.url == leader["serviceUrl"]))
        await eventually(leads, what="another node leads")
        status, body = await lookup(DEADLY)
        assert (status, found["sentence"] in body["reason"]) == (503, True), body
        (survivor,) = demo.brokers.values()
        others = [await lookup(f"{NAMESPACE}/topic-{number}") for number in range(8)]
        assert {body["brokerId"] for status, body in others if status == 200} == {survivor.broker_id}

        assert (await ask("DELETE", f"/loadbalance/v1/poison?bundle={found['bundle']}"))[0] == 204
        status, body = await lookup(DEADLY)
        assert (status, body["brokerId"]) == (200, survivor.broker_id)
    assert {"poison_lifted", TERM_ENDED} <= kinds_of(demo.history), "all is written before a demo ends"
    replay = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadmanager", "replay", "--history", str(demo.history)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await replay.communicate()
    assert replay.returncode == 0, said.decode()


def kinds_of(history: Path) -> set[str]:
    return {row["kind"] for row in History(str(history)).rows(EVENTS)}
