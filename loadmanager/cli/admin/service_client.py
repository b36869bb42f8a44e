"""Client of the running service for commands, and their exit when a node refuses or none answers."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn

from loadmanager.cli.admin.node_requests import (
    AdminAnswer,
    AdminRequest,
    AnswerLostError,
    NoNodeReachableError,
    Stream,
    ask,
    open_stream,
)
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.output import find_program
from loadmanager.net.auth.outgoing_token import Token

if TYPE_CHECKING:  # takes its time to load
    from loadmanager.net.tls_contexts import RenewedTls

EXIT_UNREACHABLE = 3
URL_VARIABLE = "LOADMANAGER_ADMIN_URL"
DEFAULT_URL = "http://127.0.0.1:8080"
_FIXES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "--token-file or LOADMANAGER_TOKEN_FILE names the file with yours",
    HTTPStatus.FORBIDDEN: "docs/security.md says who may do what",
}


class NodeRefusedError(Exception):
    """A node has answered, and not as was wished."""

    def __init__(self, answer: AdminAnswer) -> None:
        fix = _FIXES.get(answer.status)
        super().__init__(f"{answer.status} {answer.phrase}: {answer.reason}{f'; {fix}' if fix else ''}")
        self.passes_by = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self.status = answer.status


ASKING_ERRORS = (NoNodeReachableError, AnswerLostError, NodeRefusedError)
"""Errors of a request."""


@dataclass(frozen=True, slots=True)
class Service:
    """Connection settings of a command: node URLs, timeout, output format, token and TLS."""

    urls: Sequence[str]
    timeout_s: float
    as_json: bool = False
    token: Token | None = None
    tls: RenewedTls | None = None

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
        """Return an admin command as it runs in this shell: with `--url` unless the environment says the same."""
        url = ",".join(self.urls)
        options = [] if url == os.environ.get(URL_VARIABLE, DEFAULT_URL) else ["--url", shlex.quote(url)]
        return " ".join([find_program(), "admin", words, *options])

    def complete(self, text: str) -> str:
        """Return a text in which the admin command at its end runs in this shell."""
        before, found, words = text.rpartition("loadmanager admin ")
        return f"{before}{self.command(words)}" if found else text

    def _with_token(self, request: AdminRequest) -> AdminRequest:
        if self.token is None:
            return request
        return replace(request, headers={**request.headers, "Authorization": f"Bearer {self.token.read()}"})


def end(error: Exception) -> NoReturn:
    """End the process with what went wrong when a node was asked."""
    if isinstance(error, NoNodeReachableError):
        fail(f"{error}; --url or {URL_VARIABLE} says where nodes answer", EXIT_UNREACHABLE)
    fail(str(error), EXIT_FAILURE)
