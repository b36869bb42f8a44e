"""Explanations: why a bundle is where it is, why it is not on another broker, and what a round would do with a
broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName, parse_broker_id
from loadmanager.errors import BadRequestError
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import ExplainPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation
from loadmanager.wire.validation import WireModel

_EXPLAIN = "/loadbalance/v1/explain"


class ExplainHandlers:
    """`/loadbalance/v1/explain`, read-only; answered by the leader, which alone has the memory of strategies."""

    def __init__(self, explainer: ExplainPort, forwarder: Forwarder) -> None:
        self._explainer = explainer
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        bundle = Parameter("bundle", "tenant/namespace/0x.._0x..", required=True)
        broker = Parameter("broker", "the broker's id, host:port", required=True)
        return [
            Operation(
                "GET",
                f"{_EXPLAIN}/bundle/{{tenant}}/{{namespace}}/{{range}}",
                "where the bundle is, whether it would be shed now, and where placement would put it",
                self.bundle,
                role=AccessRole.READ,
                response_model=BundleExplanation,
                statuses=(200, 404, 412),
            ),
            Operation(
                "GET",
                f"{_EXPLAIN}/broker/{{broker}}",
                "whether a round of shedding would take something from the broker now, and whether it is given bundles",
                self.broker,
                role=AccessRole.READ,
                response_model=BrokerExplanation,
                statuses=(200, 404, 412),
            ),
            Operation(
                "GET",
                f"{_EXPLAIN}/why-not",
                "why the bundle is not on that broker",
                self.why_not,
                (bundle, broker),
                role=AccessRole.READ,
                response_model=WhyNotExplanation,
                statuses=(200, 400, 404, 412),
            ),
        ]

    async def bundle(self, request: web.Request) -> web.Response:
        namespace = NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
        name = BundleName(namespace, BundleRange.parse(request.match_info["range"].lower()))
        return await self._explained(request, lambda: self._explainer.bundle(name))

    async def broker(self, request: web.Request) -> web.Response:
        broker = parse_broker_id(request.match_info["broker"])
        return await self._explained(request, lambda: self._explainer.broker(broker))

    async def why_not(self, request: web.Request) -> web.Response:
        """`?bundle=&broker=`."""
        bundle, broker = BundleName.parse(_wanted(request, "bundle")), parse_broker_id(_wanted(request, "broker"))
        return await self._explained(request, lambda: self._explainer.why_not(bundle, broker))

    async def _explained(self, request: web.Request, explain: Callable[[], Awaitable[WireModel]]) -> web.Response:
        async def act() -> web.Response:
            return json_response((await explain()).model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act)


def _wanted(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadRequestError(f"{name} is missing: expected ?bundle=tenant/namespace/0x.._0x..&broker=host:port")
    return value
