"""Forwarding of requests to the leader, for operations that only the leader may do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import structlog
from aiohttp import web
from yarl import URL

from loadmanager.config.node_settings import Settings
from loadmanager.errors import InvalidRecordError, NoLeaderError, NotLeaderError
from loadmanager.http.messages import json_response
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.execution.executor import PREPARE_S
from loadmanager.net.auth.gate import PRINCIPAL
from loadmanager.net.http_client import HttpAnswer, HttpClient, PeerNotReachedError, PeerUnavailableError
from loadmanager.net.request_ids import REQUEST_ID_HEADER, id_of
from loadmanager.wire.http_bodies import (
    CLIENT_HEADER,
    FORWARDED_HEADER,
    LISTENER_HEADER,
    NOT_LEADER_HEADER,
    ORIGINAL_PRINCIPAL_HEADER,
)

PASSED_ON = web.RequestKey("passed_on", bool)
"""Set on a request that the leader has answered instead of this node."""

IS_QUESTION = web.RequestKey("is_question", bool)
"""Set on a request that changes nothing although it is no GET: it is repeated if its answer is lost."""

log = structlog.get_logger(__name__)

_ASK_AGAIN_S = 0.25
"""Delay before one retry if the leader was not reached or denied its leadership."""

_MARGIN_S = 5.0
_SHORTEST_S = 0.5
_HANDED_ON = ("Content-Type", LISTENER_HEADER, "Authorization", ORIGINAL_PRINCIPAL_HEADER)
"""Headers of the caller that affect the leader's answer."""

_PASSED_ON = ("Content-Type", "Retry-After", "WWW-Authenticate")
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_REDIRECTS = range(300, 400)

_Process = TypeVar("_Process", bound=Candidate)


def unloading_timeout_s(settings: Settings) -> float:
    """Return the timeout of another node for an operation that unloads bundles."""
    return PREPARE_S + settings.namespace_bundle_unloading_timeout_ms / 1000 + _MARGIN_S


class Forwarder:
    """Handles a request here if this node leads, and forwards it to the leader otherwise.

    Without a leader, or while this node becomes leader, it waits for the next leader up to `leader_timeout_s`; then it
    raises `NoLeaderError`. A forwarded request is not forwarded again.
    """

    def __init__(self, leadership: Candidate, http: HttpClient, leader_timeout_s: float) -> None:
        self._leadership = leadership
        self._http = http
        self._leader_timeout_s = leader_timeout_s
        self._is_refused = False

    async def on_leader(self, request: web.Request, act: Callable[[], object], timeout_s: float = 0.0) -> web.Response:
        """Call `act()` on the leader, and answer with its result: 204 for None, JSON unless it is a response.

        A forwarded request gets `timeout_s`, but at least the node's own timeout.
        """
        timeout_s = max(timeout_s, self._leader_timeout_s + _MARGIN_S)
        deadline_s = time.monotonic() + self._leader_timeout_s
        while True:
            changed = self._leadership.leader_changed
            try:
                return await _answer_with(act)
            except (NotLeaderError, NoLeaderError) as error:
                if FORWARDED_HEADER in request.headers and not self._is_elected():
                    raise
                refusal = error
            body = b"" if request.method == "GET" else await request.read()
            if _asks(request):
                timeout_s = min(timeout_s, max(_SHORTEST_S, deadline_s - time.monotonic()))
            answer = await self._pass_on_while_it_leads(request, body, timeout_s)
            if isinstance(answer, web.Response):
                request[PASSED_ON] = True
                return answer
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NoLeaderError(f"{answer or 'no node leads at the moment'}: {refusal}")
            await asyncio.wait({changed}, timeout=min(left_s, _ASK_AGAIN_S) if answer else left_s)

    def _is_elected(self) -> bool:
        """True if this node will lead soon, by its term or its mirror: other nodes may know of the election first."""
        try:
            self._leadership.get_term()
        except NotLeaderError:
            return self._leadership.leader_url == self._leadership.service_url
        return True

    async def run_on_leader(
        self, request: web.Request, act: Callable[[], object], timeout_s: float = 0.0
    ) -> web.Response:
        """Call `act` as `on_leader`, but only once the leader has read all writes of former leaders."""

        def lead_and_act() -> object:
            self._leadership.must_lead()
            return act()

        return await self.on_leader(request, lead_and_act, timeout_s)

    async def ask_leader(self, path: str, timeout_s: float) -> bytes | None:
        """Send a request of this node itself to the leader, another node; None unless it answers 200."""
        url = self._leadership.leader_url
        return None if url is None or url == self._leadership.service_url else await self.ask(url, path, timeout_s)

    async def ask(self, url: str, path: str, timeout_s: float) -> bytes | None:
        """Send a request to the node at this URL, as in `ask_leader`."""
        headers = {FORWARDED_HEADER: self._leadership.node_id, **self._leadership.caller.headers()}
        try:
            whole = URL(f"{url}{path}", encoded=True)
            answer = await self._http.call("GET", whole, timeout_s, connect_timeout_s=timeout_s, headers=headers)
        except (PeerUnavailableError, InvalidRecordError, ValueError):  # not reachable, or its published URL is invalid
            return None
        self._note_refusal(answer)
        return answer.body if answer.status == HTTPStatus.OK else None

    def _note_refusal(self, answer: HttpAnswer) -> None:
        """Log once that the leader refuses this node's credentials."""
        is_refused = answer.status in _REFUSALS
        if is_refused and not self._is_refused:
            log.warning(
                "refused_by_leader", answer=answer.shown(), see="brokerClientAuthenticationParameters, peerRoles"
            )
        self._is_refused = is_refused

    async def _pass_on_while_it_leads(self, request: web.Request, body: bytes, timeout_s: float) -> web.Response | str:
        """Forward as `_pass_on`, but stop waiting for a stopped leader once it has a successor."""
        url = self._leadership.leader_url
        if url is None or url == self._leadership.service_url:
            return ""
        passing = asyncio.ensure_future(self._pass_on(request, url, body, timeout_s))
        try:
            while not passing.done() and _asks(request):
                changed = self._leadership.leader_changed
                if self._leadership.leader_url != url:
                    return ""
                either: tuple[asyncio.Future[Any], ...] = (passing, changed)
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await passing
        finally:
            passing.cancel()

    async def _pass_on(self, request: web.Request, url: str, body: bytes, timeout_s: float) -> web.Response | str:
        """Return the leader's answer. Return the reason instead if the leader was not reached or no longer leads, so
        that nothing was done.
        """
        headers = {
            FORWARDED_HEADER: self._leadership.node_id,
            CLIENT_HEADER: request.remote or "",
            REQUEST_ID_HEADER: id_of(request),
        }
        headers |= {name: request.headers[name] for name in _HANDED_ON if name in request.headers}
        if PRINCIPAL in request and not request.headers.get("Authorization"):
            # A certificate cannot be forwarded, so this node acts as a proxy for the caller.
            headers = {ORIGINAL_PRINCIPAL_HEADER: request[PRINCIPAL], **headers, **self._leadership.caller.headers()}
        try:
            answer = await self._http.call(
                request.method,
                URL(f"{url}{request.path_qs}", encoded=True),
                timeout_s,
                connect_timeout_s=1.0,
                data=body,
                headers=headers,
            )
        except (PeerNotReachedError, ValueError) as error:  # not reachable, or its published URL is invalid
            return f"the leader at {url} cannot be reached ({error})"
        except (PeerUnavailableError, InvalidRecordError) as error:
            if _asks(request):
                return f"the leader at {url} did not answer as it should ({error})"
            raise NoLeaderError(f"the leader's answer was lost ({error}): ask what became of it") from None
        if answer.headers.get(NOT_LEADER_HEADER):
            return f"the node at {url} leads no more"
        if answer.status in _REDIRECTS:  # nodes never redirect
            return f"what answers at {url} is no load-manager node: {answer.shown()}"
        passed_on = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
        return web.Response(body=answer.body, status=answer.status, headers=passed_on)


class LeaderHandlers(Generic[_Process]):
    """Base of handlers that the leader executes."""

    def __init__(self, node: _Process, forwarder: Forwarder) -> None:
        self._node = node
        self._forwarder = forwarder


async def _answer_with(act: Callable[[], object]) -> web.Response:
    content = act()
    if isinstance(content, Awaitable):
        content = await content
    if isinstance(content, web.Response):
        return content
    return web.Response(status=HTTPStatus.NO_CONTENT) if content is None else json_response(content)


def _asks(request: web.Request) -> bool:
    return request.method == "GET" or IS_QUESTION in request
