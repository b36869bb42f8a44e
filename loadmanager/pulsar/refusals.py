"""Errors for Pulsar's refusals, as a sentence: the address, the answer, and the remedy."""

from __future__ import annotations

import orjson

from loadmanager.errors import LoadManagerError
from loadmanager.net.http_client import HttpAnswer, PeerNotReachedError, PeerUnavailableError

_SHOWN_CHARACTERS = 200
FAULTS_OF_ITS_OWN = 500
"""Lowest status that means a failure of Pulsar, which may pass, instead of a refusal."""

_REMEDIES = {
    400: "it does not take the request as it is: is it a Pulsar, and of a version that was tried?",
    403: "the role of the token may not do this: it takes one of the superUserRoles of the brokers; without a token,"
    " brokers with authorization take a token file",
    404: "what the address names is not there: a namespace that was deleted, a leader of Pulsar's that is not"
    " registered under /loadbalance/brokers, or no Pulsar",
    405: "a Pulsar knows this call: give the web service of a broker, such as http://broker:8080",
    409: "others changed the same at that time, or the destination is not registered (any more): look again",
    412: "it is not (any more) as it was taken to be: the bundle was split or merged, Pulsar has no leader, or the key"
    " is none that can be changed: look again",
    415: "what lies between here and the broker changed the Content-Type: give the address of the broker itself",
    429: "it has too much to do: try again later",
}
_OF_ANY_FAULT = (
    "Pulsar cannot do it now (a bundle that is being unloaded, a broker that starts or stops): try again later; the"
    " log of that broker says more"
)
_NO_PULSAR = "no answer of a Pulsar: give the web service of a broker, such as http://broker:8080"


class PulsarRefusedError(LoadManagerError):
    """Pulsar answered, and not with what was asked for.

    `status` is the answer's, 200 too if what came with it is of no use; 0 without an answer of its own: a broker that
    cannot be asked where it says that it is. `reason` is Pulsar's own word, maybe empty.
    """

    def __init__(self, message: str, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class PulsarUnreachableError(LoadManagerError):
    """No answer came. Unless `was_not_heard`, what was asked for may be done all the same."""

    def __init__(self, message: str, *, was_not_heard: bool) -> None:
        super().__init__(message)
        self.was_not_heard = was_not_heard


def refused(answer: HttpAnswer, remedy: str | None = None) -> PulsarRefusedError:
    """The error for an answer that is none; `remedy` where more is known than the status says."""
    reason = _find_reason(answer)
    said = f" {reason!r}" if reason else ""
    return PulsarRefusedError(
        f"{answer.url} answered {answer.status}{said}: {remedy or _find_remedy(answer.status)}", answer.status, reason
    )


def no_pulsar(answer: HttpAnswer) -> PulsarRefusedError:
    """The error for an answer in which there is nothing that Pulsar would have answered."""
    return refused(answer, _NO_PULSAR)


def unreachable(error: PeerUnavailableError) -> PulsarUnreachableError:
    return PulsarUnreachableError(
        f"{error}: no answer from a broker of Pulsar's: is it running, and is this the address of its web service, such"
        " as http://broker:8080? For https, tlsTrustCertsFilePath names who signed its certificate",
        was_not_heard=isinstance(error, PeerNotReachedError),
    )


def _find_remedy(status: int) -> str:
    return _REMEDIES.get(status) or (_OF_ANY_FAULT if status >= FAULTS_OF_ITS_OWN else _NO_PULSAR)


def _find_reason(answer: HttpAnswer) -> str:
    """The first line of it: with an exception that was not expected comes its stack trace."""
    try:
        content = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        content = answer.body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace")
    if isinstance(content, dict):
        content = content.get("reason") or content.get("message") or ""
    lines = content.strip().splitlines() if isinstance(content, str) else []
    return lines[0][:_SHOWN_CHARACTERS] if lines else ""
