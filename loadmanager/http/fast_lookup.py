"""Fast path for lookups, parsed from the raw bytes of a request: HTTP parsing is most of the cost of a lookup.

A request qualifies when there is nothing in it that anything but finding the owner could depend on:

    its part         what it has to be                                           whatever else
    ---------------  ----------------------------------------------------------  -------------------------------------
    the line         GET /lookup/v2/topic/..., of letters that nobody escapes,   is asked the usual way, as if this were
                     without a query                                             not here: it alone refuses, assigns,
    the head         whole, and of these lines: Host, User-Agent, Accept and     passes on and explains, and counts as
                     its like, Connection: keep-alive, Authorization             failed
    who asks         known to the gate already
    the bundle       owned

The answer is byte for byte the one that would have been given, the request's id and the time apart. Nothing is answered
here where requests are traced.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache

from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from loadmanager.core.domain.names import InvalidNameError, TopicName
from loadmanager.http.metrics_text import LookupMetrics
from loadmanager.leader.node_port import LookupPort
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.auth.roles import AccessRole
from loadmanager.net.request_ids import REQUEST_ID_HEADER, new_id

_TOPICS_KEPT = 16_384
_HEADS_KEPT = 1_024
"""Every client sends its own again and again."""
_MOST_BYTES = 4_096

_BEGINNING, _VERSION = b"GET /lookup/v2/topic/", b" HTTP/1.1\r\n"
_NAME = rb"([A-Za-z0-9_][-A-Za-z0-9_.]*)"
_TARGET = re.compile(_BEGINNING + rb"(persistent|non-persistent)/" + rb"/".join([_NAME] * 3))
_LINE = re.compile(
    rb"(?:(?P<host>host: [-A-Za-z0-9.:\[\]_]+)|(?:user-agent|accept|accept-encoding|accept-language): [ -~]+"
    rb"|connection: keep-alive|authorization: (?P<authorization>[!-~](?:[ -~]*[!-~])?))\r\n",
    re.IGNORECASE,
)


class QuickLookups:
    """Fast-path handler; called with the bytes that an idle connection has received."""

    def __init__(self, lookups: LookupPort, metrics: LookupMetrics, gate: AuthGate) -> None:
        self._lookups = lookups
        self._metrics = metrics
        self._gate = gate

    def __call__(self, received: bytes) -> bytes | None:
        """Return the complete answer, or None for a request that takes the usual way."""
        started_s = time.perf_counter()
        if not received.startswith(_BEGINNING) or len(received) > _MOST_BYTES:
            return None
        line, version, head = received.partition(_VERSION)
        topic, authorization = _topic_of(line), _authorization_of(head)
        if topic is None or authorization is None or not version:
            return None
        if not (self._gate.is_open or self._gate.knows(authorization, AccessRole.LOOKUP)):
            return None
        try:
            owner = self._lookups.find_owner(topic)
        except Exception:  # noqa: BLE001 - the usual way meets it again, and says it
            return None
        if owner is None:
            return None
        answer = _answer(owner.lookup_body)
        self._metrics.answered(time.perf_counter() - started_s)
        return answer


@lru_cache(_TOPICS_KEPT)
def _topic_of(line: bytes) -> TopicName | None:
    """Return the topic in the request line, up to the version; None if it does not qualify."""
    found = _TARGET.fullmatch(line)
    if found is None:
        return None
    try:
        return TopicName.of(*(part.decode() for part in found.groups()))
    except InvalidNameError:
        return None


@lru_cache(_HEADS_KEPT)
def _authorization_of(head: bytes) -> str | None:
    """Return the Authorization header, empty without one; None where the headers do not qualify for the fast path."""
    at, hosts, found = 0, 0, list[str]()
    while (line := _LINE.match(head, at)) is not None:
        at = line.end()
        hosts += line["host"] is not None
        found += [line["authorization"].decode()] if line["authorization"] else []
    is_whole = head[at:] == b"\r\n"
    return "".join(found) if is_whole and hosts == 1 and len(found) <= 1 else None


def _answer(body: bytes) -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n{REQUEST_ID_HEADER}: {new_id()}\r\n\r\n"
    ).encode() + body
