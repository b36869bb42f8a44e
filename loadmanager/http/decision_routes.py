"""Decisions with their reasons, and the balance of the cluster, under `/loadbalance/v1`."""

from __future__ import annotations

from aiohttp import web

from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import TIME, Operation, Parameter
from loadmanager.http.request_bodies import parse_number, parse_time
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import DecisionPort, LeadershipPort, MirrorPort, PlannerPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import ClusterAnswer, DecisionsAnswer
from loadmanager.wire.plan_bodies import BalanceAnswer

_DEFAULT_LIMIT = 100
_MAX_LIMIT = 4_000
"""A node keeps 2,000 decisions, and as many non-decisions."""
_LOAD = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")


class LoadBalanceHandlers:
    """Decisions and balance, read-only."""

    def __init__(
        self,
        leadership: LeadershipPort,
        mirror: MirrorPort,
        planner: PlannerPort,
        decisions: DecisionPort,
        forwarder: Forwarder,
    ) -> None:
        self._leadership = leadership
        self._mirror = mirror
        self._planner = planner
        self._decisions = decisions
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        limit: dict[str, object] = {"type": "integer", "minimum": 1, "default": _DEFAULT_LIMIT}
        return [
            Operation(
                "GET",
                "/loadbalance/v1/decisions",
                "the leader's recent decisions and non-decisions, newest first",
                self.decisions,
                (
                    Parameter("limit", "how many at most", limit),
                    Parameter("subject", "only of this bundle or broker"),
                    Parameter("kind", "only of this kind, or of these, separated by commas"),
                    Parameter("since", "only what was said at that time or later, ms since 1970", TIME),
                    Parameter("until", "only what was said before that time, ms since 1970", TIME),
                ),
                role=AccessRole.READ,
                response_model=DecisionsAnswer,
                statuses=(200, 400),
            ),
            Operation(
                "GET",
                "/loadbalance/v1/balance",
                "how even the load lies beside what no assignment can beat, and whether a loss could be borne",
                self.balance,
                role=AccessRole.READ,
                response_model=BalanceAnswer,
            ),
            Operation(
                "GET",
                "/loadbalance/v1/cluster",
                "who leads, and each broker's usage, load and number of bundles",
                self.cluster,
                role=AccessRole.READ,
                response_model=ClusterAnswer,
            ),
        ]

    async def decisions(self, request: web.Request) -> web.Response:
        """The leader's recent decisions and non-decisions, newest first."""
        limit = parse_number(request, "limit", _DEFAULT_LIMIT, 1, _MAX_LIMIT)
        subject = request.query.get("subject")
        kinds = [kind for kind in request.query.get("kind", "").split(",") if kind]
        since_ms, until_ms = parse_time(request, "since"), parse_time(request, "until")

        async def act() -> web.Response:
            term = self._leadership.get_term()
            recent = self._decisions.recent(limit, subject, kinds=kinds, since_ms=since_ms, until_ms=until_ms)
            return json_response({"epoch": term.epoch, "decisions": recent})

        return await self._forwarder.on_leader(request, act)

    async def balance(self, request: web.Request) -> web.Response:
        """`GET /loadbalance/v1/balance`: the imbalance of the cluster, with the best possible one."""

        async def act() -> web.Response:
            return json_response(BalanceAnswer.of(*await self._planner.standing()).model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act)

    async def cluster(self, request: web.Request) -> web.Response:
        """`GET /loadbalance/v1/cluster`: the leader, and each broker's usage, load and number of bundles."""
        del request
        mirror = self._mirror
        brokers = self._planner.snapshot().brokers
        rows = [
            {
                "brokerId": broker_id,
                "usagePercent": brokers.usage_percent[row].tolist(),
                **dict(zip(_LOAD, brokers.load[row].tolist(), strict=True)),
                "topics": int(brokers.topics[row]),
                "bundles": int(brokers.bundle_count[row]),
            }
            for row, broker_id in enumerate(brokers.ids)
        ]
        leader = {"nodeId": mirror.leader.node_id, "serviceUrl": mirror.leader.service_url} if mirror.leader else None
        body = {"epoch": mirror.epoch, "leader": leader, "nodes": sorted(mirror.nodes), "brokers": rows}
        return json_response(body)
