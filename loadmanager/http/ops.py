"""For those who run a node: is it alive, can it be asked, and what does it count."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from loadmanager.http.metrics import figures_of, render
from loadmanager.http.responses import guarded, json_response, problem
from loadmanager.leader.service import Node
from loadmanager.store.base import SessionState


class OpsHandlers:
    """`/healthz`, `/readyz`, `/metrics`."""

    def __init__(self, node: Node, lookups: CollectorRegistry) -> None:
        self._node = node
        self._lookups = lookups

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", guarded(self.healthz)),
            web.get("/readyz", guarded(self.readyz)),
            web.get("/metrics", guarded(self.metrics)),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the process does its work; it leaves the store out: a restart would not mend ZooKeeper."""
        del request
        if self._node.failure.done():
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"a task ended: {self._node.failure.exception()}")
        return json_response({"nodeId": self._node.node_id, "leading": self._node.leading.is_set()})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 when the view of the cluster is current, so that answers can be relied on; else 503 saying why."""
        del request
        state = self._node.store.state
        if state is not SessionState.CONNECTED:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"the session with ZooKeeper is {state}")
        if not self._node.view.is_fresh:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster is being read again after a reconnection")
        return json_response({"epoch": self._node.view.epoch, "faults": self._node.view.faults})

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        figures = figures_of(self._node)
        text = await asyncio.to_thread(render, figures, self._node.settings.cluster_name, self._lookups)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
