"""Lookup: which broker owns a topic. Any node answers for an owned bundle; the leader assigns the others."""

from __future__ import annotations

import time
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web

from loadmanager.core.names import NamespaceName, TopicName
from loadmanager.errors import LoadManagerError
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.metrics import LookupMetrics
from loadmanager.http.responses import json_bytes, problem
from loadmanager.leader.service import Answer, Node
from loadmanager.leader.view import lookup_answer
from loadmanager.wire.http import LISTENER_HEADER, PartitionedTopicMetadata

_TOPIC = "{domain}/{tenant}/{namespace}/{topic}"
_NAMESPACES_KEPT = 4096
_NOT_PARTITIONED = PartitionedTopicMetadata().to_json()


def topic_of(request: web.Request) -> TopicName:
    """The topic that a path names; `InvalidNameError` when it is none."""
    names = request.match_info
    return TopicName.within(names["domain"], _namespace_of(names["tenant"], names["namespace"]), names["topic"])


_namespace_of = lru_cache(maxsize=_NAMESPACES_KEPT)(NamespaceName.of)
"""Checking a namespace's name takes longer than all the rest of finding its owner."""


class LookupHandlers:
    """Pulsar's lookup paths."""

    def __init__(self, node: Node, forwarder: Forwarder, metrics: LookupMetrics) -> None:
        self._node = node
        self._forwarder = forwarder
        self._metrics = metrics
        self._timeout_s = node.settings.lookup_timeout_ms / 1000

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get(f"/lookup/v2/topic/{_TOPIC}", self.lookup)
        app.router.add_get(f"/lookup/v2/topic/{_TOPIC}/bundle", self.bundle)
        app.router.add_get(f"/admin/v2/{_TOPIC}/partitions", self.partitions)

    async def lookup(self, request: web.Request) -> web.Response:
        """`GET /lookup/v2/topic/...`: LookupData of the owner, who is chosen now if there is none."""
        started_s = time.perf_counter()
        topic = topic_of(request)
        try:
            found = self._node.find_answer(topic)
            response = self._respond(request, found) if found is not None else await self._assign(request, topic)
        except LoadManagerError:
            self._metrics.failures.inc()
            raise
        if response.status == HTTPStatus.OK:
            self._metrics.answered(time.perf_counter() - started_s)
        else:
            self._metrics.failures.inc()
        return response

    async def _assign(self, request: web.Request, topic: TopicName) -> web.Response:
        async def act() -> web.Response:
            return self._respond(request, await self._node.lookup(topic))

        return await self._forwarder.on_leader(request, act, self._timeout_s + 1)

    def _respond(self, request: web.Request, found: Answer) -> web.Response:
        listener = request.query.get("listenerName") if request.query_string else None
        listener = listener or request.headers.get(LISTENER_HEADER)
        if not listener:
            return json_bytes(found.broker.lookup_body)
        broker_id = found.broker.registration.broker
        answer = lookup_answer(broker_id, found.broker.record, listener)
        if answer is None:
            reason = f"the broker {broker_id} has no advertised listener named {listener!r}"
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
        return json_bytes(answer.to_json())

    async def bundle(self, request: web.Request) -> web.Response:
        """`GET /lookup/v2/topic/.../bundle`: the range of the topic's bundle, as bare text; nothing is assigned."""
        entry, index = self._node.view.bundle_of_topic(topic_of(request))
        return web.Response(text=str(entry.state.bundles.range_at(index)), content_type="application/json")

    async def partitions(self, request: web.Request) -> web.Response:
        """`GET /admin/v2/.../partitions`: what a client asks before a lookup. Topics here are never partitioned."""
        self._node.view.get_namespace(str(topic_of(request).namespace))
        return json_bytes(_NOT_PARTITIONED)
