"""Pulsar's admin paths for broker statistics. A Pulsar broker answers about itself, a node about any broker."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.errors import BadRequestError
from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.responses import json_bytes, json_response, problem
from loadmanager.leader.node_port import PlannerPort, ReportPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.http_bodies import MetricsAnswer

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

    def __init__(self, reports: ReportPort, planner: PlannerPort) -> None:
        self._reports = reports
        self._planner = planner

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                f"{_STATS}/load-report",
                "what a broker has last reported",
                self.load_report,
                (Parameter("brokerId", "the broker", required=True),),
                role=AccessRole.READ,
                response_model=LocalBrokerData,
                statuses=(200, 400, 404),
            ),
            Operation(
                "GET",
                f"{_STATS}/metrics",
                "the usage of each broker in per cent, as Pulsar's brokers show it of themselves",
                self.metrics,
                role=AccessRole.READ,
                response_model=list[MetricsAnswer],
            ),
            Operation(
                "GET",
                f"{_STATS}/broker-resource-availability/{{tenant}}/{{namespace}}",
                "always 409, as from every load manager of Pulsar's but its oldest",
                self.availability,
                role=AccessRole.READ,
                statuses=(409,),
            ),
        ]

    async def load_report(self, request: web.Request) -> web.Response:
        """`?brokerId=`: LocalBrokerData as the broker's agent wrote it; 400 without a broker, 404 for an unknown one.

        It is read from the store: 503 when that does not answer, or what the broker wrote cannot be read.
        """
        broker_id = BrokerId(request.query.get("brokerId", ""))
        if not broker_id:
            raise BadRequestError("brokerId is missing: a node is no broker; GET /admin/v2/brokers lists them")
        record = await self._reports.read(broker_id)
        return json_bytes(await asyncio.to_thread(encode_local_broker_data, record))

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        return json_response(await asyncio.to_thread(_metrics, self._planner.snapshot()))

    async def availability(self, request: web.Request) -> web.Response:
        del request
        return problem(HTTPStatus.CONFLICT, "there are no ranked brokers; see /loadbalance/v1/cluster for their loads")


def _metrics(snapshot: Snapshot) -> list[dict[str, object]]:
    """Return one element per broker, in Pulsar's form."""
    return [
        {
            "metrics": dict(zip(_USAGE, snapshot.brokers.usage_percent[row].tolist(), strict=True)),
            "dimensions": {"broker": broker_id, "metric": "loadBalancing"},
        }
        for row, broker_id in enumerate(snapshot.brokers.ids)
    ]
