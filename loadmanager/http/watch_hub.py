"""Watch hub and its route: pushes changes of namespaces to the watchers on this node.

    the mirror ──notifies──▶ Hub ──look──▶ Sheet ──▶ up-to-date readers: written at once, the same bytes for all
                                            └──────▶ slow readers: woken, and sent the newest state when writable

A watcher has a place in each of its sheets and at most one unsent event, so watchers neither increase memory nor delay
each other. Pushes run in short batches and pause for as long as they worked, because this node's lookups come first.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeVar

import orjson
import structlog
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.errors import BadRequestError, LoadManagerError
from loadmanager.http.messages import EVENTS, NOTHING_NEW, encode_event, event_stream, problem
from loadmanager.http.metrics_text import WatchMetrics
from loadmanager.http.openapi import Operation, Parameter, read
from loadmanager.http.watch_sheet import Sheet, chunk_of
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.net.http_server import connections_allowed

log = structlog.get_logger(__name__)

HEARTBEAT_S = 10.0
"""Heartbeat interval of idle readers, plus up to one check interval."""

_LOOK_S = 1.0
"""Interval of the checks that each watcher is connected and permitted."""

_STALE_LOOKS = 2
"""Consecutive checks with a stale mirror after which all streams end: short disconnections end none."""

_SLOW_S = 30.0
"""Timeout after which a reader that takes no data counts as gone."""

_FAREWELL_S = 1.0
"""Timeout for writing the end of a stream."""

_PIECE_BYTES = 16 * 1024
_SOCKET_BYTES = 64 * 1024
"""Limit on unsent bytes per watcher in this process, and on the socket buffer, which Linux doubles."""

_MOST_UNKNOWN = 1_000
"""Limit on watched namespaces that do not exist."""

_TURN = 64
"""Batch size: number of watchers to write to before other tasks run."""

_HEARTBEAT = chunk_of(NOTHING_NEW)
_T = TypeVar("_T")


class Watcher:
    """One stream. It ends when its reader is gone, no longer permitted, or does not read.

    `places` is its position in each of its sheets; None: nothing was sent yet.
    """

    def __init__(
        self,
        request: web.Request,
        writer: AbstractStreamWriter,
        places: dict[Sheet, int | None],
        metrics: WatchMetrics,
    ) -> None:
        self.request = request
        self.places = places
        self.sent_s = time.monotonic()
        self._writer = writer
        self._metrics = metrics
        self._is_over = False
        self._idle: asyncio.Future[None] | None = None
        _bound(request.transport)

    @property
    def is_gone(self) -> bool:
        return self.request.transport is None

    def push(self, sheet: Sheet) -> None:
        """Write an event at once if it is short and all earlier ones are sent; else leave it to `run`."""
        transport = self._free_transport()
        event = b"" if transport is None else self._event_of(sheet)
        if transport is None or len(event) > _PIECE_BYTES:
            self._wake()
            return
        self._write(transport, event)
        self._advance(sheet)

    def beat(self, now_s: float) -> None:
        """Write a heartbeat, unless something was sent recently."""
        transport = self._free_transport() if now_s - self.sent_s > HEARTBEAT_S else None
        if transport is not None:
            self._write(transport, _HEARTBEAT)

    def end(self) -> None:
        self._is_over = True
        self._wake()

    async def run(self) -> None:
        """Send all events that were not written at once. Raises `ConnectionError`, and `TimeoutError` for a slow
        reader.
        """
        while not self._is_over:
            behind = next((sheet for sheet, place in self.places.items() if place != sheet.place), None)
            if behind is not None:
                await self._send(behind)
                continue
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        async with asyncio.timeout(_FAREWELL_S):
            await self._writer.write_eof()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _free_transport(self) -> asyncio.Transport | None:
        """Return the transport; None while `run` is sending, or the transport has unsent data."""
        transport = self.request.transport
        if self._idle is None or self._idle.done() or transport is None or transport.is_closing():
            return None
        return None if transport.get_write_buffer_size() else transport

    def _write(self, transport: asyncio.Transport, data: bytes | memoryview) -> None:
        transport.write(data)
        self.sent_s = time.monotonic()

    async def _send(self, sheet: Sheet) -> None:
        """Send an event in pieces, each when the transport is writable; build it just before its first piece."""
        await self._has_room()
        event = memoryview(self._event_of(sheet))
        self._advance(sheet)
        for start in range(0, len(event), _PIECE_BYTES):
            await self._has_room()
            transport = self.request.transport
            if transport is None or transport.is_closing():
                raise ConnectionResetError
            self._write(transport, event[start : start + _PIECE_BYTES])

    async def _has_room(self) -> None:
        async with asyncio.timeout(_SLOW_S):
            await self._writer.drain()

    def _event_of(self, sheet: Sheet) -> bytes:
        return sheet.since(self.places[sheet])

    def _advance(self, sheet: Sheet) -> None:
        place = self.places[sheet]
        self._metrics.events += 1
        self._metrics.compacted += place is not None and sheet.place - place > 1
        self.places[sheet] = sheet.place


class Hub:
    """All watchers of a node. The mirror notifies it of changes; `permits` tells if a request may continue reading."""

    def __init__(self, mirror: ClusterMirror, permits: Callable[[web.Request], bool], metrics: WatchMetrics) -> None:
        self.watchers: dict[Watcher, None] = {}
        self.metrics = metrics
        self.is_closed = False
        self._mirror = mirror
        self._permits = permits
        self._sheets: dict[str, Sheet] = {}
        self._readers: dict[Sheet, dict[Watcher, None]] = {}
        self._changed: dict[str, float] = {}
        self._has_changes = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        mirror.on_namespace.append(self._namespace_changed)
        mirror.on_address.append(self._address_changed)

    def has_room_for(self, names: Collection[str]) -> bool:
        """Return True if these namespaces may be watched. Only the number of non-existing ones needs a limit."""
        return len(self._sheets) + len(names) <= len(self._mirror.namespaces) + _MOST_UNKNOWN

    def sheets(self, names: Iterable[str]) -> list[Sheet]:
        """Return the current sheets of these namespaces, watched or not."""
        return [self._sheets.get(name) or self._looked_at(Sheet(name)) for name in names]

    @contextmanager
    def has(self, watcher: Watcher) -> Iterator[None]:
        """Push changes of its sheets to the watcher inside the context."""
        self._begin()
        self.watchers[watcher] = None
        for sheet in watcher.places:
            self._sheets[sheet.name] = sheet
            self._readers.setdefault(sheet, {})[watcher] = None
        self.metrics.watchers = len(self.watchers)
        try:
            yield
        finally:
            del self.watchers[watcher]
            self.metrics.watchers = len(self.watchers)
            for sheet in watcher.places:
                self._leave(sheet, watcher)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        for watcher in self.watchers:
            watcher.end()

    def _leave(self, sheet: Sheet, watcher: Watcher) -> None:
        readers = self._readers[sheet]
        del readers[watcher]
        if not readers:
            del self._readers[sheet], self._sheets[sheet.name]

    def _begin(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._push(), name="watch pushes"),
                asyncio.create_task(self._look_after(), name="watch looks after"),
            ]

    def _namespace_changed(self, name: str) -> None:
        if name in self._sheets:
            self._changed.setdefault(name, time.monotonic())
            self._has_changes.set()

    def _address_changed(self, broker: BrokerId) -> None:
        for sheet in self._sheets.values():
            if sheet.names(broker):
                self._namespace_changed(sheet.name)

    def _looked_at(self, sheet: Sheet) -> Sheet:
        self._look(sheet)
        return sheet

    def _look(self, sheet: Sheet) -> bool:
        """Update a sheet from the mirror; return True if it has changed."""
        try:
            record = self._mirror.get_namespace(sheet.name)
        except LoadManagerError as error:
            return sheet.lose(str(error))
        return sheet.look(record, self._mirror.brokers)

    async def _push(self) -> None:
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            changed, self._changed = self._changed, {}
            worked_s = 0.0
            for name, changed_s in changed.items():
                try:
                    worked_s += await self._push_namespace(name, changed_s)
                except Exception:
                    log.exception("watch_failed", namespace=name)
            await asyncio.sleep(worked_s)

    async def _push_namespace(self, name: str, changed_s: float) -> float:
        """Push a namespace to all its watchers if it has changed; return the seconds of work."""
        sheet = self._sheets.get(name)
        if sheet is None:
            return 0.0
        began_s = time.monotonic()
        is_new = self._look(sheet)
        worked_s = time.monotonic() - began_s
        if is_new:
            worked_s += await self._push_sheet(sheet)
            self.metrics.lag.observe(time.monotonic() - changed_s)
        return worked_s

    async def _push_sheet(self, sheet: Sheet) -> float:
        worked_s = 0.0
        async for watchers in _in_turns(list(self._readers[sheet])):
            began_s = time.monotonic()
            for watcher in watchers:
                watcher.push(sheet)
            worked_s += time.monotonic() - began_s
        return worked_s

    async def _look_after(self) -> None:
        stale_looks = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            stale_looks = 0 if self._mirror.is_fresh else stale_looks + 1
            async for watchers in _in_turns(list(self.watchers)):
                now_s, is_stale = time.monotonic(), stale_looks >= _STALE_LOOKS
                for watcher in watchers:
                    if is_stale or watcher.is_gone or not self._permits(watcher.request):
                        watcher.end()
                    else:
                        watcher.beat(now_s)


async def _in_turns(each: Sequence[_T]) -> AsyncIterator[Sequence[_T]]:
    """Yield batches, and let other tasks run between them."""
    for start in range(0, len(each), _TURN):
        yield each[start : start + _TURN]
        await asyncio.sleep(0)


def _bound(transport: asyncio.Transport | None) -> None:
    """Limit a connection's buffers, so that a slow reader gets the newest state instead of a backlog."""
    if transport is not None:
        transport.set_write_buffer_limits(high=_PIECE_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)


PROTOCOL = "1"
_LAST_SEEN = "Last-Event-ID"
_MOST_NAMESPACES = 64
_SHARE = 0.75
"""Share of all connections that watchers may use; requests get the rest."""

_SHOWN_CHARACTERS = 40
_TEXTS = {"type": "array", "items": {"type": "string"}}
_NAMES = {**_TEXTS, "minItems": 1, "maxItems": _MOST_NAMESPACES}


class WatchHandlers:
    """Watches on any node, from its own mirror."""

    def __init__(self, node_id: str, mirror: ClusterMirror, gate: AuthGate, metrics: WatchMetrics) -> None:
        self._node_id = node_id
        self._mirror = mirror
        self._hub = Hub(mirror, lambda request: gate.still_permits(request, AccessRole.LOOKUP), metrics)

    def operations(self) -> list[Operation]:
        return [
            read(
                "/loadbalance/v1/watch",
                self.watch,
                None,
                Parameter("namespace", "tenant/namespace; again for each more", _NAMES, required=True),
                Parameter("from", "the id of the last event about a namespace; again for each more", _TEXTS),
                Parameter("protocol", f"what the client understands: {PROTOCOL}, also if it does not say"),
                role=AccessRole.LOOKUP,
                media_type=EVENTS,
                statuses=(200, 400, 412, 505),
            )
        ]

    def close(self) -> None:
        """End all streams."""
        self._hub.close()

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Stream the owners of namespaces: their current state, then changes; resumes after Last-Event-ID."""
        names, ids = _namespaces_of(request), _ids_of(request)
        if reason := self._why_unavailable(request, names):
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        if request.version < HttpVersion11:
            reason = "HTTP/1.0: the stream takes HTTP/1.1, also of a proxy (nginx: proxy_http_version 1.1)"
            return problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, reason)
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

    def _why_unavailable(self, request: web.Request, names: list[str]) -> str:
        """Return why this node takes no further watcher now; empty if it does."""
        if self._hub.is_closed:
            return "this node is stopping: ask another node"
        if not self._mirror.is_fresh:
            return "this node is cut off from ZooKeeper, or is reading it again: ask another node"
        most = _SHARE * connections_allowed(request)
        if len(self._hub.watchers) >= most:
            return f"{most:.0f} watchers are here, as maxHttpServerConnections allows: ask another node"
        if not self._hub.has_room_for(names):
            return "too many watched namespaces do not exist: watch a namespace after its creation"
        return ""

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
    """Return the last id of each namespace that the client has received."""
    texts = [*request.headers.get(_LAST_SEEN, "").split(","), *request.query.getall("from", [])]
    return {text.strip().partition("@")[0]: text.strip() for text in texts}
