"""Watches: ownership of namespaces, pushed to clients that keep a copy: a snapshot of each, then its changes."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from aiohttp import HttpVersion11, web

from loadmanager.core.domain.names import NamespaceName
from loadmanager.errors import BadRequestError
from loadmanager.http.metrics_text import WatchMetrics
from loadmanager.http.openapi import EVENTS, Operation, Parameter
from loadmanager.http.responses import problem
from loadmanager.http.server_sent_events import encode_event, event_stream
from loadmanager.http.watch_hub import HEARTBEAT_S, Hub, Watcher
from loadmanager.leader.node_port import MirrorPort
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.auth.roles import AccessRole
from loadmanager.net.http_server import connections_allowed

PROTOCOL = "1"
_LAST_SEEN = "Last-Event-ID"
_MOST_NAMESPACES = 64
_SHARE = 0.75
"""Share of all connections that watchers may use: the rest is for requests."""

_SHOWN_CHARACTERS = 40
_TEXTS = {"type": "array", "items": {"type": "string"}}
_NAMES = {**_TEXTS, "minItems": 1, "maxItems": _MOST_NAMESPACES}


class WatchHandlers:
    """Watches on any node, from its own mirror."""

    def __init__(self, node_id: str, mirror: MirrorPort, gate: AuthGate, metrics: WatchMetrics) -> None:
        self._node_id = node_id
        self._mirror = mirror
        self._hub = Hub(mirror, lambda request: gate.still_permits(request, AccessRole.LOOKUP), metrics)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/loadbalance/v1/watch",
                "who owns what, as a stream: each namespace as it is, then what changes of it, from Last-Event-ID on",
                self.watch,
                (
                    Parameter("namespace", "tenant/namespace; again for each more", _NAMES, required=True),
                    Parameter("from", "the id of the last event about a namespace; again for each more", _TEXTS),
                    Parameter("protocol", f"what the client understands: {PROTOCOL}, also if it does not say"),
                ),
                role=AccessRole.LOOKUP,
                media_type=EVENTS,
                statuses=(200, 400, 412, 505),
            )
        ]

    def close(self) -> None:
        """End all streams."""
        self._hub.close()

    async def watch(self, request: web.Request) -> web.StreamResponse:
        names, ids = _namespaces_of(request), _ids_of(request)
        refusal = self._refusal(request, names)
        if refusal is not None:
            return refusal
        response = event_stream()
        response.force_close()
        writer = await response.prepare(request)
        if request.method == "HEAD" or writer is None:
            return response
        await response.write(self._hello())
        places = {sheet: sheet.place_of(ids.get(sheet.name, "")) for sheet in self._hub.sheets(names)}
        watcher = Watcher(request, writer, places, self._hub.metrics)
        with self._hub.has(watcher):
            try:
                await watcher.run()
            except (ConnectionError, TimeoutError):
                self._hub.metrics.cut_off += not watcher.is_gone
                if request.transport is not None:
                    request.transport.abort()
        return response

    def _refusal(self, request: web.Request, names: list[str]) -> web.Response | None:
        if self._hub.is_closed:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "this node is stopping: ask another node")
        if not self._mirror.is_fresh:
            reason = "this node is cut off from ZooKeeper, or is reading it again: ask another node"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        most = _SHARE * connections_allowed(request)
        if len(self._hub.watchers) >= most:
            reason = f"{most:.0f} watchers are here, as maxHttpServerConnections allows: ask another node"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        if not self._hub.has_room_for(names):
            reason = "too many namespaces are watched that are not there: watch a namespace once it was created"
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        if request.version < HttpVersion11:
            reason = "HTTP/1.0: the stream takes HTTP/1.1, also of a proxy (nginx: proxy_http_version 1.1)"
            return problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, reason)
        return None

    def _hello(self) -> bytes:
        hello = {"protocol": int(PROTOCOL), "node": self._node_id, "heartbeatSeconds": round(HEARTBEAT_S)}
        return encode_event("hello", orjson.dumps(hello))


def _namespaces_of(request: web.Request) -> list[str]:
    """Return the requested namespaces, each once."""
    protocol = request.query.get("protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise BadRequestError(
            f"protocol {protocol[:_SHOWN_CHARACTERS]!r}: this node speaks {PROTOCOL}; look topics up one by one, or"
            " install a client and nodes of one version"
        )
    names = dict.fromkeys(str(NamespaceName.parse(text)) for text in request.query.getall("namespace", []))
    if not 1 <= len(names) <= _MOST_NAMESPACES:
        raise BadRequestError(
            f"namespace: {len(names)} of them; expected 1 to {_MOST_NAMESPACES}, such as ?namespace=tenant/namespace"
        )
    return list(names)


def _ids_of(request: web.Request) -> dict[str, str]:
    """Return the last id that the client has seen of each namespace."""
    texts = [*request.headers.get(_LAST_SEEN, "").split(","), *request.query.getall("from", [])]
    return {text.strip().partition("@")[0]: text.strip() for text in texts}
