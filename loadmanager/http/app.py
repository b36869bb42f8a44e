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
from loadmanager.http.responses import errors_as_json
from loadmanager.leader.service import Node

_MAX_BODY_BYTES = 8 * 1024 * 1024


def make_app(node: Node) -> web.Application:
    """The HTTP application of a node that has been, or is being, started."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=_MAX_BODY_BYTES)
    http = aiohttp.ClientSession()
    forwarder = Forwarder(node, http, node.settings.lookup_timeout_ms / 1000)
    registry = CollectorRegistry()
    metrics = LookupMetrics(registry, node.settings.cluster_name)
    LookupHandlers(node, forwarder, metrics).add_routes(app)
    AdminHandlers(node, forwarder).add_routes(app)
    LoadBalanceHandlers(node, forwarder).add_routes(app)
    OpsHandlers(node, registry).add_routes(app)

    async def close_http(_: web.Application) -> AsyncIterator[None]:
        yield
        await http.close()

    app.cleanup_ctx.append(close_http)
    return app
