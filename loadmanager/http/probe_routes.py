"""Probes of a node: liveness, readiness and metrics for operators, leadership for standbys."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.http.messages import json_bytes, problem
from loadmanager.http.metrics_text import render
from loadmanager.http.openapi import TEXT, Operation, number_parameter, parse_number, read
from loadmanager.leader.candidate import Candidate
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.util.process_metrics import choose_format
from loadmanager.wire.http_bodies import (
    LONGEST_HOLD_MS,
    CannotMove,
    HealthBody,
    Readiness,
    ShownLimit,
    TermAnswer,
    UnplaceableNamespaces,
)


class ProbeHandlers:
    """`/healthz`, `/readyz`, `/status.html`, `/metrics`."""

    def __init__(self, node: Candidate, lookups: CollectorRegistry, gate: AuthGate) -> None:
        self._node = node
        self._lookups = lookups
        self._gate = gate

    def operations(self) -> list[Operation]:
        return [
            read("/healthz", self.healthz, HealthBody, role=AccessRole.ANYONE, statuses=(200, 500)),
            read("/readyz", self.readyz, Readiness, role=AccessRole.ANYONE),
            read("/status.html", self.status_page, None, role=AccessRole.ANYONE, media_type=TEXT),
            read("/metrics", self.metrics, None, media_type=TEXT),
        ]

    async def healthz(self, _: web.Request) -> web.Response:
        """Answer 200 while the process works.

        It ignores the store: a restart of the node would not repair ZooKeeper.
        """
        if self._node.failure.done():
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"a task ended: {self._node.failure.exception()}")
        return json_bytes(HealthBody(node_id=self._node.node_id, leading=self._node.is_leading).to_json())

    async def readyz(self, _: web.Request) -> web.Response:
        """Answer 200 if the mirror of the metadata store is current; else 503 with the reason."""
        reason = self._node.why_not_ready()
        if reason is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        cannot_move = [CannotMove(key=each.key, sentence=each.sentence) for each in self._node.stuck_monitor.found]
        ready = Readiness(
            epoch=self._node.mirror.epoch,
            faults={**self._node.mirror.faults, **self._node.denied},
            cannot_move=cannot_move,
            limits=[ShownLimit.of(each) for each in self._node.stuck_monitor.limits],
            unplaceable=[UnplaceableNamespaces.of(each) for each in self._node.mirror.unplaceable()],
            open_to_anyone=self._gate.is_open_to_anyone,
        )
        return json_bytes(ready.to_json())

    async def status_page(self, _: web.Request) -> web.Response:
        """Answer OK as text if the mirror of the metadata store is current: Pulsar's check for load balancers."""
        reason = self._node.why_not_ready()
        return web.Response(text="OK") if reason is None else problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the metrics in the Prometheus format."""
        encode, content_type = choose_format(",".join(request.headers.getall("Accept", ())))
        cluster = self._node.live.current.cluster_name
        text = await asyncio.to_thread(render, self._node.scrape(), cluster, self._lookups, encode)
        return web.Response(body=text, headers={"Content-Type": content_type})


_HOLD = number_parameter("holdMs", "delay of the answer; a change of leader ends it early", 0, LONGEST_HOLD_MS, least=0)


class TermHandlers:
    """`/loadbalance/v1/term`; never forwarded, because it is about the node that is asked."""

    def __init__(self, node: Candidate) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        path, statuses = "/loadbalance/v1/term", (200, 400, 503)
        return [read(path, self.term, TermAnswer, _HOLD, role=AccessRole.ANYONE, statuses=statuses)]

    async def term(self, request: web.Request) -> web.Response:
        """Return the epoch of this node's term, once the store has confirmed that it is still the latest.

        The answer is delayed. That limits the request rate of standbys and keeps a connection that ends with the
        process.
        """
        hold_ms = parse_number(request, _HOLD)
        if hold_ms:
            await asyncio.wait({self._node.leader_changed}, timeout=hold_ms / 1000)
        term = await self._node.prove_term()
        return json_bytes(TermAnswer(epoch=term.epoch).to_json())
