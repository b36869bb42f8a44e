"""Authentication gate: checks every operation with a role other than ANYONE, on nodes, agents and beside a Pulsar.

A token is verified once; after that it costs one dictionary lookup. The cache is emptied when the key changes, and
entries end with their tokens. Only valid tokens are cached, so callers without one cannot fill it. A caller without a
token is identified by its client certificate, if `tlsTrustCertsFilePath` names the trusted certificates.

`AccessRole` has the roles of operations; docs/security.md has the table of those of a principal.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import istr
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loadmanager.config.auth_settings import EVERYBODY, AuthSettings
from loadmanager.config.shared_settings import TlsSettings
from loadmanager.errors import ForbiddenError, UnauthenticatedError
from loadmanager.net.auth.token_keys import KeySource
from loadmanager.net.auth.token_verifier import (
    Claimed,
    TokenError,
    TokenFault,
    bearer_token,
    check_token,
)
from loadmanager.net.tls_contexts import principal_of
from loadmanager.util.process_metrics import counter, gauge
from loadmanager.wire.http_bodies import ORIGINAL_PRINCIPAL_HEADER

log = structlog.get_logger(__name__)

PRINCIPAL = web.RequestKey("principal", str)
"""Principals of a request, set once known, even if the request is refused."""

_AUTHORIZATION = istr("Authorization")
_ORIGINAL = istr(ORIGINAL_PRINCIPAL_HEADER)
_LOOK_AGAIN_S = 1.0
"""Minimum interval between checks of the key file, which requests trigger."""

_MOST_KNOWN = 10_000
_LONGEST_KEPT = 4_096
"""Maximum length of a cached token; longer ones are verified each time."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """An authenticated caller: principal, roles, expiry of the token (seconds since the epoch), and whether it is a
    proxy for others.
    """

    principal: str
    roles: frozenset[AccessRole]
    expires_s: float
    is_proxy: bool


def is_open_to_anyone(settings: AuthSettings, address: str) -> bool:
    """Return True if callers from other hosts can reach the address and need no token."""
    return not settings.authentication_enabled and not _is_loopback(address)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class AuthGate:
    """Gate with these settings, of a server that listens on `address`. `clock` is in seconds since the epoch.

    `is_open` is True without `authenticationEnabled`. Raises `ConfigurationError` for an unusable key.
    """

    def __init__(self, settings: AuthSettings, clock: Callable[[], float] = time.time, *, address: str = "") -> None:
        self.is_open = not settings.authentication_enabled
        self.is_open_to_anyone = is_open_to_anyone(settings, address)
        self.failures = dict.fromkeys(TokenFault, 0)
        self._settings = settings
        self._clock = clock
        self._known: dict[str, Visitor] = {}
        self._look_again_s = 0.0
        self._key = None if self.is_open or _goes_by_certificates_alone(settings) else KeySource(settings)

    @property
    def key_fault(self) -> str:
        """Fault of the key file, while the last good key stays in use; empty if there is none."""
        return self._key.fault if self._key is not None else ""

    def permitting(self, role: AccessRole, handler: Handler) -> Handler:
        """Wrap a handler; raises `UnauthenticatedError` or `ForbiddenError` for callers without the role."""
        if self.is_open or role is AccessRole.ANYONE:
            return handler

        async def pass_or_refuse(request: web.Request) -> web.StreamResponse:
            self.check(request, role)
            return await handler(request)

        return pass_or_refuse

    def check(self, request: web.Request, role: AccessRole) -> None:
        """Authorize a request, on the hot path of lookups. Raises `UnauthenticatedError`, `ForbiddenError`."""
        now_s = self._clock()
        if now_s >= self._look_again_s:
            self._look_at_key(now_s)
        header = request.headers.get(_AUTHORIZATION, "")
        visitor = self._known.get(header)
        if visitor is None or now_s >= visitor.expires_s:
            visitor = self._authenticate(request, header)
        request[PRINCIPAL] = visitor.principal  # also set for callers that are refused below
        if role not in visitor.roles:
            raise self._forbidden(visitor.principal, role)
        if visitor.is_proxy or _ORIGINAL in request.headers:
            request[PRINCIPAL] = self._original(request, visitor, role)

    def knows(self, header: str, role: AccessRole) -> bool:
        """Return True if the cache shows that `check` would accept this Authorization header. False means unknown, as
        for proxies.
        """
        now_s = self._clock()
        if now_s >= self._look_again_s:
            self._look_at_key(now_s)
        visitor = self._known.get(header)
        return visitor is not None and now_s < visitor.expires_s and role in visitor.roles and not visitor.is_proxy

    def still_permits(self, request: web.Request, role: AccessRole) -> bool:
        """Return True if a caller may keep its stream: its token may have expired, or the key may have changed."""
        if self.is_open:
            return True
        try:
            self.check(request, role)
        except (UnauthenticatedError, ForbiddenError):
            return False
        return True

    def show_in(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        """Register the gate's counters with these labels."""
        registry.register(_GateMetrics(self, labels))

    def _look_at_key(self, now_s: float) -> None:
        self._look_again_s = now_s + _LOOK_AGAIN_S
        if self._key is not None and self._key.look_again():
            self._known.clear()

    def _authenticate(self, request: web.Request, header: str) -> Visitor:
        """Authenticate by the token, or by the client certificate of a caller without one."""
        named = principal_of(request) if not header else None
        if named is not None:
            return self._visitor(Claimed(named, math.inf))
        self._known.pop(header, None)
        try:
            visitor = self._visitor(self._read_claims(header))
        except TokenError as error:
            self.failures[error.fault] += 1
            raise UnauthenticatedError(str(error)) from None
        if len(header) <= _LONGEST_KEPT:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[header] = visitor
        return visitor

    def _read_claims(self, header: str) -> Claimed:
        if self._key is None:
            raise TokenError(
                TokenFault.MISSING, "no certificate, and tokens are not taken: tokenSecretKey or tokenPublicKey"
            )
        if not header:
            raise TokenError(TokenFault.MISSING, "no token: send it as Authorization: Bearer ...")
        token = bearer_token(header)
        if token is None:
            raise TokenError(TokenFault.INVALID, "Authorization: expected Bearer and a token")
        return check_token(token, self._key.current, self._settings)

    def _visitor(self, claimed: Claimed) -> Visitor:
        principal = claimed.principal
        is_proxy = principal in self._settings.proxy_roles
        return Visitor(principal, self._find_roles(principal), claimed.expires_s, is_proxy)

    def _find_roles(self, principal: str) -> frozenset[AccessRole]:
        settings = self._settings
        if not settings.authorization_enabled or principal in settings.super_user_roles:
            return ALL
        given = {AccessRole.ANYONE}
        for name, roles in _GIVES.items():
            if not {principal, EVERYBODY}.isdisjoint(getattr(settings, name)):
                given |= roles
        return frozenset(given)

    def _original(self, request: web.Request, visitor: Visitor, role: AccessRole) -> str:
        """Return the original principal, as in Pulsar: a proxy must name one that has the role; others must not."""
        original = request.headers.get(_ORIGINAL, "").strip()
        if not visitor.is_proxy:
            if original in ("", visitor.principal):
                return visitor.principal
            raise self._not_for_others(f"{ORIGINAL_PRINCIPAL_HEADER}: {visitor.principal!r} is not in proxyRoles")
        if not original or not original.isprintable():
            raise self._not_for_others(f"{ORIGINAL_PRINCIPAL_HEADER}: no name: {visitor.principal!r} is in proxyRoles")
        if original in self._settings.proxy_roles:
            raise self._not_for_others(f"{ORIGINAL_PRINCIPAL_HEADER}: {original!r} is a proxy itself")
        if role not in self._find_roles(original):
            raise self._forbidden(original, role)
        return f"{original} by {visitor.principal}"

    def _not_for_others(self, reason: str) -> UnauthenticatedError:
        self.failures[TokenFault.PRINCIPAL] += 1
        return UnauthenticatedError(reason)

    def _forbidden(self, principal: str, role: AccessRole) -> ForbiddenError:
        """Count a refusal, and return it with the settings whose lists grant the role, the narrowest first."""
        self.failures[TokenFault.FORBIDDEN] += 1
        names = sorted((name for name, roles in _LISTS.items() if role in roles), key=lambda name: len(_LISTS[name]))
        lists = ", ".join(map(self._settings.key, names))
        return ForbiddenError(
            f"{principal!r} may not do this: it takes {role.upper()}, which these lists give: {lists}"
        )


def _goes_by_certificates_alone(settings: AuthSettings) -> bool:
    has_key = settings.token_secret_key.get_secret_value() or settings.token_public_key
    return not has_key and isinstance(settings, TlsSettings) and settings.tls_trust_certs_file_path is not None


@dataclass(frozen=True, eq=False)
class _GateMetrics(Collector):
    gate: AuthGate
    labels: Mapping[str, str]

    def collect(self) -> Iterable[Metric]:
        gate, names, values = self.gate, list(self.labels), list(self.labels.values())
        text = "1 while callers from other hosts need no token (authenticationEnabled, bindAddress)."
        yield gauge("loadmanager_open_to_anyone", text, names, [(values, float(gate.is_open_to_anyone))])
        text = "1 while the last good key stands in for one that cannot be used."
        yield gauge("loadmanager_token_key_fault", text, names, [(values, float(bool(gate.key_fault)))])
        failures = [([*values, reason.value], count) for reason, count in gate.failures.items()]
        text = "Requests that were refused, by reason."
        yield counter("loadmanager_authentication_failures", text, [*names, "reason"], failures)


class AccessRole(StrEnum):
    """An access role. No role contains another."""

    ANYONE = "anyone"
    """Everybody, without a token: probes, and the files of the page."""

    READ = "read"
    """Read-only operations: decisions, explanations, metrics, operator config."""

    LOOKUP = "lookup"
    """Lookups by clients and brokers, which may assign an owner."""

    OPERATE = "operate"
    """Operations that move bundles or stop moves: unload, split, drain, pin, freeze, plans."""

    ADMIN = "admin"
    """Operations that change namespaces, policies, failure domains or dynamic settings."""

    PEER = "peer"
    """Calls between processes of this service, mostly of a leader to an agent."""


ALL = frozenset(AccessRole)

_GIVES = {
    "operate_roles": frozenset({AccessRole.OPERATE, AccessRole.READ, AccessRole.LOOKUP}),
    "peer_roles": frozenset({AccessRole.PEER, AccessRole.READ, AccessRole.LOOKUP}),
    "read_roles": frozenset({AccessRole.READ}),
    "lookup_roles": frozenset({AccessRole.LOOKUP}),
}
_LISTS = {"super_user_roles": ALL, **_GIVES}
