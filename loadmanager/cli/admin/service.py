"""The running service, as commands ask it: what it refuses, and that nobody answers, end the process with the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NoReturn

from loadmanager.cli.admin.requests import AdminAnswer, AdminRequest, AnswerLostError, NoNodeReachableError, ask
from loadmanager.cli.exits import EXIT_FAILURE, fail

EXIT_UNREACHABLE = 3
URL_VARIABLE = "LOADMANAGER_ADMIN_URL"
_FIXES = {
    HTTPStatus.UNAUTHORIZED: "who asks has to say who it is: see `loadmanager token create --help`",
    HTTPStatus.FORBIDDEN: "ask as one who may: docs/admin-cli.md has what each command takes",
}


@dataclass(frozen=True, slots=True)
class Service:
    """Where nodes answer, how long they are waited for, and whether the answers are for programs."""

    urls: Sequence[str]
    timeout_s: float
    as_json: bool

    def ask(self, request: AdminRequest) -> AdminAnswer:
        """The answer, a refusal as well."""
        try:
            return ask(self.urls, request, self.timeout_s)
        except NoNodeReachableError as error:
            fail(f"{error}; --url or {URL_VARIABLE} says where nodes answer", EXIT_UNREACHABLE)
        except AnswerLostError as error:
            fail(str(error), EXIT_FAILURE)

    def get(self, request: AdminRequest) -> object:
        """What was answered; a refusal ends the process."""
        answer = self.ask(request)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            refuse(answer)
        return answer.content


def refuse(answer: AdminAnswer) -> NoReturn:
    """End the process with the node's reason, and what can be done about it."""
    fix = _FIXES.get(HTTPStatus(answer.status)) if answer.status in _FIXES else None
    fail(f"{answer.status} {answer.phrase}: {answer.reason}{f'; {fix}' if fix else ''}", EXIT_FAILURE)
