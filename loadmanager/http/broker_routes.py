"""Pulsar's admin paths for brokers: active brokers, the leader, owned bundles, health."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web

from loadmanager import __version__
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.http.openapi import TEXT, Operation, Parameter
from loadmanager.http.responses import json_bytes, json_response, problem
from loadmanager.leader.node_port import HealthPort, MirrorPort, PlannerPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import BrokerAssignment, BrokerInfo, NamespaceOwnershipStatus

_BROKERS = "/admin/v2/brokers"
_CLUSTER = "{cluster:(?!(?:health|ready|version|configuration|internal-configuration)$)[^/]+}"
"""Any name but those that mean something else to Pulsar."""


class BrokerHandlers:
    """Brokers, read-only; any node answers from memory. The cluster in the path is ignored: a node knows one
    cluster.
    """

    def __init__(self, node: HealthPort, mirror: MirrorPort, planner: PlannerPort) -> None:
        self._node = node
        self._mirror = mirror
        self._planner = planner

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                _BROKERS,
                "the registered brokers",
                self.list_brokers,
                role=AccessRole.READ,
                response_model=list[str],
            ),
            Operation(
                "GET",
                f"{_BROKERS}/leaderBroker",
                "the node of this service that leads",
                self.leader,
                role=AccessRole.READ,
                response_model=BrokerInfo,
                statuses=(200, 404),
            ),
            Operation(
                "GET",
                f"{_BROKERS}/health",
                "ok when this node can be relied on, or the given broker is registered",
                self.health,
                (Parameter("brokerId", "ask about this broker instead of about this node"),),
                role=AccessRole.READ,
                statuses=(200, 404),
                media_type=TEXT,
            ),
            Operation(
                "GET",
                f"{_BROKERS}/ready",
                "ok when this node can be relied on",
                self.health,
                role=AccessRole.ANYONE,
                media_type=TEXT,
            ),
            Operation(
                "GET",
                f"{_BROKERS}/version",
                "the version of this node",
                self.version,
                role=AccessRole.READ,
                media_type=TEXT,
            ),
            Operation(
                "GET",
                f"{_BROKERS}/{_CLUSTER}",
                "the registered brokers",
                self.list_brokers,
                role=AccessRole.READ,
                response_model=list[str],
            ),
            Operation(
                "GET",
                f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
                "the bundles that a broker owns",
                self.owned,
                role=AccessRole.READ,
                response_model=dict[str, NamespaceOwnershipStatus],
                statuses=(200, 404),
            ),
        ]

    async def list_brokers(self, request: web.Request) -> web.Response:
        del request
        return json_response(sorted(self._mirror.brokers))

    async def leader(self, request: web.Request) -> web.Response:
        """`GET /admin/v2/brokers/leaderBroker`: the node that leads; 404 when none does."""
        del request
        leader = self._mirror.leader
        if leader is None:
            return problem(HTTPStatus.NOT_FOUND, "no node leads at the moment")
        return json_bytes(BrokerInfo(service_url=leader.service_url, broker_id=leader.node_id).to_json())

    async def health(self, request: web.Request) -> web.Response:
        """`?brokerId=`: 200 for a registered broker: its agent withdraws the registration of an unhealthy one."""
        broker_id = request.query.get("brokerId")
        if broker_id is not None:
            self._mirror.get_registration(BrokerId(broker_id))
        reason = self._node.why_not_ready()
        if reason is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return web.Response(text="ok")

    async def version(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=__version__)

    async def owned(self, request: web.Request) -> web.Response:
        """`GET .../{broker}/ownedNamespaces`: every bundle that it owns; one that is being released is not active."""
        registration = self._mirror.get_registration(BrokerId(request.match_info["broker"]))
        policies = self._planner.snapshot().policies
        return json_response(await asyncio.to_thread(_owned_by, registration, self._mirror, policies))


def _owned_by(registration: Registration, mirror: MirrorPort, policies: Policies) -> dict[str, dict[str, object]]:
    """Return the status of each bundle of a broker, in Pulsar's JSON with underscores."""
    owned = {}
    for entry, index, ownership in mirror.ownerships():
        if ownership.owner == registration:
            policy = policies.find_policy(str(entry.state.name))
            status = NamespaceOwnershipStatus(
                broker_assignment=_assignment(policy, policies, registration.broker),
                is_controlled=policy is not None,
                is_active=ownership.state is OwnershipState.OWNED,
            )
            owned[entry.state.bundle_name(index)] = status.model_dump(mode="json")
    return owned


def _assignment(policy: IsolationPolicy | None, policies: Policies, broker_id: BrokerId) -> BrokerAssignment:
    if policy is not None and policies.is_primary(policy, broker_id):
        return BrokerAssignment.PRIMARY
    if policy is not None and policies.is_secondary(policy, broker_id):
        return BrokerAssignment.SECONDARY
    return BrokerAssignment.SHARED
