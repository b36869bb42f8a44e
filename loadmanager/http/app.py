"""HTTP application of a node, put together from its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.http.broker_routes import BrokerHandlers, BrokerStatsHandlers
from loadmanager.http.control_routes import ControlHandlers
from loadmanager.http.decision_routes import (
    AuditHandlers,
    ExplainHandlers,
    LineageHandlers,
    LoadBalanceHandlers,
    TimelineHandlers,
)
from loadmanager.http.drain_routes import DrainingHandlers, PlanHandlers
from loadmanager.http.fleet_routes import LiveHandlers
from loadmanager.http.import_routes import ConfigurationHandlers, ImportHandlers, LearnedHandlers
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.lookup_routes import BatchLookupHandlers, FastLookups, LookupHandlers, OwnershipHandlers
from loadmanager.http.messages import MAX_BODY_BYTES, no_such_route
from loadmanager.http.metrics_text import LookupMetrics, WatchMetrics
from loadmanager.http.namespace_routes import AdminHandlers, BundleHandlers
from loadmanager.http.openapi import OpenApiHandlers, Operation
from loadmanager.http.page_routes import PageHandlers
from loadmanager.http.policy_routes import AntiAffinityHandlers, PolicyHandlers
from loadmanager.http.probe_routes import ProbeHandlers, TermHandlers
from loadmanager.http.watch_hub import WatchHandlers
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.execution.assignment_driver import LOOKUP_TIMEOUT_S
from loadmanager.leader.node import Node
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.http_client import Caller, HttpClient
from loadmanager.net.http_server import FAST_PATH, BodyLimit, FastPath, with_trailing_slashes
from loadmanager.net.request_ids import name_answer
from loadmanager.net.tls_contexts import ServerTls, TlsMetrics
from loadmanager.net.tracing import OFF
from loadmanager.util.process_metrics import add_process_metrics

_CONNECTIONS_TO_LEADER = 512


def make_app(node: Node, tls: ServerTls | None = None) -> web.Application:
    """Build the HTTP application of a node; `tls` is the certificate side of its TLS port."""
    forwarder, http = make_forwarder(node)
    registry, cluster = add_process_metrics(CollectorRegistry()), node.settings.cluster_name
    registry.register(TlsMetrics(node.caller.tls, tls, {"cluster": cluster}))
    gate = make_gate(node.settings, registry, cluster)
    metrics, live = LookupMetrics(registry, cluster), LiveHandlers(node.fleet_status, forwarder, gate)
    watch = WatchHandlers(node.node_id, node.mirror, gate, WatchMetrics(registry, cluster))
    operations = [
        *LookupHandlers(node.lookups, node.mirror, forwarder, metrics).operations(),
        *BatchLookupHandlers(node.lookups, forwarder, metrics).operations(),
        *AdminHandlers(node, forwarder).operations(),
        *BundleHandlers(node, forwarder).operations(),
        *PolicyHandlers(node, forwarder).operations(),
        *AntiAffinityHandlers(node, forwarder).operations(),
        *ConfigurationHandlers(node, forwarder).operations(),
        *ControlHandlers(node, forwarder).operations(),
        *LearnedHandlers(node, forwarder).operations(),
        *ImportHandlers(node, forwarder).operations(),
        *candidate_operations(node, forwarder, registry, gate),
        *live.operations(),
        *watch.operations(),
    ]
    app = make_application(node, operations, http, gate, (live, watch))
    if node.caller.tracing is OFF:
        fast_path: FastPath = FastLookups(node.lookups, metrics, gate)
        app[FAST_PATH] = fast_path
    return app


def candidate_operations(
    node: Candidate, forwarder: Forwarder, registry: CollectorRegistry, gate: AuthGate
) -> list[Operation]:
    """Return the operations of every process that can lead."""
    return [
        *DrainingHandlers(node, forwarder).operations(),
        *PlanHandlers(node, forwarder).operations(),
        *BrokerHandlers(node).operations(),
        *BrokerStatsHandlers(node).operations(),
        *OwnershipHandlers(node).operations(),
        *LoadBalanceHandlers(node, forwarder).operations(),
        *ExplainHandlers(node, forwarder).operations(),
        *LineageHandlers(node, forwarder).operations(),
        *AuditHandlers(node, forwarder).operations(),
        *PageHandlers(lambda: node.mirror.nodes).operations(),
        *TimelineHandlers(node.timeline_memory).operations(),
        *TermHandlers(node).operations(),
        *ProbeHandlers(node, registry, gate).operations(),
    ]


def make_gate(settings: Settings | PulsarServiceSettings, registry: CollectorRegistry, cluster: str) -> AuthGate:
    """Build the authentication gate; raises `ConfigurationError` for unusable keys."""
    gate = AuthGate(settings, address=settings.bind_address)
    gate.show_in(registry, {"cluster": cluster})
    return gate


def make_forwarder(node: Candidate) -> tuple[Forwarder, HttpClient]:
    """Build the forwarder to the leader, which sends the caller's token instead of the node's own."""
    http = HttpClient(_CONNECTIONS_TO_LEADER, Caller(tls=node.caller.tls, tracing=node.caller.tracing))
    return Forwarder(node, http, LOOKUP_TIMEOUT_S), http


def make_application(
    node: Candidate,
    operations: list[Operation],
    http: HttpClient,
    gate: AuthGate,
    streaming: Sequence[LiveHandlers | WatchHandlers],
    elsewhere: str = "",
) -> web.Application:
    """Build an application of these handlers and their OpenAPI document, behind the authentication gate. Its clean-up
    closes `http` and ends its streams.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    described = [*operations, *OpenApiHandlers(operations).operations()]
    room, tracing = BodyLimit(), node.caller.tracing
    routes = [operation.route(gate, node.audit, room, tracing) for operation in described]
    app.add_routes(with_trailing_slashes(routes))
    app.on_response_prepare.append(name_answer)
    app.router.add_route("*", "/{path:.*}", no_such_route(elsewhere))

    async def close_http(_: web.Application) -> AsyncIterator[None]:
        yield
        await http.close()

    async def end_streams(_: web.Application) -> None:
        for handlers in streaming:
            handlers.close()

    app.on_shutdown.append(end_streams)
    app.cleanup_ctx.append(close_http)
    return app
