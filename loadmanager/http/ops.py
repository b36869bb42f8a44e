"""For those who run a node: is it alive, can it be asked, and what does it count."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from loadmanager.http.metrics import figures_of, render
from loadmanager.http.openapi import TEXT, Operation
from loadmanager.http.responses import json_bytes, problem
from loadmanager.leader.service import Node
from loadmanager.store.base import SessionState
from loadmanager.wire.http import Health, Readiness


class OpsHandlers:
    """`/healthz`, `/readyz`, `/metrics`."""

    def __init__(self, node: Node, lookups: CollectorRegistry) -> None:
        self._node = node
        self._lookups = lookups

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/healthz",
                "200 while the process does its work",
                self.healthz,
                response_model=Health,
                statuses=(200, 500),
            ),
            Operation(
                "GET", "/readyz", "200 when the view of the cluster is current", self.readyz, response_model=Readiness
            ),
            Operation("GET", "/metrics", "Prometheus metrics", self.metrics, media_type=TEXT),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the process does its work; it leaves the store out: a restart would not mend ZooKeeper."""
        del request
        if self._node.failure.done():
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"a task ended: {self._node.failure.exception()}")
        return json_bytes(Health(node_id=self._node.node_id, leading=self._node.leading.is_set()).to_json())

    async def readyz(self, request: web.Request) -> web.Response:
        """200 when the view of the cluster is current, so that answers can be relied on; else 503 saying why."""
        del request
        reason = why_not_ready(self._node)
        if reason is not None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return json_bytes(Readiness(epoch=self._node.view.epoch, faults=self._node.view.faults).to_json())

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        figures = figures_of(self._node)
        text = await asyncio.to_thread(render, figures, self._node.settings.cluster_name, self._lookups)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def why_not_ready(node: Node) -> str | None:
    """Why this node's answers cannot be relied on at the moment; None when they can."""
    state = node.store.state
    if state is not SessionState.CONNECTED:
        obstacle = node.store.obstacle
        return f"the session with ZooKeeper is {state}" + (f": {obstacle}" if obstacle else "")
    if not node.view.is_fresh:
        return "the cluster is being read again after a reconnection"
    return node.election.why_nobody_leads()
