from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.test_utils import make_mocked_request
from support.nodes import Cluster, RunningNode, lookup_timeout
from support.registrations import write
from support.servers import LoopbackServer
from support.virtual_loop import VirtualLoop
from support.waiting import eventually
from yarl import URL

from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import NoLeaderError
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.execution.assignment_driver import LOOKUP_TIMEOUT_S
from loadmanager.net.http_client import HttpClient
from loadmanager.store import paths
from loadmanager.wire.http_bodies import FORWARDED_HEADER, NOT_LEADER_HEADER
from loadmanager.wire.store_records import LeaderRecord

LEADER_TIMEOUT_S = 1.0
IMPATIENT = pytest.mark.parametrize("cluster", [LEADER_TIMEOUT_S], indirect=True)
"""Nodes that soon wait no longer for a leader: these tests wait until they do."""


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    with lookup_timeout(getattr(request, "param", LOOKUP_TIMEOUT_S)):
        async with Cluster() as cluster:
            await cluster.start_nodes(2)
            cluster.nodes.sort(key=lambda node: not node.leads)
            await cluster.known_everywhere(lambda node: node.node.leader_url)
            yield cluster


@pytest.fixture
async def standby(cluster: Cluster) -> RunningNode:
    await cluster.a_broker()
    await cluster.a_namespace()
    return cluster.nodes[1]


async def test_unowned_bundle_at_a_standby_is_assigned_by_the_leader(cluster: Cluster, standby: RunningNode) -> None:
    reply = await standby.lookup("persistent://t/ns/x")
    assert (reply.status, reply.json()["brokerId"]) == (200, "b1:8080")
    assert [node.node.assigner.assignments for node in cluster.nodes] == [1, 0]


async def test_standby_answers_for_owned_bundles(cluster: Cluster, standby: RunningNode) -> None:
    await standby.lookup("persistent://t/ns/x")
    await cluster.known_everywhere(lambda node: node.ownership(node.bundle_of("persistent://t/ns/x")).version)
    standby.node.election._resigned = True
    await cluster.nodes[0].stop()
    await eventually(lambda: standby.node.mirror.leader is None)
    assert (await standby.lookup("persistent://t/ns/x")).status == 200


async def test_namespace_created_at_a_standby_is_created_by_the_leader(cluster: Cluster) -> None:
    _, standby = cluster.nodes
    created = await standby.put("/admin/v2/namespaces/t/ns", json={"bundles": {"numBundles": 3}})
    assert created.status == 204
    await cluster.known_everywhere(lambda node: "t/ns" in node.node.mirror.namespaces)
    assert {len(node.node.mirror.namespaces["t/ns"].state.bundles) for node in cluster.nodes} == {3}
    again = await standby.put("/admin/v2/namespaces/t/ns")
    assert (again.status, again.reason) == (409, "namespace t/ns exists already")


async def test_unload_at_a_standby_is_forwarded(cluster: Cluster, standby: RunningNode) -> None:
    await standby.lookup("persistent://t/ns/x")
    bundle = standby.bundle_of("persistent://t/ns/x")
    target = await cluster.a_broker("b2:8080")
    reply = await standby.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker=b2:8080")
    assert reply.status == 204
    await cluster.known_everywhere(lambda node: node.ownership(bundle).owner == target.registration)


async def test_split_timeout_follows_settings(standby: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    given_s, call = [], HttpClient.call

    async def noted(client: HttpClient, method: str, url: str | URL, timeout_s: float, **rest: Any) -> Any:  # noqa: ANN401
        if str(url).endswith("/split"):
            given_s.append(timeout_s)
        return await call(client, method, url, timeout_s, **rest)

    monkeypatch.setattr(HttpClient, "call", noted)
    standby.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "120000"})
    bundle = standby.bundle_of("persistent://t/ns/x")
    assert (await standby.put(f"/admin/v2/namespaces/{bundle}/split")).status == 204
    assert given_s == [127.0]


async def test_decisions_of_the_leader_are_answered_by_every_node(cluster: Cluster, standby: RunningNode) -> None:
    await standby.lookup("persistent://t/ns/x")
    asked = [(await node.get("/loadbalance/v1/decisions")).json() for node in cluster.nodes]
    assert asked[0] == asked[1]
    assert [entry["kind"] for entry in asked[0]["decisions"]] == ["assign"]


async def test_listener_name_reaches_the_leader(standby: RunningNode) -> None:
    in_header = await standby.lookup("persistent://t/ns/x", headers={"X-Pulsar-ListenerName": "internal"})
    assert in_header.json()["brokerUrl"] == "pulsar://b1.internal:6650"


@pytest.mark.parametrize("topic", ["a%2Fb", "a%252Fb", "%C3%BC%20x", "a+b", "%25", "a%3Fb%23c"])
async def test_topic_name_reaches_the_leader_unchanged(cluster: Cluster, topic: str) -> None:
    await cluster.a_broker()
    bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 256})
    leader, standby = cluster.nodes
    meant = await leader.get(f"/lookup/v2/topic/persistent/t/ns/{topic}/bundle")
    assert (await standby.get(f"/lookup/v2/topic/persistent/t/ns/{topic}")).status == 200
    assigned = [bundle for bundle in bundles if leader.ownership(bundle).version]
    assert assigned == [f"t/ns/{meant.body.decode()}"]


async def test_refusal_of_the_leader_is_passed_on_unchanged(cluster: Cluster) -> None:
    await cluster.a_namespace()
    reply = await cluster.nodes[1].lookup("persistent://t/ns/x")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert "none of 0 registered brokers" in reply.reason


async def test_forwarded_request_is_not_forwarded_again(standby: RunningNode) -> None:
    reply = await standby.lookup("persistent://t/ns/x", headers={FORWARDED_HEADER: "n9:8080"})
    assert (reply.status, reply.headers["Retry-After"], reply.headers[NOT_LEADER_HEADER]) == (503, "1", "true")
    assert "does not lead" in reply.reason


async def _without_a_leader(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.node.election._resigned = True
    await cluster.nodes[0].stop()
    await eventually(lambda: cluster.nodes[1].node.mirror.leader is None)


@IMPATIENT
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/lookup/v2/topic/persistent/t/ns/x"),
        ("PUT", "/admin/v2/namespaces/t/new"),
        ("PUT", "/admin/v2/namespaces/t/ns/unload"),
        ("PUT", "/admin/v2/namespaces/t/ns/0x00000000_0x40000000/unload"),
        ("GET", "/loadbalance/v1/decisions"),
    ],
)
async def test_request_waits_for_a_leader(cluster: Cluster, standby: RunningNode, method: str, path: str) -> None:
    await _without_a_leader(cluster)
    started_s = asyncio.get_running_loop().time()
    reply = await standby.ask(method, path)
    assert asyncio.get_running_loop().time() - started_s >= LEADER_TIMEOUT_S
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert "no node leads at the moment" in reply.reason


def a_request(method: str) -> web.Request:
    return make_mocked_request(method, "/nowhere", payload=EMPTY_PAYLOAD)


@IMPATIENT
async def test_waiting_for_a_leader_does_not_poll(cluster: Cluster, standby: RunningNode) -> None:
    await _without_a_leader(cluster)
    async with HttpClient() as http:
        await _look_while_nobody_leads(Forwarder(standby.node, http, LEADER_TIMEOUT_S))


async def _look_while_nobody_leads(forwarder: Forwarder) -> None:
    looks = 0

    async def act() -> web.Response:
        nonlocal looks
        looks += 1
        raise NoLeaderError("nobody")

    for method in ("GET", "PUT"):
        with pytest.raises(NoLeaderError):
            await forwarder.on_leader(a_request(method), act, LEADER_TIMEOUT_S)
    assert looks == 4


def test_stopped_clock_at_the_deadline_causes_no_busy_loop() -> None:
    loop = VirtualLoop()

    async def look() -> None:
        node = SimpleNamespace(leader_changed=loop.create_future(), leader_url=None, service_url="http://n1:8080")
        async with HttpClient() as http:
            candidate = cast("Candidate", node)  # all it looks at
            await _look_while_nobody_leads(Forwarder(candidate, http, LEADER_TIMEOUT_S))

    loop.run(look())
    loop.end()


async def test_thousand_waiting_requests_wake_once_per_leader_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster, HttpClient() as http:
        first, second = await cluster.start_nodes(2)
        second.node.election._resigned = True
        await first.stop()
        await eventually(lambda: second.node.mirror.leader is None)
        forwarder, looks = Forwarder(second.node, http, 60.0), 0

        async def act() -> web.Response:
            nonlocal looks
            looks += 1
            raise NoLeaderError("nobody")

        waiting = [forwarder.on_leader(a_request("GET"), act, 60.0) for _ in range(1_000)]
        tasks = [asyncio.create_task(each) for each in waiting]
        await eventually(lambda: looks >= 1_000)
        started_s = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() > started_s + 0.3)
        assert looks == 1_000
        changes, announce = 0, second.node._announce_leader
        unanswered, pass_on = 0, forwarder._pass_on

        def counted() -> None:
            nonlocal changes
            changes += 1
            announce()

        async def answered_or_counted(*asked: Any) -> web.Response | str:  # noqa: ANN401 - what is passed on
            nonlocal unanswered
            answer = await pass_on(*asked)
            unanswered += isinstance(answer, str)  # a thousand connections at once take a busy machine too long
            return answer

        monkeypatch.setattr(second.node, "_announce_leader", counted)
        monkeypatch.setattr(forwarder, "_pass_on", answered_or_counted)
        await cluster.start_node()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {404}
        assert 2_000 <= looks <= 1_000 * (1 + changes) + unanswered


async def test_request_waits_until_the_new_leader_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    may_lead = asyncio.Event()
    async with Cluster() as cluster:
        node = await cluster.start_node()
        await eventually(lambda: node.leads)
        take_over = node.node.persistence.take_over

        async def delayed() -> None:
            await may_lead.wait()
            await take_over()

        monkeypatch.setattr(node.node.persistence, "take_over", delayed)
        node.node.election.deposed()
        await eventually(lambda: not node.leads and node.node.leader_url == node.node.service_url)
        asked = asyncio.create_task(node.put("/admin/v2/namespaces/t/ns", headers={FORWARDED_HEADER: "n9:8080"}))
        await eventually(lambda: any(each._current_request for each in node.connections))
        may_lead.set()
        assert (await asked).status == 204


async def test_forwarded_request_waits_until_the_elected_node_knows_of_its_election() -> None:
    changed = asyncio.get_running_loop().create_future()
    elected = SimpleNamespace(
        leader_changed=changed, leader_url=None, service_url="http://n1:8080", get_term=lambda: Term(2, 7)
    )

    async def act() -> web.Response:
        if not changed.done():
            raise NoLeaderError("the new leader is still reading the cluster")
        return web.Response(status=204)

    async with HttpClient() as http:
        request = make_mocked_request("GET", "/nowhere", {FORWARDED_HEADER: "n9:8080"}, payload=EMPTY_PAYLOAD)
        asked = asyncio.create_task(
            Forwarder(cast("Candidate", elected), http, LEADER_TIMEOUT_S).on_leader(request, act, LEADER_TIMEOUT_S)
        )
        await asyncio.sleep(0)
        assert not asked.done(), "it waits"
        changed.set_result(None)
        assert (await asked).status == 204


async def test_waiting_request_is_done_as_soon_as_a_node_leads() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await cluster.a_broker()
        await cluster.a_namespace()
        await first.vanish()
        lookup = asyncio.create_task(second.lookup("persistent://t/ns/x"))
        await asyncio.sleep(0)
        await first.node.stop()
        assert (await lookup).status == 200
        assert second.leads


@IMPATIENT
@pytest.mark.parametrize("url", ["http://[", "nonsense", f"http://{'x' * 300}:1", "http://127.0.0.1:1"])
async def test_unreachable_leader_is_503(cluster: Cluster, standby: RunningNode, url: str) -> None:
    await _without_a_leader(cluster)
    record = LeaderRecord(broker_id="n9:8080", service_url=url, epoch=9)
    await write(cluster.store, paths.LEADER, record.to_json())
    await eventually(lambda: standby.node.leader_url == url)
    reply = await standby.lookup("persistent://t/ns/x")
    assert reply.status == 503
    assert reply.reason.startswith(f"the leader at {url} cannot be reached")


@dataclass(slots=True)
class WrongLeader(LoopbackServer):
    """Leader by its znode that denies that it leads, ends the connection, or redirects."""

    answers: bool = True
    location: str = ""
    requests: list[str] = field(default_factory=list)

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests.append(request.method)
        if not self.answers:
            assert request.transport is not None
            request.transport.close()
        if self.location:
            return web.Response(status=307, headers={"Location": f"{self.location}{request.path}"})
        return web.Response(status=503, headers={NOT_LEADER_HEADER: "true"})


async def _led_by(cluster: Cluster, standby: RunningNode, leader: WrongLeader) -> None:
    await _without_a_leader(cluster)
    record = LeaderRecord(broker_id="n9:8080", service_url=leader.url, epoch=9)
    await write(cluster.store, paths.LEADER, record.to_json())
    await eventually(lambda: standby.node.leader_url == leader.url)


@IMPATIENT
async def test_former_leader_is_retried(cluster: Cluster, standby: RunningNode) -> None:
    async with WrongLeader() as wrong:
        await _led_by(cluster, standby, wrong)
        reply = await standby.put("/admin/v2/namespaces/t/new")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert reply.reason.startswith(f"the node at {wrong.url} leads no more")
        assert len(wrong.requests) > 1


async def test_change_with_a_lost_answer_is_not_repeated(cluster: Cluster, standby: RunningNode) -> None:
    async with WrongLeader(answers=False) as wrong:
        await _led_by(cluster, standby, wrong)
        reply = await standby.put("/admin/v2/namespaces/t/new")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert "the leader's answer was lost" in reply.reason
        assert wrong.requests.count("PUT") == 1


@IMPATIENT
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/lookup/v2/topic/persistent/t/ns/x", None),
        ("POST", "/loadbalance/v1/lookups", {"topics": ["persistent://t/ns/x"]}),
    ],
)
async def test_read_with_a_lost_answer_is_repeated(
    cluster: Cluster, standby: RunningNode, method: str, path: str, body: object
) -> None:
    async with WrongLeader(answers=False) as wrong:
        await _led_by(cluster, standby, wrong)
        reply = await standby.ask(method, path, json=body)
        assert reply.status == 503
        assert len(wrong.requests) > 1


@IMPATIENT
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_redirecting_leader_is_refused(cluster: Cluster, standby: RunningNode, method: str) -> None:
    async with WrongLeader() as elsewhere, WrongLeader(location=elsewhere.url) as wrong:
        await _led_by(cluster, standby, wrong)
        reply = await standby.ask(method, "/admin/v2/namespaces/t/new" if method == "PUT" else "/loadbalance/v1/churn")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert reply.reason.startswith(f"what answers at {wrong.url} is no load-manager node: ")
        assert set(wrong.requests) == {method}
        assert elsewhere.requests == []
