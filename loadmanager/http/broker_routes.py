"""Routes for brokers: active brokers, the leader, owned bundles, and statistics.

A Pulsar broker answers for statistics about itself, a node about any broker.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web

from loadmanager import __version__
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.errors import BadRequestError
from loadmanager.http.messages import json_bytes, json_response, parse_broker, problem
from loadmanager.http.openapi import TEXT, Operation, Parameter, read
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.auth.gate import AccessRole
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.http_bodies import (
    BrokerAssignment,
    BrokerInfo,
    MetricsAnswer,
    NamespaceOwnershipStatus,
)

_BROKERS = "/admin/v2/brokers"
_CLUSTER = "{cluster:(?!(?:health|ready|version|configuration|internal-configuration)$)[^/]+}"
"""Any name except those with another meaning in Pulsar's paths."""


class BrokerHandlers:
    """Brokers, read-only; any node answers from memory. The cluster in the path is ignored, because a node knows only
    its own.
    """

    def __init__(self, node: Candidate) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        broker = Parameter("brokerId", "ask about this broker instead of about this node")
        return [
            read(_BROKERS, self.list_brokers, list[str]),
            read(f"{_BROKERS}/leaderBroker", self.leader, BrokerInfo, statuses=(200, 404)),
            read(f"{_BROKERS}/health", self.health, None, broker, statuses=(200, 404), media_type=TEXT),
            read(f"{_BROKERS}/ready", self.health, None, role=AccessRole.ANYONE, media_type=TEXT),
            read(f"{_BROKERS}/version", self.version, None, media_type=TEXT),
            read(f"{_BROKERS}/{_CLUSTER}", self.list_brokers, list[str]),
            read(
                f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
                self.owned,
                dict[str, NamespaceOwnershipStatus],
                statuses=(200, 404),
            ),
        ]

    async def list_brokers(self, _: web.Request) -> web.Response:
        """Return the registered brokers."""
        return json_response(sorted(self._node.mirror.brokers))

    async def leader(self, _: web.Request) -> web.Response:
        """Return the leading node of this service; 404 without a leader, 503 while this node may be cut off."""
        self._node.must_be_current()
        leader = self._node.mirror.leader
        if leader is None:
            return problem(HTTPStatus.NOT_FOUND, "no node leads at the moment")
        return json_bytes(BrokerInfo(service_url=leader.service_url, broker_id=leader.node_id).to_json())

    async def health(self, request: web.Request) -> web.Response:
        """Answer ok if this node is reliable and the broker `brokerId`, if given, is registered.

        The agent of an unhealthy broker withdraws its registration.
        """
        broker_id = request.query.get("brokerId")
        if broker_id is not None:
            self._node.mirror.get_registration(BrokerId(broker_id))
        reason = self._node.why_not_ready()
        if reason is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return web.Response(text="ok")

    async def version(self, _: web.Request) -> web.Response:
        """Return the version of this node."""
        return web.Response(text=__version__)

    async def owned(self, request: web.Request) -> web.Response:
        """Return the bundles that a broker owns; one that is being released is not active."""
        registration = self._node.mirror.get_registration(parse_broker(request))
        policies = self._node.planner.snapshot().policies
        return json_response(await asyncio.to_thread(_owned_by, registration, self._node.mirror, policies))


def _owned_by(registration: Registration, mirror: ClusterMirror, policies: Policies) -> dict[str, dict[str, object]]:
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


_STATS = "/admin/v2/broker-stats"
_USAGE = (
    "brk_lb_cpu_usage",
    "brk_lb_memory_usage",
    "brk_lb_directMemory_usage",
    "brk_lb_bandwidth_in_usage",
    "brk_lb_bandwidth_out_usage",
)


class BrokerStatsHandlers:
    """Broker statistics, read-only; any node answers."""

    def __init__(self, node: Candidate) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        return [
            read(
                f"{_STATS}/load-report",
                self.load_report,
                LocalBrokerData,
                Parameter("brokerId", "the broker", required=True),
                statuses=(200, 400, 404),
            ),
            read(f"{_STATS}/metrics", self.metrics, list[MetricsAnswer]),
            read(
                f"{_STATS}/broker-resource-availability/{{tenant}}/{{namespace}}",
                self.availability,
                None,
                statuses=(409,),
            ),
        ]

    async def load_report(self, request: web.Request) -> web.Response:
        """Return the last report of a broker, LocalBrokerData as its agent wrote it.

        400 without a broker, 404 for an unknown one; 503 when the store does not answer or the record cannot be read.
        """
        broker_id = BrokerId(request.query.get("brokerId", ""))
        if not broker_id:
            raise BadRequestError("brokerId is missing: a node is no broker; GET /admin/v2/brokers lists them")
        record = await self._node.reports.read(broker_id)
        return json_bytes(await asyncio.to_thread(encode_local_broker_data, record))

    async def metrics(self, _: web.Request) -> web.Response:
        """Return the usage of each broker in per cent, in the form of a Pulsar broker's own metrics."""
        return json_response(await asyncio.to_thread(_metrics, self._node.planner.snapshot()))

    async def availability(self, _: web.Request) -> web.Response:
        """Answer 409, as all but the oldest load manager of Pulsar do."""
        return problem(HTTPStatus.CONFLICT, "there are no ranked brokers; see /loadbalance/v1/fleet for their loads")


def _metrics(snapshot: Snapshot) -> list[dict[str, object]]:
    """Return one element per broker, in Pulsar's form."""
    return [
        {
            "metrics": dict(zip(_USAGE, snapshot.brokers.usage_percent[row].tolist(), strict=True)),
            "dimensions": {"broker": broker_id, "metric": "loadBalancing"},
        }
        for row, broker_id in enumerate(snapshot.brokers.ids)
    ]
