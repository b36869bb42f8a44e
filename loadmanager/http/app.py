"""Puts the handlers of a node together into one application."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.calling import HttpClient
from loadmanager.http.admin import AdminHandlers
from loadmanager.http.anti_affinity import AntiAffinityHandlers
from loadmanager.http.broker_stats import BrokerStatsHandlers
from loadmanager.http.brokers import BrokerHandlers
from loadmanager.http.bundles import BundleHandlers
from loadmanager.http.configuration import ConfigurationHandlers
from loadmanager.http.controls import ControlHandlers
from loadmanager.http.draining import DrainingHandlers
from loadmanager.http.explain import ExplainHandlers
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.learned import LearnedHandlers
from loadmanager.http.loadbalance import LoadBalanceHandlers
from loadmanager.http.lookup import LookupHandlers
from loadmanager.http.metrics import LookupMetrics
from loadmanager.http.openapi import OpenApiHandlers
from loadmanager.http.ops import OpsHandlers
from loadmanager.http.plans import PlanHandlers
from loadmanager.http.policies import PolicyHandlers
from loadmanager.http.responses import MAX_BODY_BYTES, no_such_route
from loadmanager.leader.service import Node

_CONNECTIONS_TO_LEADER = 512


def make_app(node: Node) -> web.Application:
    """The HTTP application of a node that has been, or is being, started."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    http = HttpClient(_CONNECTIONS_TO_LEADER)
    forwarder = Forwarder(node, http, node.settings.lookup_timeout_ms / 1000)
    registry = CollectorRegistry()
    metrics = LookupMetrics(registry, node.settings.cluster_name)
    operations = [
        *LookupHandlers(node, forwarder, metrics).operations(),
        *AdminHandlers(node, forwarder).operations(),
        *BundleHandlers(node, forwarder).operations(),
        *PolicyHandlers(node, forwarder).operations(),
        *AntiAffinityHandlers(node, forwarder).operations(),
        *ConfigurationHandlers(node, forwarder).operations(),
        *ControlHandlers(node, forwarder).operations(),
        *DrainingHandlers(node, forwarder).operations(),
        *LearnedHandlers(node, forwarder).operations(),
        *PlanHandlers(node, forwarder).operations(),
        *BrokerHandlers(node).operations(),
        *BrokerStatsHandlers(node).operations(),
        *LoadBalanceHandlers(node, forwarder).operations(),
        *ExplainHandlers(node, forwarder).operations(),
        *OpsHandlers(node, registry).operations(),
    ]
    operations += OpenApiHandlers(operations).operations()
    app.add_routes([operation.route() for operation in operations])
    app.router.add_route("*", "/{path:.*}", no_such_route)

    async def close_http(_: web.Application) -> AsyncIterator[None]:
        yield
        await http.close()

    app.cleanup_ctx.append(close_http)
    return app
