"""Errors for Pulsar's refusals: the address, the answer, and the remedy, in one sentence."""

from __future__ import annotations

import orjson

from loadmanager.errors import LoadManagerError
from loadmanager.net.http_client import HttpAnswer, PeerNotReachedError, PeerUnavailableError

_SHOWN_CHARACTERS = 200
FAULTS_OF_ITS_OWN = 500
"""Lowest status that means a failure of Pulsar, which may be temporary, instead of a refusal."""

_REMEDIES = {
    400: "Pulsar rejects the request: is this a Pulsar of a tried version?",
    403: "the role of the token has no right to do this: use a role of the brokers' superUserRoles; without a token,"
    " brokers with authorization need a token file",
    404: "not found: the namespace was deleted, Pulsar's leader is not registered under /loadbalance/brokers, or this"
    " is no Pulsar",
    405: "this is no web service of a broker: give its address, such as http://broker:8080",
    409: "conflict with another change, or the destination is not registered: check the state, then retry",
    412: "precondition failed: the bundle was split or merged, Pulsar has no leader, or the key is not dynamic: check"
    " the state, then retry",
    415: "a proxy changed the Content-Type: give the address of the broker itself",
    429: "the broker is overloaded: try again later",
}
_OF_ANY_FAULT = (
    "Pulsar failed (a bundle that is being unloaded, a broker that starts or stops): try again later; see the log of"
    " that broker"
)
_NOT_A_PULSAR = "not an answer of a Pulsar: give the web service of a broker, such as http://broker:8080"


class PulsarRefusedError(LoadManagerError):
    """Pulsar refused a request, or its answer is unusable.

    `status` is the HTTP status: 200 for an unusable body, 0 for an unusable broker address. `reason` is Pulsar's own
    text, maybe empty.
    """

    def __init__(self, message: str, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class PulsarUnreachableError(LoadManagerError):
    """No answer. Pulsar may have executed the request, unless `was_not_heard`."""

    def __init__(self, message: str, *, was_not_heard: bool) -> None:
        super().__init__(message)
        self.was_not_heard = was_not_heard


def refused(answer: HttpAnswer, remedy: str | None = None) -> PulsarRefusedError:
    """Return the error for a refusal; `remedy` replaces the default of the status."""
    reason = _find_reason(answer)
    quoted = f" {reason!r}" if reason else ""
    return PulsarRefusedError(
        f"{answer.url} answered {answer.status}{quoted}: {remedy or _find_remedy(answer.status)}", answer.status, reason
    )


def not_a_pulsar(answer: HttpAnswer) -> PulsarRefusedError:
    """Return the error for an answer that is not from a Pulsar."""
    return refused(answer, _NOT_A_PULSAR)


def unreachable(error: PeerUnavailableError) -> PulsarUnreachableError:
    return PulsarUnreachableError(
        f"{error}: no answer from a broker: is it running, and is this the address of its web service, such as"
        " http://broker:8080? For https, tlsTrustCertsFilePath names the CA of its certificate",
        was_not_heard=isinstance(error, PeerNotReachedError),
    )


def _find_remedy(status: int) -> str:
    return _REMEDIES.get(status) or (_OF_ANY_FAULT if status >= FAULTS_OF_ITS_OWN else _NOT_A_PULSAR)


def _find_reason(answer: HttpAnswer) -> str:
    """Return the first line of the reason, without a stack trace."""
    try:
        content = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        content = answer.body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace")
    if isinstance(content, dict):
        content = content.get("reason") or content.get("message") or ""
    lines = content.strip().splitlines() if isinstance(content, str) else []
    return lines[0][:_SHOWN_CHARACTERS] if lines else ""
