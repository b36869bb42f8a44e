"""Health of brokers: their own figures, and which of them are sick compared with their peers."""

from __future__ import annotations

from aiohttp import web

from loadmanager.core.domain.names import BrokerId
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import MirrorPort, PlannerPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import BrokerHealth


class HealthHandlers:
    """Health of brokers, answered by the leader, which evaluates it once a round."""

    def __init__(self, mirror: MirrorPort, planner: PlannerPort, forwarder: Forwarder) -> None:
        self._mirror = mirror
        self._planner = planner
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/loadbalance/v1/brokers/health",
                "how each broker serves, by what it says, and whether it is sick, so that nothing is moved to it",
                self.brokers,
                role=AccessRole.READ,
                response_model=list[BrokerHealth],
            )
        ]

    async def brokers(self, request: web.Request) -> web.Response:
        async def act() -> web.Response:
            return json_response(
                [self._of(broker).model_dump(by_alias=True) for broker in sorted(self._mirror.brokers)]
            )

        return await self._forwarder.once_it_leads(request, act)

    def _of(self, broker: BrokerId) -> BrokerHealth:
        said = self._mirror.brokers[broker].record.get("health") or {}
        sick = self._planner.snapshot().faults.unwell.get(broker)
        return BrokerHealth(
            broker_id=broker,
            latency_ms=said.get("latencyMs"),
            error_share=said.get("errorShare"),
            queue=said.get("queue"),
            is_sick=sick is not None,
            sentence=None if sick is None else sick.sentence(),
            remedy=None if sick is None else sick.remedy(),
        )
