"""Probes for operators: liveness, readiness, metrics."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.http.metrics_text import render
from loadmanager.http.openapi import TEXT, Operation
from loadmanager.http.responses import json_bytes, problem
from loadmanager.leader.node_port import HealthPort, MirrorPort
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.auth.roles import AccessRole
from loadmanager.util.process_metrics import choose_format
from loadmanager.wire.http_bodies import CannotMove, HealthBody, Readiness, ShownLimit, UnplaceableNamespaces


class OpsHandlers:
    """`/healthz`, `/readyz`, `/status.html`, `/metrics`."""

    def __init__(
        self, node: HealthPort, mirror: MirrorPort, cluster: str, lookups: CollectorRegistry, gate: AuthGate
    ) -> None:
        self._node = node
        self._mirror = mirror
        self._cluster = cluster
        self._lookups = lookups
        self._gate = gate

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/healthz",
                "200 while the process does its work",
                self.healthz,
                role=AccessRole.ANYONE,
                response_model=HealthBody,
                statuses=(200, 500),
            ),
            Operation(
                "GET",
                "/readyz",
                "200 when the mirror of the metadata store is current",
                self.readyz,
                role=AccessRole.ANYONE,
                response_model=Readiness,
            ),
            Operation(
                "GET",
                "/status.html",
                "OK when the mirror of the metadata store is current, as text: Pulsar's check for load balancers",
                self.status_page,
                role=AccessRole.ANYONE,
                media_type=TEXT,
            ),
            Operation("GET", "/metrics", "Prometheus metrics", self.metrics, role=AccessRole.READ, media_type=TEXT),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the process works. It ignores the store: a restart would not mend ZooKeeper."""
        del request
        if self._node.failure.done():
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"a task ended: {self._node.failure.exception()}")
        return json_bytes(HealthBody(node_id=self._node.node_id, leading=self._node.is_leading).to_json())

    async def readyz(self, request: web.Request) -> web.Response:
        """200 when the mirror is current, so that answers can be relied on; else 503 with the reason."""
        del request
        reason = self._node.why_not_ready()
        if reason is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        cannot_move = [CannotMove(key=each.key, sentence=each.sentence) for each in self._node.stuck_monitor.found]
        ready = Readiness(
            epoch=self._mirror.epoch,
            faults={**self._mirror.faults, **self._node.denied},
            cannot_move=cannot_move,
            limits=[ShownLimit.of(each) for each in self._node.stuck_monitor.limits],
            unplaceable=[UnplaceableNamespaces.of(each) for each in self._mirror.unplaceable()],
            open_to_anyone=self._gate.is_open_to_anyone,
        )
        return json_bytes(ready.to_json())

    async def status_page(self, request: web.Request) -> web.Response:
        del request
        reason = self._node.why_not_ready()
        return web.Response(text="OK") if reason is None else problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_format(",".join(request.headers.getall("Accept", ())))
        text = await asyncio.to_thread(render, self._node.scrape(), self._cluster, self._lookups, encode)
        return web.Response(body=text, headers={"Content-Type": content_type})
