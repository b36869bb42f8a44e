from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry
from support.servers import LIMITS, end_app, listen, serve_app

from loadmanager.agent.agent_server import AgentServer
from loadmanager.agent.grants import UnloadRefusal
from loadmanager.agent.ownership_query import OpenTopics
from loadmanager.agent.unload_handler import WarmUp
from loadmanager.config.auth_settings import AuthSettings
from loadmanager.core.domain.names import BrokerId
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.http_client import HttpClient
from loadmanager.wire.http_bodies import LeaseAnswer

LEASE = "/loadmanager/v1/lease"


async def _unload(*_: object) -> UnloadRefusal | None:
    raise AssertionError("nobody asks")


def server() -> AgentServer:
    return AgentServer(
        BrokerId("b1:8080"),
        grant_lease=AsyncMock(return_value=LeaseAnswer(broker_id="b1:8080", incarnation=1, valid_for_ms=1)),
        warm_up=WarmUp.__new__(WarmUp),
        unload=_unload,
        topics=OpenTopics.__new__(OpenTopics),
        health=lambda: {"registered": True},
        registry=CollectorRegistry(),
        gate=AuthGate(AuthSettings()),
    )


def routes(app: web.Application) -> set[tuple[str, str]]:
    resources = ((each.method, each.resource) for each in app.router.routes() if each.resource is not None)
    return {(method, resource.canonical.removesuffix("/")) for method, resource in resources}


def test_each_route_belongs_to_exactly_one_listener() -> None:
    of_broker, of_others = routes(server().broker_app()), routes(server().app())
    assert {path for _, path in of_broker} == {LEASE, "/loadmanager/v1/owner"}
    assert not of_broker & of_others
    assert routes(server().shared_app()) == of_broker | of_others


async def asked(path: str, caller: str, own: str) -> int:
    """The status of what an agent with one port answers to a caller."""
    app = server().shared_app()
    app.freeze()
    names: Mapping[str, Any] = {"peername": (caller, 40_000), "sockname": (own, 9090)}
    request = make_mocked_request("GET", path, app=app)
    assert request.transport is not None
    request.transport.get_extra_info.side_effect = names.get  # type: ignore[attr-defined]  # a mock
    return (await app._handle(request)).status


@pytest.mark.parametrize(
    ("caller", "own", "status"),
    [
        ("127.0.0.1", "127.0.0.1", 200),
        ("::1", "::1", 200),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", 200),
        ("10.0.0.5", "10.0.0.5", 200),
        ("10.0.0.6", "10.0.0.5", 403),
        ("fd00::6", "fd00::5", 403),
        ("::ffff:10.0.0.6", "::ffff:10.0.0.5", 403),
    ],
)
async def test_broker_routes_on_the_shared_port_are_for_this_host_only(caller: str, own: str, status: int) -> None:
    assert await asked(LEASE, caller, own) == status
    assert await asked("/healthz", caller, own) == 200


async def test_exhausted_connections_of_other_clients_do_not_block_leases() -> None:
    agent, limits = server(), replace(LIMITS, connections=2)
    listener, of_broker = listen(), listen()
    runners = [await serve_app(agent.app(), listener, limits), await serve_app(agent.broker_app(), of_broker, limits)]
    try:
        busy = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
        for _, writer in busy:
            writer.write(
                b"PUT /loadmanager/v1/namespaces/t/ns/bundles HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
            )
        host, port = of_broker.getsockname()
        async with HttpClient() as http:
            for _ in range(3):
                assert (await http.call("GET", f"http://{host}:{port}{LEASE}", 30.0)).status == 200
        for _, writer in busy:
            writer.close()
    finally:
        for runner in runners:
            await end_app(runner)
