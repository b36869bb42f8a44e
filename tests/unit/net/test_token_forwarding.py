from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from support.nodes import Cluster, RunningNode
from support.tokens import CLOSED, bearer, token_of
from support.waiting import eventually

from loadmanager.net.auth import gate
from loadmanager.wire.http_bodies import FORWARDED_HEADER, ORIGINAL_PRINCIPAL_HEADER

FLEET = "/loadbalance/v1/fleet"
_PROXY = {**CLOSED, "proxy_roles": frozenset({"operator"})}


async def test_follower_forwards_the_token_of_the_caller_and_uses_its_own_for_agents() -> None:
    async with Cluster() as cluster:
        leader, follower = await cluster.start_nodes(2, **CLOSED)
        agent = await cluster.a_broker("b1:8080")
        root, client = bearer(token_of("root")), bearer(token_of("client"))
        assert (await follower.put("/admin/v2/namespaces/t/ns", headers=root)).status == 204
        await cluster.known_everywhere(lambda node: "t/ns" in node.node.mirror.namespaces)
        topic = "persistent://t/ns/x"
        assert (await follower.lookup(topic, headers=client)).status == 200
        bundle = leader.bundle_of(topic)
        assert (await follower.put(f"/admin/v2/namespaces/{bundle}/unload", headers=root)).status == 204
        assert [headers["Authorization"] for _, headers in agent.unloads] == [f"Bearer {token_of('node')}"]
        refused = await follower.put(f"/admin/v2/namespaces/{bundle}/unload", headers=client)
        assert refused.status == 403


async def test_leader_checks_roles_by_its_own_settings() -> None:
    async with Cluster() as cluster:
        leader, follower = await cluster.start_nodes(2, **CLOSED)
        generous = await cluster.start_node(**{**CLOSED, "super_user_roles": frozenset({"root", "client"})})
        path, client = "/admin/v2/namespaces/t/ns", bearer(token_of("client"))
        reply = await generous.put(path, headers=client)
        assert reply.status == 403
        assert "'client'" in reply.reason
        for forged in ({FORWARDED_HEADER: follower.node.node_id}, {FORWARDED_HEADER: "x", **client}):
            assert (await leader.put(path, headers=forged)).status in (401, 403)


async def test_original_principal_of_a_proxy_is_forwarded() -> None:
    async with Cluster() as cluster:
        _, follower = await cluster.start_nodes(2, **_PROXY)
        path, by_proxy = "/loadbalance/v1/freeze", bearer(token_of("operator"))
        for original, status in (("root", 204), ("client", 403), ("operator", 401)):
            headers = {**by_proxy, ORIGINAL_PRINCIPAL_HEADER: original}
            reply = await follower.put(path, headers=headers, json={"reason": "x"})
            assert reply.status == status, reply


async def test_node_forwards_the_principal_of_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate stands in a header here, which is not passed on, as a certificate cannot be."""
    monkeypatch.setattr(gate, "principal_of", lambda request: request.headers.get("X-Certificate"))
    trusted = {**CLOSED, "proxy_roles": frozenset({"node"}), "super_user_roles": frozenset({"root", "node"})}
    async with Cluster() as cluster:
        _, follower = await cluster.start_nodes(2, **trusted)
        for shown, status in (("root", 204), ("client", 403)):
            reply = await follower.put("/admin/v2/namespaces/t/ns", headers={"X-Certificate": shown})
            assert reply.status == status, reply
    async with Cluster() as cluster:
        _, follower = await cluster.start_nodes(2, **CLOSED)
        reply = await follower.put("/admin/v2/namespaces/t/ns", headers={"X-Certificate": "root"})
        assert reply.status == 403, "the leader takes the node for no proxy"


async def test_forwarding_header_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes show the certificate of root here, and the leader takes them for no proxies."""
    monkeypatch.setattr(
        gate,
        "principal_of",
        lambda request: "root" if FORWARDED_HEADER in request.headers else request.headers.get("X-Certificate"),
    )
    without_token = {"broker_client_authentication_parameters": SecretStr("")}
    async with Cluster() as cluster:
        leader, follower = await cluster.start_nodes(2, **{**CLOSED, **without_token})
        headers = {"X-Certificate": "operator", "Authorization": ""}
        await follower.put("/loadbalance/v1/freeze", headers=headers, json={"reason": "x"})
        entries = (await leader.get("/loadbalance/v1/audit", headers=bearer(token_of("reader")))).json()["entries"]
        assert [(each["who"], each["status"]) for each in entries] == [("root", 401)]


async def test_node_asks_the_leader_with_its_own_token() -> None:
    async with Cluster() as cluster:
        _, follower = await cluster.start_nodes(2, **CLOSED)
        stranger = await cluster.start_node(
            **{**CLOSED, "broker_client_authentication_parameters": SecretStr(f"token:{token_of('stranger')}")}
        )

        async def fleet_by(node: RunningNode) -> dict[str, Any]:
            fleet: dict[str, Any] = (await node.get(FLEET, headers=bearer(token_of("reader")))).json()
            return fleet

        async def is_whole() -> bool:
            return bool((await fleet_by(follower))["isWhole"])

        await eventually(is_whole)
        assert not (await fleet_by(follower))["openToAnyone"]
        with capture_logs() as logs:

            async def is_refused() -> bool:
                assert not (await fleet_by(stranger))["isWhole"]
                return any(entry["event"] == "refused_by_leader" for entry in logs)

            await eventually(is_refused)
            await is_refused()
        assert [entry["event"] for entry in logs].count("refused_by_leader") == 1
