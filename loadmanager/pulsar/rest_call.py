"""One call to Pulsar's REST API, with failover, redirects and the token; errors with address, answer and remedy.

| answer | action |
|---|---|
| no connection | ask the next configured address; after the last one raise `PulsarUnreachableError` |
| timeout | raise `PulsarUnreachableError`, as Pulsar may have executed it; the next call starts at another address |
| 401 | read the token file again; try a new token once, else refuse |
| 401 from a host that is not configured | refuse: the token goes to configured hosts only |
| 401 that names the role of the token | refuse: the role lacks rights |
| 307 to a configured address or a registered broker | repeat the request there; at most three hops |
| 307 to another address, or from https to http | refuse |
| another 3xx, 4xx, 5xx | raise `PulsarRefusedError` with a sentence |
| 2xx | return the answer |

The token has all rights on the Pulsar, and any host in its network may register as a broker. So it goes only to
configured hosts, and over https to hosts with a configured suffix. Source: brokers of Pulsar 4.0.1. There a follower
redirects an unload to the leader, and the leader to the owner.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson
from yarl import URL

from loadmanager.errors import ConfigurationError, InvalidRecordError, LoadManagerError
from loadmanager.net.auth.outgoing_token import TokenFile
from loadmanager.net.http_client import Caller, HttpAnswer, HttpClient, PeerNotReachedError, PeerUnavailableError
from loadmanager.net.tls_contexts import RenewedTls, TlsOptions

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


_MOST_HOPS = 3
_CONNECT_TIMEOUT_S = 5.0
_UNAUTHORIZED = 401
_TEMPORARY_REDIRECT = 307
_ROLE = re.compile(rb"clientAppId \[([^\]]+)\]")
"""Part of a 401 for a valid token whose role has no rights."""
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
"""Sent also without a body: Pulsar answers 415 to any other content type."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One request. `path` includes the query; both are percent-encoded."""

    method: str
    path: str
    body: bytes = b""


class PulsarCalls:
    """Sends requests to the brokers of one Pulsar. Create it in a running event loop, and close it.

    `is_encrypted` is True if the first address is https. Raises `ConfigurationError` for unusable addresses, token
    files or TLS keys.
    """

    def __init__(
        self, urls: Sequence[str], token: TokenFile | None, tls: TlsOptions, timeout_s: float, suffixes: Sequence[str]
    ) -> None:
        if not urls:
            raise ConfigurationError("no address of a Pulsar: expected the web service of at least one broker")
        self._admins = deque(web_service(url, "admin URL") for url in urls)
        self._configured = frozenset(map(_address, self._admins))
        self._with_token = frozenset(host for host, _ in self._configured)
        self._suffixes = tuple(each.lower() for each in suffixes)
        self.is_encrypted = self._admins[0].scheme == "https"
        self._first = self._admins[0]
        self._registered: dict[tuple[str, int], URL] = {}
        self._token = token
        self._timeout_s = timeout_s
        self._http = HttpClient(caller=Caller(tls=RenewedTls(tls)))

    async def close(self) -> None:
        await self._http.close()

    def address(self, host_and_port: str) -> str:
        """Return the address of a broker."""
        if not self.is_encrypted:
            return f"http://{host_and_port}"
        return f"https://{host_and_port.rpartition(':')[0]}:{self._first.port}"

    def trust(self, urls: Iterable[str]) -> None:
        """Use the registered brokers as further addresses, and follow redirects to them; ignore invalid URLs."""
        self._registered = {address: URL(url) for url in urls if (address := _find_address(url)) is not None}

    async def ask(self, request: RestRequest, timeout_s: float | None = None) -> HttpAnswer:
        """Return the answer of the first reachable address: configured addresses, then those of registered brokers.

        An unreachable configured address moves to the end of the configured ones.
        """
        others = [url for address, url in self._registered.items() if address not in self._configured]
        for admin in (*self._admins, *others):
            try:
                return await self.ask_at(admin, request, timeout_s)
            except PulsarUnreachableError as error:
                if admin in self._admins:
                    self._ask_last(admin)
                unreached = error
                if not error.was_not_heard:
                    break
        raise unreached

    async def ask_at(self, web: URL, request: RestRequest, timeout_s: float | None = None) -> HttpAnswer:
        """Return the 2xx answer of `web`; see the table of the module."""
        if self.is_encrypted and web.scheme == "http":
            raise PulsarRefusedError(f"{web}: is not asked, as adminUrls are https and this is not", 0)
        asked = web.join(URL(request.path, encoded=True))
        timeout_s = timeout_s or self._timeout_s
        token = None if self._token is None else self._token.read()
        answer = await self._follow(asked, request, token, timeout_s)
        if answer.status == _UNAUTHORIZED:
            answer = await self._follow(asked, request, self._another(token, answer), timeout_s)
            if answer.status == _UNAUTHORIZED:
                raise self._explain_unauthorized(answer)
        if answer.status >= 300:  # noqa: PLR2004
            raise refused(answer)
        return answer

    def _ask_last(self, admin: URL) -> None:
        self._admins.remove(admin)
        self._admins.append(admin)

    def _another(self, sent: str | None, answer: HttpAnswer) -> str:
        """Return the token in the file if it differs from the refused one."""
        try:
            token = None if self._token is None else self._token.read_again()
        except ConfigurationError as error:
            raise refused(answer, str(error)) from None
        if token is None or token == sent or not self._may_have_token(URL(answer.url)):
            raise self._explain_unauthorized(answer)
        return token

    def _may_have_token(self, asked: URL) -> bool:
        host = _address(asked)[0]
        return host in self._with_token or (asked.scheme == "https" and host.endswith(self._suffixes))

    def _explain_unauthorized(self, answer: HttpAnswer) -> PulsarRefusedError:
        if self._token is None:
            return refused(answer, "it wants to know who asks: give a token file")
        if not self._may_have_token(URL(answer.url)):
            return refused(
                answer, "the token goes to adminUrls and tokenHostSuffixes only: add this host, if it is yours"
            )
        role = _ROLE.search(answer.body)
        if role is not None:
            return refused(
                answer,
                f"role {role[1].decode(errors='replace')} lacks rights: add it to superUserRoles of the brokers",
            )
        return refused(
            answer,
            f"the token in {self._token.path} is none of this Pulsar's, or has ended: put a valid one into the file",
        )

    async def _follow(self, asked: URL, request: RestRequest, token: str | None, timeout_s: float) -> HttpAnswer:
        for _ in range(_MOST_HOPS + 1):
            answer = await self._once(asked, request, token, timeout_s)
            if answer.status != _TEMPORARY_REDIRECT:
                return answer
            asked = self._next(asked, answer)
        raise refused(answer, f"{_MOST_HOPS} brokers sent to the next: Pulsar does not know its leader now; try later")

    def _next(self, asked: URL, answer: HttpAnswer) -> URL:
        location = answer.headers.get("Location", "")[:2048]
        try:
            target = URL(location, encoded=True)
            is_known = _address(target) in self._configured | self._registered.keys()
        except (ValueError, TypeError):
            is_known = False
        if not is_known or target.raw_path != asked.raw_path or (asked.scheme, target.scheme) == ("https", "http"):
            raise refused(
                answer,
                f"it sends elsewhere, to {location[:200]!r}, and nobody follows: that is neither a configured address"
                " nor a registered broker's, or another path, or http after https",
            )
        return target

    async def _once(self, asked: URL, request: RestRequest, token: str | None, timeout_s: float) -> HttpAnswer:
        headers = {**_JSON, "Authorization": f"Bearer {token}"} if token and self._may_have_token(asked) else _JSON
        try:
            return await self._http.call(
                request.method,
                asked,
                timeout_s,
                connect_timeout_s=min(_CONNECT_TIMEOUT_S, timeout_s / 2),
                headers=headers,
                data=request.body,
            )
        except PeerUnavailableError as error:
            raise unreachable(error) from error
        except InvalidRecordError as error:
            raise PulsarRefusedError(f"{error}: no answer of a Pulsar", 0) from None


def web_service(url: str, given_as: str) -> URL:
    """Parse the address of a broker's web service. An invalid one raises `ConfigurationError`, which names
    `given_as`.
    """
    try:
        parsed = URL(url)
        usable = parsed.scheme in ("http", "https") and parsed.host and parsed == parsed.origin() / ""
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{given_as} {url!r}: expected the web service of a broker, such as http://broker:8080"
        )
    return parsed


def _find_address(url: str) -> tuple[str, int] | None:
    try:
        return _address(URL(url))
    except (ValueError, TypeError):
        return None


def _address(url: URL) -> tuple[str, int]:
    """Return host and port; raises `ValueError` unless the URL is http or https with both."""
    if url.scheme not in ("http", "https") or url.host is None or url.port is None:
        raise ValueError(f"{url}: no web service")
    return url.host.lower(), url.port
