"""HTTP requests of commands to nodes, with fail-over to the next node, and the exit after a failed request."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import orjson

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.text_tables import find_program
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.net.auth.outgoing_token import Token
from loadmanager.wire.body_sizes import LARGEST_ANSWER_BYTES

if TYPE_CHECKING:
    from loadmanager.net.tls_contexts import RenewedTls

_CONNECT_TIMEOUT_S = 3.0
_JSON = "application/json"
_LONGEST_LINE_BYTES = 16 * 1024 * 1024
T = TypeVar("T")


class NoNodeReachableError(Exception):
    """No node could be reached; nothing was changed."""


class AnswerLostError(Exception):
    """No answer to a change; the node may or may not have executed it."""


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One HTTP request. `body` is JSON unless it is bytes; query parameters that are None or false are left out.

    With `--json`, `for_programs` is sent instead, if this request returns text. `then` makes the next request from the
    answer. `follow_up` is the command to suggest afterwards.
    """

    method: str
    path: str
    query: dict[str, object] = field(default_factory=dict)
    body: object = None
    for_programs: AdminRequest | None = None
    headers: dict[str, str] = field(default_factory=dict)
    then: Callable[[object], AdminRequest] | None = None
    follow_up: Callable[[object], str | None] | None = None

    @property
    def target(self) -> str:
        given = [
            (key, value if isinstance(value, list) else _format_value(value))
            for key, value in self.query.items()
            if value is not None and value is not False
        ]
        return f"{self.path}?{urlencode(given, doseq=True)}" if given else self.path

    @property
    def content(self) -> bytes | None:
        return self.body if isinstance(self.body, bytes | None) else orjson.dumps(self.body)


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """Answer of a node."""

    status: int
    phrase: str
    content_type: str
    body: bytes

    @property
    def content(self) -> object:
        """Body as JSON, else as text; None without a body."""
        if not self.body:
            return None
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return self.body.decode(errors="replace")

    @property
    def reason(self) -> str:
        content = self.content
        return str(content["reason"]) if isinstance(content, dict) and "reason" in content else str(content or "")


@dataclass(frozen=True, slots=True)
class Stream:
    """An endless answer, which either side may close."""

    connection: HTTPConnection
    response: HTTPResponse

    def lines(self) -> Iterator[bytes]:
        """Yield the lines until the stream ends, breaks, or times out."""
        with suppress(OSError, HTTPException):
            while line := self.response.readline(_LONGEST_LINE_BYTES):
                yield line

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def get(*path: object, **query: object) -> AdminRequest:
    return AdminRequest("GET", path_of(*path), query)


def put(*path: object, body: object = None, **query: object) -> AdminRequest:
    return AdminRequest("PUT", path_of(*path), query, body)


def post(*path: object, body: object = None, **query: object) -> AdminRequest:
    return AdminRequest("POST", path_of(*path), query, body)


def delete(*path: object, **query: object) -> AdminRequest:
    return AdminRequest("DELETE", path_of(*path), query)


def path_of(base: object, *parts: object) -> str:
    """Join a base, taken as it is, and names, which are percent-encoded."""
    return "/".join([str(base), *map(_segment, parts)])


def _segment(part: object) -> str:
    match part:
        case TopicName():
            return f"{part.domain}/{part.namespace}/{quote(part.local_name, safe='')}"
        case NamespaceName() | BundleName():
            return str(part)
        case _:
            return quote(str(part), safe=":")


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def ask(urls: Sequence[str], request: AdminRequest, timeout_s: float, tls: RenewedTls | None = None) -> AdminAnswer:
    """Return the answer of the first reachable node.

    If the connection breaks, a GET is retried at the next node. A change is not, because it may have been executed.
    Raises `NoNodeReachableError`, `AnswerLostError`.
    """

    def exchange(connection: HTTPConnection, base: str) -> AdminAnswer:
        try:
            return _read(_send(connection, base, request, timeout_s))
        finally:
            connection.close()

    return _first(urls, request, timeout_s, tls, exchange)


def open_stream(
    urls: Sequence[str], request: AdminRequest, silence_s: float, tls: RenewedTls | None = None
) -> Stream | AdminAnswer:
    """Return the stream of the first reachable node, or its refusal. The stream fails after `silence_s` without data.
    Raises `NoNodeReachableError`.
    """

    def begin(connection: HTTPConnection, base: str) -> Stream | AdminAnswer:
        try:
            response = _send(connection, base, request, silence_s)
            if response.status == HTTPStatus.OK:
                return Stream(connection, response)
            answer = _read(response)
        except (OSError, HTTPException):
            connection.close()
            raise
        connection.close()
        return answer

    return _first(urls, request, silence_s, tls, begin)


def _first(
    urls: Sequence[str],
    request: AdminRequest,
    timeout_s: float,
    tls: RenewedTls | None,
    talk: Callable[[HTTPConnection, str], T],
) -> T:
    """Call `talk` for the first reachable node, with its connection and the base path of its URL."""
    faults = []
    for url in urls:
        connection = _connection(url, tls)
        try:
            connection.connect()
        except OSError as error:
            faults.append(f"{url}: {_why_not_reached(error)}")
            continue
        try:
            return talk(connection, urlsplit(url).path)
        except (OSError, HTTPException) as error:
            fault = f"{url}: {_describe_failure(error, timeout_s)}"
            if request.method != "GET":
                raise AnswerLostError(f"{fault}; it may have been done or not") from None
            faults.append(fault)
    raise NoNodeReachableError("no node can be reached: " + "; ".join(faults))


def _why_not_reached(error: OSError) -> str:
    if isinstance(error, SSLCertVerificationError):
        return f"{error.verify_message} (--tls-trust-cert-path names who signs the nodes' certificates)"
    return error.strerror or str(error)


def _describe_failure(error: OSError | HTTPException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s (--timeout waits longer)"
    return f"no answer ({type(error).__name__}: {error})"


def _connection(url: str, tls: RenewedTls | None) -> HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme != "https":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S)
    context = None if tls is None else tls.context()
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S, context=context)


def _send(connection: HTTPConnection, base: str, request: AdminRequest, timeout_s: float) -> HTTPResponse:
    assert isinstance(connection.sock, socket.socket), "the caller has connected"
    connection.sock.settimeout(timeout_s)
    headers = {"Accept": _JSON} | ({"Content-Type": _JSON} if request.body is not None else {}) | request.headers
    connection.request(request.method, base + request.target, body=request.content, headers=headers)
    return connection.getresponse()


def _read(response: HTTPResponse) -> AdminAnswer:
    content_type = response.headers.get_content_type()
    body = response.read(LARGEST_ANSWER_BYTES + 1)
    if len(body) > LARGEST_ANSWER_BYTES:
        raise HTTPException(f"an answer of more than {LARGEST_ANSWER_BYTES} bytes")
    return AdminAnswer(response.status, response.reason, content_type, body)


EXIT_UNREACHABLE = 3
URL_VARIABLE = "LOADMANAGER_ADMIN_URL"
DEFAULT_URL = "http://127.0.0.1:8080"
_ADMIN_COMMAND = re.compile("loadmanager admin ([^`]+)")
_FIXES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "--token-file or LOADMANAGER_TOKEN_FILE names the file with yours",
    HTTPStatus.FORBIDDEN: "docs/security.md says who may do what",
}


class NodeRefusedError(Exception):
    """A node refused the request."""

    def __init__(self, answer: AdminAnswer) -> None:
        fix = _FIXES.get(answer.status)
        super().__init__(f"{answer.status} {answer.phrase}: {answer.reason}{f'; {fix}' if fix else ''}")
        self.passes_by = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self.status = answer.status


ASKING_ERRORS = (NoNodeReachableError, AnswerLostError, NodeRefusedError)
"""Errors of a request."""


@dataclass(frozen=True, slots=True)
class Service:
    """Connection settings of a command: node URLs, timeout, output format, token and TLS.

    `options` are those of its words that another command in the same shell has to repeat.
    """

    urls: Sequence[str]
    timeout_s: float
    as_json: bool = False
    token: Token | None = None
    tls: RenewedTls | None = None
    options: Sequence[str] = ()

    def ask(self, request: AdminRequest) -> AdminAnswer:
        answer = ask(self.urls, self._with_token(request), self.timeout_s, self.tls)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise NodeRefusedError(answer)
        return answer

    def get(self, request: AdminRequest) -> object:
        """Return the answer as JSON or text."""
        return self.ask(request).content

    def stream(self, request: AdminRequest, silence_s: float) -> Stream:
        """Open a stream; it fails after `silence_s` without data."""
        answer = open_stream(self.urls, self._with_token(request), silence_s, self.tls)
        if isinstance(answer, AdminAnswer):
            raise NodeRefusedError(answer)
        return answer

    def command(self, words: str) -> str:
        """Return an admin command as it runs in this shell: with the options that the environment does not set."""
        url = ",".join(self.urls)
        options = [] if url == os.environ.get(URL_VARIABLE, DEFAULT_URL) else ["--url", shlex.quote(url)]
        return " ".join([find_program(), "admin", words, *options, *map(shlex.quote, self.options)])

    def complete(self, content: T) -> T:
        """Complete the admin commands in an answer, at the end of texts or in backticks, so that they run here.

        JSON for programs stays as the node sent it.
        """
        if self.as_json:
            return content
        completed: object = content
        if isinstance(content, str):
            completed = _ADMIN_COMMAND.sub(lambda found: self.command(found[1]), content)
        elif isinstance(content, list):
            completed = [self.complete(each) for each in content]
        elif isinstance(content, dict):
            completed = {key: self.complete(value) for key, value in content.items()}
        return cast("T", completed)

    def _with_token(self, request: AdminRequest) -> AdminRequest:
        if self.token is None:
            return request
        return replace(request, headers={**request.headers, "Authorization": f"Bearer {self.token.read()}"})


def end(error: Exception) -> NoReturn:
    """End the process with the error of a request."""
    if isinstance(error, NoNodeReachableError):
        fail(f"{error}; --url or {URL_VARIABLE} says where nodes answer", EXIT_UNREACHABLE)
    fail(str(error), EXIT_FAILURE)
