"""Puts the handlers of a node together into one application."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.http.admin import AdminHandlers
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.loadbalance import LoadBalanceHandlers
from loadmanager.http.lookup import LookupHandlers
from loadmanager.http.metrics import LookupMetrics
from loadmanager.http.ops import OpsHandlers
from loadmanager.http.responses import no_such_route
from loadmanager.leader.service import Node

_MAX_BODY_BYTES = 8 * 1024 * 1024
_CONNECTIONS_TO_LEADER = 512


def make_app(node: Node) -> web.Application:
    """The HTTP application of a node that has been, or is being, started."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS_TO_LEADER))
    forwarder = Forwarder(node, http, node.settings.lookup_timeout_ms / 1000)
    registry = CollectorRegistry()
    metrics = LookupMetrics(registry, node.settings.cluster_name)
    app.add_routes(
        [
            *LookupHandlers(node, forwarder, metrics).routes(),
            *AdminHandlers(node, forwarder).routes(),
            *LoadBalanceHandlers(node, forwarder).routes(),
            *OpsHandlers(node, registry).routes(),
            web.route("*", "/{path:.*}", no_such_route),
        ]
    )

    async def close_http(_: web.Application) -> AsyncIterator[None]:
        yield
        await http.close()

    app.cleanup_ctx.append(close_http)
    return app
