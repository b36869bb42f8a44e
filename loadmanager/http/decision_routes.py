"""Decisions, explanations, the balance of the cluster, the audit log, the timeline and the lineage of bundles, under
`/loadbalance/v1`.

For a lineage every node is asked for its records, and the answers are merged: nodes record into one common place or
each into a folder on its own machine, as configured.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

from aiohttp import web
from pydantic import ValidationError

from loadmanager.core.domain.names import BundleName, parse_broker_id
from loadmanager.errors import BadRequestError, NotFoundError
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.messages import json_response, parse_bundle, parse_range, parse_time
from loadmanager.http.openapi import TIME, Operation, Parameter, number_parameter, parse_number, read
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.timeline_memory import TimelineMemory, Window
from loadmanager.net.auth.gate import AccessRole
from loadmanager.util import clock
from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation
from loadmanager.wire.fleet_bodies import Timeline
from loadmanager.wire.http_bodies import DecisionsAnswer
from loadmanager.wire.lineage_bodies import AuditAnswer, BundleLineage, merge_lineages
from loadmanager.wire.plan_bodies import BalanceAnswer

_DECISIONS_LIMIT = number_parameter("limit", "how many at most", 100, 4_000)
"""A node keeps 2,000 decisions and 2,000 non-decisions."""


class LoadBalanceHandlers(LeaderHandlers[Candidate]):
    """Decisions and balance, read-only."""

    def operations(self) -> list[Operation]:
        return [
            read(
                "/loadbalance/v1/decisions",
                self.decisions,
                DecisionsAnswer,
                _DECISIONS_LIMIT,
                Parameter("subject", "only of this bundle or broker"),
                Parameter("kind", "only of this kind, or of these, separated by commas"),
                Parameter("since", "only entries of this time or later, ms since 1970", TIME),
                Parameter("until", "only entries before this time, ms since 1970", TIME),
                statuses=(200, 400),
            ),
            read("/loadbalance/v1/balance", self.balance, BalanceAnswer),
        ]

    async def decisions(self, request: web.Request) -> web.Response:
        """Return the leader's recent decisions and non-decisions, newest first."""
        limit = parse_number(request, _DECISIONS_LIMIT)
        subject = request.query.get("subject")
        kinds = [kind for kind in request.query.get("kind", "").split(",") if kind]
        since_ms, until_ms = parse_time(request, "since"), parse_time(request, "until")

        def act() -> dict[str, Any]:
            term = self._node.get_term()
            recent = self._node.decision_log.recent(limit, subject, kinds=kinds, since_ms=since_ms, until_ms=until_ms)
            return {"epoch": term.epoch, "decisions": recent}

        return await self._forwarder.on_leader(request, act)

    async def balance(self, request: web.Request) -> web.Response:
        """Return the imbalance of the cluster with the best possible one, and the effect of the worst losses."""

        async def act() -> BalanceAnswer:
            return BalanceAnswer.of(*await self._node.planner.standing())

        return await self._forwarder.run_on_leader(request, act)


_AUDIT_LIMIT = number_parameter("limit", "how many at most", 100, 2_000)
_DAY_MS = 86_400_000


class AuditHandlers(LeaderHandlers[Candidate]):
    """Audit log, answered by the leader, which executes operator commands."""

    def operations(self) -> list[Operation]:
        return [
            read(
                "/loadbalance/v1/audit",
                self.show,
                AuditAnswer,
                Parameter("since", "from this time on, in ms since 1970; none: of the last 24 hours", TIME),
                Parameter("until", "before this time, in ms since 1970; none: up to now", TIME),
                _AUDIT_LIMIT,
                statuses=(200, 400),
            )
        ]

    async def show(self, request: web.Request) -> web.Response:
        """Return the operations that changed something, newest first, including those of former leaders."""
        since_ms, until_ms = parse_range(request, _DAY_MS)
        limit = parse_number(request, _AUDIT_LIMIT)

        async def act() -> AuditAnswer:
            self._node.get_term()
            return AuditAnswer(entries=await self._node.audit.recent(since_ms, until_ms, limit))

        return await self._forwarder.on_leader(request, act)


_COLUMNS = number_parameter("columns", "how many at most", 240, 2_000)
_ROWS = number_parameter("rows", "how many at most; neighbours by name share one", 200, 2_000)


class TimelineHandlers:
    def __init__(self, timeline_memory: TimelineMemory) -> None:
        self._timeline_memory = timeline_memory

    def operations(self) -> list[Operation]:
        return [
            read(
                "/loadbalance/v1/timeline",
                self.timeline,
                Timeline,
                Parameter(
                    "of",
                    "brokers or bundles",
                    {"type": "string", "enum": ["brokers", "bundles"], "default": "brokers"},
                ),
                Parameter("since", "from when on, ms since 1970; else a day before `until`", TIME),
                Parameter("until", "until when, ms since 1970; else now", TIME),
                _COLUMNS,
                _ROWS,
                statuses=(200, 400),
            )
        ]

    async def timeline(self, request: web.Request) -> web.Response:
        """Return the usage of brokers, or the load of bundles by hash, over time, with moves, splits and leaders."""
        of = _parse_timeline_rows(request)
        until_ms = parse_time(request, "until")
        until_ms = clock.now_ms() if until_ms is None else until_ms
        since_ms = parse_time(request, "since")
        since_ms = max(until_ms - self._timeline_memory.span_ms, 0) if since_ms is None else since_ms
        if since_ms >= until_ms:
            raise BadRequestError(f"since {since_ms}: expected a time before until, {until_ms}")
        window = Window(since_ms, until_ms, parse_number(request, _COLUMNS), parse_number(request, _ROWS))
        return json_response(await self._timeline_memory.draw(of, window))


def _parse_timeline_rows(request: web.Request) -> Literal["brokers", "bundles"]:
    match request.query.get("of", "brokers"):
        case "brokers":
            return "brokers"
        case "bundles":
            return "bundles"
        case other:
            raise BadRequestError(f"of {other[:40]!r}: expected brokers or bundles")


_EXPLAIN = "/loadbalance/v1/explain"


class ExplainHandlers(LeaderHandlers[Candidate]):
    """`/loadbalance/v1/explain`, read-only. The leader answers, because only it has the strategies' memory."""

    def operations(self) -> list[Operation]:
        bundle = Parameter("bundle", "tenant/namespace/0x.._0x..", required=True)
        broker = Parameter("broker", "the broker's id, host:port", required=True)
        return [
            read(
                f"{_EXPLAIN}/bundle/{{tenant}}/{{namespace}}/{{range}}",
                self.bundle,
                BundleExplanation,
                statuses=(200, 404, 412),
            ),
            read(f"{_EXPLAIN}/broker/{{broker}}", self.broker, BrokerExplanation, statuses=(200, 404, 412)),
            read(f"{_EXPLAIN}/why-not", self.why_not, WhyNotExplanation, bundle, broker, statuses=(200, 400, 404, 412)),
        ]

    async def bundle(self, request: web.Request) -> web.Response:
        """Explain the place of a bundle, and the result of shedding and placement now."""
        name = parse_bundle(request)
        return await self._forwarder.run_on_leader(request, lambda: self._node.explainer.bundle(name))

    async def broker(self, request: web.Request) -> web.Response:
        """Explain what a shedding round would take from the broker now, and whether it can receive bundles."""
        broker = parse_broker_id(request.match_info["broker"])
        return await self._forwarder.run_on_leader(request, lambda: self._node.explainer.broker(broker))

    async def why_not(self, request: web.Request) -> web.Response:
        """Explain why the bundle is not on that broker."""
        bundle = BundleName.parse(_require_query(request, "bundle"))
        broker = parse_broker_id(_require_query(request, "broker"))
        return await self._forwarder.run_on_leader(request, lambda: self._node.explainer.why_not(bundle, broker))


def _require_query(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadRequestError(f"{name} is missing: expected ?bundle=tenant/namespace/0x.._0x..&broker=host:port")
    return value


_LIFE = "/loadbalance/v1/history/bundle/{tenant}/{namespace}/{range}"
_OF_THIS_NODE = "/loadbalance/v1/history/here/bundle/{tenant}/{namespace}/{range}"
_HALF_A_DAY_MS = 43_200_000
_LINEAGE_LIMIT = number_parameter("limit", "maximum number of entries; the newest are returned", 1_000, 1_000)
_READING_TIMEOUT_S = 30.0


class LineageHandlers(LeaderHandlers[Candidate]):
    """Lineage of bundles: decisions, moves, operator commands and leaders, across terms."""

    def operations(self) -> list[Operation]:
        parameters = (
            Parameter("since", "from this time on, in ms since 1970; none: of the last 12 hours", TIME),
            Parameter("until", "before this time, in ms since 1970; none: up to now", TIME),
            _LINEAGE_LIMIT,
        )
        lineage = partial(read, statuses=(200, 400, 404, 412))
        return [
            lineage(_LIFE, self.bundle, BundleLineage, *parameters),
            lineage(_OF_THIS_NODE, self.bundle_here, BundleLineage, *parameters, role=AccessRole.PEER),
        ]

    async def bundle(self, request: web.Request) -> web.Response:
        """Return the lineage of a bundle and of overlapping bundles from the histories of all nodes, oldest first.

        The range may be a bundle of the past.
        """
        name, since_ms, until_ms, limit = _parse_lineage_request(request)
        query = f"?since={since_ms}&until={until_ms}&limit={limit}"
        path = f"{_OF_THIS_NODE.partition('{')[0]}{name}{query}"
        others = {
            node: each.service_url for node, each in self._node.mirror.nodes.items() if node != self._node.node_id
        }
        asking = asyncio.gather(*(self._ask_node(url, path) for url in others.values()))
        own, answers = await asyncio.gather(self._own(name, since_ms, until_ms, limit), asking)
        heard = [own, *(life for life in answers if life is not None)]
        if not any(life.entries for life in heard):
            await self._node.lineage.of(name, since_ms, until_ms, 1)  # raises the reason if nothing is recorded
        unheard = [node for node, answer in zip(others, answers, strict=True) if answer is None]
        return json_response(merge_lineages(heard, limit, unheard))

    async def bundle_here(self, request: web.Request) -> web.Response:
        """Return the lineage from the history of this node only, for the other nodes."""
        return json_response(await self._own(*_parse_lineage_request(request)))

    async def _own(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Read this node's lineage; empty if it does not record."""
        try:
            return await self._node.lineage.of(name, since_ms, until_ms, limit)
        except NotFoundError:
            return BundleLineage(bundle=str(name), since=since_ms, until=until_ms, omitted=0, entries=[])

    async def _ask_node(self, url: str, path: str) -> BundleLineage | None:
        """Request the lineage from the node at this URL; None if it does not answer."""
        body = await self._forwarder.ask(url, path, _READING_TIMEOUT_S)
        try:
            return None if body is None else BundleLineage.model_validate_json(body)
        except ValidationError:  # a node of another version
            return None


def _parse_lineage_request(request: web.Request) -> tuple[BundleName, int, int, int]:
    """Parse the bundle, the time range and the limit of a request."""
    return (
        parse_bundle(request),
        *parse_range(request, _HALF_A_DAY_MS),
        parse_number(request, _LINEAGE_LIMIT),
    )
