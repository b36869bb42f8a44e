from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import AsyncIterator

import pytest
import structlog
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.nodes import Cluster, RunningNode, a_leader, in_memory
from support.registrations import a_record, load_of
from support.waiting import eventually

import loadmanager
from loadmanager.core.domain.names import TopicName
from loadmanager.net.http_server import ServerLimits


@pytest.fixture
def memory() -> MemoryCluster:
    return a_memory_cluster()


@pytest.fixture
async def cluster(memory: MemoryCluster) -> AsyncIterator[Cluster]:
    async with Cluster(in_memory(memory)) as cluster:
        await cluster.start_leader(cluster_name="west")
        await cluster.a_broker()
        await cluster.a_namespace()
        yield cluster


async def test_health_says_whether_the_node_leads(node: RunningNode) -> None:
    reply = await node.get("/healthz")
    assert (reply.status, reply.json()) == (200, {"nodeId": node.node.node_id, "leading": True})


async def test_leader_logs_once_that_nothing_can_move_until_that_changes() -> None:
    key = "loadBalancerSheddingEnabled"
    async with a_leader(**{key: False, "loadBalancerSheddingIntervalMinutes": 0.001}) as (cluster, node):
        with capture_logs() as logs:
            await eventually(lambda: node.node.stuck_monitor.found)
            for _ in range(3):
                await node.node.stuck_monitor.look()
            ready = await node.get("/readyz")
            assert ready.status == 200
            (said,) = ready.json()["cannotMove"]
            fix = f"loadmanager admin brokers update-dynamic-config --config {key} --value true"
            assert said == {"key": key, "sentence": f"Nothing can move because {key} is false; {fix}"}
            metrics = (await node.get("/metrics")).body.decode()
            assert 'loadmanager_cannot_move{cluster="standalone"} 1.0' in metrics
            assert "loadmanager_brokers_needed" not in metrics  # no broker has reported
            assert (await node.ask("POST", f"/admin/v2/brokers/configuration/{key}/true")).status == 200
            await eventually(lambda: not node.node.stuck_monitor.found)
            await node.node.stuck_monitor.look()
            await node.node.stuck_monitor.look()
            assert (await node.get("/readyz")).json()["cannotMove"] == []
        told = [entry for entry in logs if entry["event"] in ("nothing_can_move", "moves_possible_again")]
        assert [(entry["event"], entry["log_level"]) for entry in told] == [
            ("nothing_can_move", "warning"),
            ("moves_possible_again", "info"),
        ]
        assert (told[0]["keys"], told[0]["why"]) == ([key], [said["sentence"]])
        standby = await cluster.start_node()
        assert (await standby.get("/readyz")).json()["cannotMove"] == []


async def test_node_with_an_ended_task_is_not_healthy(node: RunningNode) -> None:
    node.node.failure.set_exception(ValueError("the intake ended"))
    reply = await node.get("/healthz")
    assert (reply.status, reply.reason) == (500, "a task ended: the intake ended")


async def test_ready_node_lists_faults(cluster: Cluster, node: RunningNode) -> None:
    await cluster.brokers["b1:8080"].report(b"{garbage")
    await eventually(lambda: node.node.mirror.faults)
    reply = await node.get("/readyz")
    assert (reply.status, reply.json()["epoch"]) == (200, 1)
    assert "Invalid JSON" in reply.json()["faults"]["/loadbalance/brokers/b1:8080"]


async def test_disconnected_node_is_healthy_and_not_ready(node: RunningNode, memory: MemoryCluster) -> None:
    assert isinstance(node.store, MemoryStore)
    memory.partition(node.store, noticed=True)
    reply = await node.get("/readyz")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert reply.reason == "the session with ZooKeeper is suspended"
    assert (await node.get("/healthz")).status == 200
    memory.heal(node.store)
    await eventually(lambda: node.node.mirror.is_fresh)
    assert (await node.get("/readyz")).status == 200


async def test_readiness_names_the_obstacle_of_the_session(
    node: RunningNode, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(node.store, MemoryStore)
    monkeypatch.setattr(MemoryStore, "obstacle", "127.0.0.1:2181 hangs up")
    memory.partition(node.store, noticed=True)
    reply = await node.get("/readyz")
    assert reply.reason == "the session with ZooKeeper is suspended: 127.0.0.1:2181 hangs up"


async def test_session_given_up_is_counted(node: RunningNode, memory: MemoryCluster) -> None:
    saved = memory.save()
    memory.set_back(saved)
    metrics = (await node.get("/metrics")).body.decode()
    assert 'loadmanager_sessions_given_up_total{cluster="west"} 1.0' in metrics


OF_PROCESS = ("process_", "loadmanager_build_info")
"""Prefixes of metrics of the process, which have no cluster."""


async def test_metrics_are_valid_and_have_the_names_of_pulsar(cluster: Cluster, node: RunningNode) -> None:
    broker = cluster.brokers["b1:8080"]
    await broker.report(a_record("b1:8080", agent_url=broker.url, cpu=42.0))
    await eventually(lambda: node.node.intake.reports_applied == 2)
    await node.lookup("persistent://t/ns/x")
    await node.lookup("persistent://t/gone/x")
    await node.node.bundles.unload_namespace(TopicName.parse("persistent://t/ns/x").namespace)
    reply = await node.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            assert sample.labels.get("cluster") == "west" or sample.name.startswith(OF_PROCESS)
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    west = ("cluster", "west")
    usage = (("broker", "b1:8080"), west, ("metric", "loadBalancing"))
    assert samples["pulsar_lb_cpu_usage", usage] == 42.0
    for resource in ("memory", "directMemory", "bandwidth_in", "bandwidth_out"):
        assert samples[f"pulsar_lb_{resource}_usage", usage] == 0.0
    unloading = (west, ("metric", "bundleUnloading"))
    assert samples["pulsar_lb_unload_bundle_total", unloading] == 1
    assert samples["pulsar_lb_unload_broker_total", unloading] == 0
    assert samples["pulsar_broker_lookup_failures_total", (west,)] == 1
    assert samples["loadmanager_lookup_seconds_count", (west,)] == 1
    assert samples["loadmanager_leader", (west,)] == 1
    assert samples["loadmanager_lease_seconds", (west,)] > 0
    assert samples["process_resident_memory_bytes", ()] > 1_000_000
    built = (("python", platform.python_version()), ("version", loadmanager.__version__))
    assert samples["loadmanager_build_info", built] == 1


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.2, text/plain;version=0.0.4;q=0.5",
            "text/plain; version=0.0.4",
        ),
        ("application/openmetrics-text;version=1.0.0;q=0", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0"),
        ("application/openmetrics-text;version=newest", "text/plain; version=0.0.4"),
    ],
)
async def test_metrics_format(node: RunningNode, accept: str, content_type: str) -> None:
    reply = await node.get("/metrics/", headers={"Accept": accept})
    assert (reply.status, reply.headers["Content-Type"].partition("; charset")[0]) == (200, content_type)
    is_open = content_type.startswith("application/openmetrics-text")
    parse = openmetrics_families if is_open else text_string_to_metric_families
    assert "loadmanager_leader" in [family.name for family in parse(reply.body.decode())]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz/", 200),
        ("GET", "/loadbalance/v1/decisions/?limit=1", 200),
        ("GET", "/lookup/v2/topic/persistent/t/ns/x/", 200),
        ("PUT", "/admin/v2/namespaces/t/ns/unload/", 204),
        ("DELETE", "/metrics/", 405),
        ("GET", "/healthz//", 404),
    ],
)
async def test_trailing_slash_is_ignored(node: RunningNode, method: str, path: str, status: int) -> None:
    assert (await node.ask(method, path)).status == status


async def test_status_page_of_pulsar_follows_readiness(node: RunningNode, memory: MemoryCluster) -> None:
    reply = await node.get("/status.html")
    assert (reply.status, reply.body, reply.headers["Content-Type"]) == (200, b"OK", "text/plain; charset=utf-8")
    assert isinstance(node.store, MemoryStore)
    memory.partition(node.store, noticed=True)
    assert (await node.get("/status.html")).status == 503


async def test_metrics_of_transfer_shedder_have_the_names_of_pulsar() -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader(load_balancer_load_shedding_strategy="TransferShedder")
        for number in range(3):
            record = a_record(f"b{number}:8080", cpu=30.0 * number)
            record["lastUpdate"] = time.time_ns() // 1_000_000
            await cluster.a_broker(f"b{number}:8080", record)
        await eventually(lambda: len(leader.node.mirror.brokers) == 3)
        await leader.node.shedding.run_round()
        samples = {
            (sample.name, sample.labels.get("stat") or sample.labels.get("reason")): sample.value
            for family in text_string_to_metric_families((await leader.get("/metrics")).body.decode())
            for sample in family.samples
        }
        assert samples["pulsar_lb_resource_usage_stats", "avg"] == pytest.approx(0.3, abs=1e-6)
        assert samples["pulsar_lb_resource_usage_stats", "std"] == pytest.approx(0.244949, abs=1e-5)
        assert samples["pulsar_lb_unload_broker_breakdown_total", "HitCount"] == 1


async def test_leader_exposes_the_last_round_and_its_lower_bound() -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader()
        agent = await cluster.a_broker("b1:8080")
        names = await cluster.a_namespace("t/ns")
        await asyncio.gather(*(leader.node.assigner.request(name) for name in names))
        await cluster.a_broker("b2:8080")
        await agent.report(a_record("b1:8080", {names[0]: load_of(8.0)}, agent_url=agent.url, cpu=80))
        await eventually(lambda: bool(leader.node.planner.snapshot().bundles.movable.any()))
        assert "loadmanager_plan_" not in (await leader.get("/metrics")).body.decode()
        await leader.node.shedding.run_round()
        text = (await leader.get("/metrics")).body.decode()
        samples = {
            sample.name: (sample.value, sample.labels)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        heat, bound = samples["loadmanager_plan_heat_after"][0], samples["loadmanager_plan_bound"][0]
        assert heat >= bound > 0
        assert samples["loadmanager_plan_bound_info"][1]["by"] in ("volume", "heaviest", "pigeonhole", "prices")
        assert samples["loadmanager_usage_after_loss_of_broker"][1]["lost"] in ("b1:8080", "b2:8080")
        assert "loadmanager_usage_after_loss_of_domain" not in samples


async def test_metrics_of_rejected_records_and_faults(cluster: Cluster, node: RunningNode) -> None:
    await cluster.brokers["b1:8080"].report(b"{garbage")
    await eventually(lambda: node.node.mirror.faults)
    text = (await node.get("/metrics")).body.decode()
    assert 'loadmanager_records_rejected_total{cluster="west"} 1.0' in text
    assert 'loadmanager_faulty_znodes{cluster="west"} 1.0' in text


async def test_unknown_path_is_404(node: RunningNode) -> None:
    reply = await node.get("/no/such/path")
    assert (reply.status, reply.reason) == (404, "no such path: /no/such/path")


async def test_method_not_allowed_is_405_with_the_allowed_ones(node: RunningNode) -> None:
    reply = await node.put("/healthz")
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET,HEAD"
    assert reply.reason == "PUT /healthz: Method Not Allowed"


async def test_compressed_body_is_400(node: RunningNode) -> None:
    with structlog.testing.capture_logs() as logs:
        reply = await node.put("/admin/v2/namespaces/t/new", data=b"{}", headers={"Content-Encoding": "gzip"})
        assert (reply.status, reply.reason) == (400, "Content-Encoding: 'gzip': send the body as it is")
    assert [each["event"] for each in logs] == ["operation"]


async def test_missing_body_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        patient = await cluster.start_leader()
        with monkeypatch.context() as hurried:
            hurried.setattr(ServerLimits, "of", lambda *_: ServerLimits(2_048, body_s=0.2))
            impatient = await cluster.start_node()
        ports = [each.node.service_url.rpartition(":")[2] for each in (impatient, patient)]
        request = b"PUT /admin/v2/namespaces/t/ns HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        with structlog.testing.capture_logs() as logs:
            writer.write(request)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert answer.endswith(b'{"reason":"PUT /admin/v2/namespaces/t/ns: the body took longer than 0.2 s"}')
            writer.close()
            _, writer = await asyncio.open_connection("127.0.0.1", ports[1])
            writer.write(request)
            await eventually(lambda: any(each._current_request for each in patient.connections))
            writer.close()
            await eventually(lambda: not any(each._current_request for each in patient.connections))
        assert [entry for entry in logs if entry["log_level"] != "info"] == []


async def test_unexpected_error_is_500_and_logged(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: TopicName) -> None:
        raise RuntimeError("a defect")

    with structlog.testing.capture_logs() as logs, monkeypatch.context() as broken:
        broken.setattr(node.node.lookups, "find_owner", fail)
        reply = await node.lookup("persistent://t/ns/x")
    assert (reply.status, reply.reason) == (500, "RuntimeError: a defect")
    (entry,) = [entry for entry in logs if entry["event"] == "request_failed"]
    assert (entry["log_level"], entry["path"]) == ("error", "/lookup/v2/topic/persistent/t/ns/x")
    assert entry["exc_info"]
    assert (await node.lookup("persistent://t/ns/x")).status == 200
