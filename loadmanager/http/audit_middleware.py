"""Audit middleware: writes an audit entry for every operation that changes something, even if it is refused.

The leader writes the entry of a forwarded operation. The forwarding node writes one only if it answers by itself.
Handlers record the state before and after with `note_change`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager.http.leader_proxy import PASSED_ON
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.net.auth.gate import PRINCIPAL
from loadmanager.net.request_ids import id_of, noted
from loadmanager.util import clock
from loadmanager.wire.http_bodies import CLIENT_HEADER, FORWARDED_HEADER
from loadmanager.wire.lineage_bodies import ANONYMOUS, AuditEntry

_CHANGE = web.RequestKey("change", tuple)
_MOST_BYTES = 4_096
_MOST_CHARACTERS = 300

_Stored = TypeVar("_Stored")


def audited(operation: str, handler: Handler, audit: AuditTrail) -> Handler:
    """Wrap a handler so that each request writes an audit entry under the name `operation`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        with noted(request):
            status: int = HTTPStatus.SERVICE_UNAVAILABLE
            try:
                response = await handler(request)
                status = response.status
                return response
            finally:
                if PASSED_ON not in request:
                    audit.note(_entry(operation, request, status, audit.node_id))

    return answer


def _entry(operation: str, request: web.Request, status: int, node: str) -> AuditEntry:
    before, after = request.get(_CHANGE, (None, None))
    return AuditEntry(
        at=clock.now_ms(),
        node=node,
        request_id=id_of(request),
        who=request.get(PRINCIPAL, ANONYMOUS)[:_MOST_CHARACTERS],
        from_=_address(request),
        operation=operation,
        path=request.rel_url.raw_path[:_MOST_CHARACTERS],  # as sent, without the query, which may contain a token
        status=status,
        before=_limit_size(before),
        after=_limit_size(after),
    )


def _address(request: web.Request) -> str:
    """Return the peer's address; for a forwarded request also the caller's address from the forwarding node."""
    peer = request.remote or "unknown"
    client = request.headers.get(CLIENT_HEADER, "")
    if FORWARDED_HEADER not in request.headers or not _is_address(client):
        return peer
    return f"{client} via {peer}"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _limit_size(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value as JSON if it is small enough for a log line, else its size."""
    data = orjson.dumps(value, default=list)
    return orjson.loads(data) if len(data) <= _MOST_BYTES else {"bytesLeftOut": len(data)}


def note_change(request: web.Request, before: object, after: object) -> None:
    """Note the value before and after a change in the request's audit entry; for two objects only the differences."""
    request[_CHANGE] = differing(before, after)


async def noting(
    request: web.Request,
    update: Callable[[Callable[[_Stored], _Stored]], Awaitable[object]],
    change: Callable[[_Stored], _Stored],
    shown: Callable[[_Stored], object] = lambda stored: stored,
) -> None:
    """Change operator config, and note the difference once it is stored."""
    seen: list[tuple[object, object]] = []

    def make(stored: _Stored) -> _Stored:
        changed = change(stored)
        seen.append((shown(stored), shown(changed)))
        return changed

    await update(make)
    note_change(request, *seen[-1])


def differing(before: object, after: object) -> tuple[object, object]:
    """Return the parts in which two JSON values differ; both None when they are equal."""
    if before == after:
        return None, None
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return before, after
    parts = {
        key: differing(before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }
    return {key: old for key, (old, _) in parts.items()}, {key: new for key, (_, new) in parts.items()}
