from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web
from support.dumps import answers
from support.registrations import write
from support.servers import LoopbackServer, closed_port
from support.stores import MemoryWorld
from typer.testing import CliRunner, Result

from loadmanager.cli.dump_command import dump
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.broker_settings import BrokerSettings, BrokerSettingsError, fetch_settings
from loadmanager.lab.decide.decision_settings import PLACEMENT, SHEDDING
from loadmanager.lab.decide.pulsar_dump import collect_pulsar
from loadmanager.lab.decide.record_collector import Collected
from loadmanager.net.auth.outgoing_token import TokenAlone
from loadmanager.net.http_client import Caller
from loadmanager.wire.dump_line import encode

PATH = "/admin/v2/brokers/configuration/runtime"
IMPL = "org.apache.pulsar.broker.loadbalance.impl"
RUNTIME = {
    "clusterName": "c1",
    "metadataStoreUrl": "zk:127.0.0.1:23181",
    "metadataStoreSessionTimeoutMillis": "30000",
    "advertisedAddress": "127.0.0.21",
    "bindAddress": "0.0.0.0",
    "webServicePort": "Optional[28080]",
    "brokerServicePort": "Optional[26650]",
    "brokerClientAuthenticationParameters": "token:secret",
    "superUserRoles": "[]",
    "loadBalancerEnabled": "true",
    "loadManagerClassName": f"{IMPL}.ModularLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": f"{IMPL}.ThresholdShedder",
    "loadBalancerLoadPlacementStrategy": f"{IMPL}.LeastLongTermMessageRate",
    "loadBalancerSheddingExcludedNamespaces": "[]",
    "supportedNamespaceBundleSplitAlgorithms": "[range_equally_divide, topic_count_equally_divide]",
    "loadBalancerBrokerThresholdShedderPercentage": "60",
    "loadBalancerBandwithInResourceWeight": "1.0",
    "loadBalancerBandwidthInResourceWeight": "1.0",
    "loadBalancerSheddingGracePeriodMinutes": "2",
    "loadBalancerReportUpdateMaxIntervalMinutes": "1",
    "loadBalancerOverrideBrokerNicSpeedGbps": "Optional.empty",
    "loadBalancerPlacementStrategy": "",
    "loadBalancerBundleUnloadMinThroughputThreshold": "0.02",
    "preferLaterVersions": "false",
}
"""As a broker of Pulsar 4.0.1 writes it, without most of its 528 keys."""

UNSET = ("", "Optional.empty")


@dataclass(slots=True)
class SettingsServer(LoopbackServer):
    """Answers the question for its settings with `status` and `body`, or not at all."""

    status: int = 200
    body: bytes = json.dumps(RUNTIME).encode()
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.authorizations.append(request.headers.get("Authorization"))
        if self.silent:
            await asyncio.Event().wait()
        where = {"Location": f"http://127.0.0.1:{closed_port()}/"} if self.status == 307 else {}
        return web.Response(status=self.status, body=self.body, content_type="application/json", headers=where)


@pytest.fixture
async def broker() -> AsyncIterator[SettingsServer]:
    async with SettingsServer() as broker:
        yield broker


def a_broker_record(cpu: float, bundles: list[str]) -> dict[str, Any]:
    stats = {"msgThroughputIn": 2.0e8, "msgThroughputOut": 2.0e8, "msgRateIn": 1.0, "msgRateOut": 1.0}
    usage = {"cpu": {"usage": cpu, "limit": 100.0}, "msgThroughputIn": 4.0e8, "msgThroughputOut": 4.0e8}
    return {**usage, "lastStats": dict.fromkeys(bundles, stats), "bundles": bundles}


ZNODES: dict[str, object] = {
    "/loadbalance/brokers/b1:8080": a_broker_record(95.0, ["t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"]),
    "/loadbalance/brokers/b2:8080": a_broker_record(5.0, []),
}


async def collected(told: BrokerSettings | None, more: dict[str, object], cluster: str | None = None) -> Collected:
    world = MemoryWorld()
    try:
        store = await world.connect()
        for path, content in {**ZNODES, **more}.items():
            await write(store, path, json.dumps(content).encode())
        return await collect_pulsar(store, 1_753_000_060_000, cluster, told)
    finally:
        await world.close()


@pytest.mark.parametrize("end", ["", "/"])
async def test_a_broker_is_asked_once_for_what_it_goes_by(broker: SettingsServer, end: str) -> None:
    told = await fetch_settings(broker.url + end)
    assert broker.asked == [f"GET {PATH}"]
    assert (told.url, told.cluster) == (broker.url + end, "c1")
    assert told.texts == {
        **{key: text for key, text in RUNTIME.items() if key.startswith(("load", "prefer")) and text not in UNSET},
        "loadBalancerSheddingExcludedNamespaces": "",
        "supportedNamespaceBundleSplitAlgorithms": "range_equally_divide,topic_count_equally_divide",
    }


async def test_a_dump_decides_by_the_settings_of_the_broker(broker: SettingsServer) -> None:
    asked = ("--shed", "ThresholdShedder")
    alone = json.loads(encode((await collected(None, {})).finish()))
    assert "configuration" not in alone
    (answer,) = answers(alone, *asked)
    assert len(answer["decisions"]) == 1
    found = await collected(await fetch_settings(broker.url), {})
    assert found.faults == []
    (answer,) = answers(json.loads(encode(found.finish())), *asked)
    assert answer["decisions"] == []
    assert answer["verdicts"][0]["why"]["loadBalancerBrokerThresholdShedderPercentage"] == 60


async def test_dynamic_configuration_wins_over_what_a_broker_tells() -> None:
    told = BrokerSettings("http://b", "c1", {"loadBalancerBrokerThresholdShedderPercentage": "60"})
    found = await collected(
        told, {"/admin/configuration": {"loadBalancerBrokerThresholdShedderPercentage": "20", "webServicePort": "1"}}
    )
    assert found.finish()["configuration"] == {"loadBalancerBrokerThresholdShedderPercentage": "20"}
    assert found.faults == []


async def test_a_dynamic_value_that_brokers_ignore_is_left_out_and_said() -> None:
    told = BrokerSettings("http://b", "c1", {"loadBalancerBrokerThresholdShedderPercentage": "60"})
    found = await collected(told, {"/admin/configuration": {"loadBalancerBrokerThresholdShedderPercentage": "many"}})
    assert found.finish()["configuration"] == told.texts
    (fault,) = found.faults
    assert fault.startswith("/admin/configuration: loadBalancerBrokerThresholdShedderPercentage: ")


async def test_strategies_that_are_not_known_here_are_left_out_together_and_said_once() -> None:
    strategies = {
        "loadBalancerLoadSheddingStrategy": "x.Own",
        "loadBalancerLoadPlacementStrategy": f"{IMPL}.AvgShedder",
    }
    found = await collected(BrokerSettings("http://b", "c1", {**strategies, "preferLaterVersions": "true"}), {})
    assert found.finish()["configuration"] == {"preferLaterVersions": "true"}
    (fault,) = found.faults
    assert fault.startswith("--admin-url http://b: loadBalancerLoadSheddingStrategy: ")


async def test_a_strategy_that_has_to_be_both_is_taken_along_as_both() -> None:
    both = dict.fromkeys(
        ["loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy"], f"{IMPL}.AvgShedder"
    )
    found = await collected(BrokerSettings("http://b", "c1", both), {})
    assert found.faults == []
    line = json.loads(encode(found.finish()))
    assert line["configuration"] == both
    assert len(answers(line, "--shed", "ThresholdShedder")) == 1


async def test_half_of_such_a_strategy_is_usable_over_the_other_half_that_a_broker_tells() -> None:
    own = f"{IMPL}.AvgShedder"
    changed: dict[str, object] = {"/admin/configuration": {SHEDDING: own}}
    found = await collected(BrokerSettings("http://b", "c1", {PLACEMENT: own, SHEDDING: own}), changed)
    assert (found.finish()["configuration"], found.faults) == ({PLACEMENT: own, SHEDDING: own}, [])
    alone = await collected(None, changed)
    assert "configuration" not in alone.finish()
    assert [fault.partition(": ")[0] for fault in alone.faults] == ["/admin/configuration"]


CLUSTERS: dict[str, object] = {f"/admin/clusters/{name}/failureDomain/{name}": {"brokers": []} for name in ("c1", "c2")}


@pytest.mark.parametrize(("cluster", "domain"), [(None, "c1"), ("c2", "c2")])
async def test_policies_are_of_the_brokers_own_cluster(cluster: str | None, domain: str) -> None:
    found = await collected(BrokerSettings("http://b", "c1", {}), CLUSTERS, cluster)
    assert found.faults == []
    assert list(found.finish()["failureDomains"]) == [domain]


async def test_a_broker_of_another_cluster_is_refused() -> None:
    with pytest.raises(
        BrokerSettingsError, match=r"--admin-url http://b: .* 'c9', and /admin/clusters has c1, c2: give"
    ):
        await collected(BrokerSettings("http://b", "c9", {}), CLUSTERS)


OTHERS = {"clusterName": "c1", "loadManagerClassName": "x", "loadBalancerEnabled": True}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"", " answered 401: the broker wants credentials.* --token-file; or leave --admin-url out.* --set"),
        (403, b"no", " answered 403 'no': the broker wants credentials"),
        (404, b"", " answered 404: give the web service of a Pulsar broker, such as http://broker:8080"),
        (307, b"", " answered 307: it sends elsewhere, to 'http://127.* give the web service"),
        (500, b"", " answered 500: it cannot answer now: try again, or another broker"),
        (503, b"", " answered 503: it cannot answer now"),
        (200, b"", " answered 200: no settings of a Pulsar broker: give the web service"),
        (200, b"<html>", " answered 200 '<html>': no settings of a Pulsar broker"),
        (200, b"[" * 100_000, "no settings of a Pulsar broker"),
        (200, b"\xff\x1b", "no settings of a Pulsar broker"),
        (200, b"[1]", "no settings of a Pulsar broker"),
        (200, b'{"status": "UP"}', "no settings of a Pulsar broker"),
        (200, json.dumps(OTHERS).encode(), "no settings of a Pulsar broker"),
    ],
)
async def test_answer_without_settings(broker: SettingsServer, status: int, body: bytes, said: str) -> None:
    broker.status, broker.body = status, body
    with pytest.raises(BrokerSettingsError, match=f"^--admin-url: {broker.url}{PATH}.*{said}") as refused:
        await fetch_settings(broker.url)
    assert str(refused.value).isprintable()
    assert broker.asked == [f"GET {PATH}"]


async def test_a_broker_is_shown_the_token(broker: SettingsServer) -> None:
    await fetch_settings(broker.url, caller=Caller(TokenAlone("a.b.c", "")))
    assert broker.authorizations == ["Bearer a.b.c"]


async def test_no_answer_is_said_with_what_to_do(broker: SettingsServer) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(BrokerSettingsError, match=f"^--admin-url: {gone}.*: give the web service .* running"):
        await fetch_settings(gone)
    broker.silent = True
    with pytest.raises(BrokerSettingsError, match=r"did not answer within 0.05 s: give the web service"):
        await fetch_settings(broker.url, 0.05)


@pytest.mark.parametrize(
    "url", ["", "b1:8080", "ftp://b1", "http://", "http://b1:x", "http://b1/admin", "http://b1?a=b"]
)
async def test_what_is_no_address_of_a_broker_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the web service of a broker, such as http://broker:8080"):
        await fetch_settings(url)


def run(*arguments: str) -> Result:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(dump)
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--admin-url", "http://b1:8080"], 2, "loadmanager: --admin-url: only with --pulsar"),
        (["--pulsar", "--admin-url", "b1:8080"], 2, "loadmanager: --admin-url 'b1:8080': expected"),
        (["--pulsar", "--admin-url", f"http://127.0.0.1:{closed_port()}"], 1, "loadmanager: --admin-url: http://127"),
    ],
)
def test_no_dump_without_requested_settings(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    result = run(*arguments, "--output", str(tmp_path / "dump.jsonl"))
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "dump.jsonl").exists()
