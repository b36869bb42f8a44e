"""Checks of requests: origin, bodies and queries. Unusable input is `BadRequestError` (400)."""

from __future__ import annotations

import re
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web
from multidict import istr
from pydantic import BaseModel, TypeAdapter, ValidationError

from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.errors import BadRequestError, ForbiddenError
from loadmanager.net.auth.token_verifier import bearer_token
from loadmanager.util import clock
from loadmanager.wire.validation import describe

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TIME = re.compile(r"[0-9]{1,15}")
_SHOWN_CHARACTERS = 40
_TRUTHS = {"": False, "false": False, "true": True}


async def parse_body(request: web.Request, model: type[M]) -> M:
    """Parse the body as a `model`; an empty body is an empty object."""
    content = await request.read()
    try:
        return model.model_validate_json(content if content.strip() else b"{}")
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None


async def parse_value(request: web.Request, adapter: TypeAdapter[V]) -> V:
    """Parse the body as a value of the adapter's type."""
    try:
        return adapter.validate_json(await request.read())
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None


def parse_namespace(request: web.Request) -> NamespaceName:
    """Return the namespace in a path; raises `InvalidNameError`."""
    return NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])


def parse_bundle(request: web.Request) -> BundleName:
    """Return the bundle in a path; raises `InvalidNameError`."""
    return BundleName(parse_namespace(request), BundleRange.parse(request.match_info["range"].lower()))


def parse_number(request: web.Request, name: str, default: int, lowest: int, highest: int) -> int:
    """Parse a whole number from the query."""
    text = request.query.get(name, str(default))
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
        raise BadRequestError(f"{name} {text[:_SHOWN_CHARACTERS]!r}: expected a number from {lowest} to {highest}")
    return int(text)


def parse_time(request: web.Request, name: str) -> int | None:
    """Parse milliseconds since 1970 from the query; None when absent."""
    text = request.query.get(name)
    if text is None:
        return None
    if not _TIME.fullmatch(text):
        raise BadRequestError(f"{name} {text[:_SHOWN_CHARACTERS]!r}: expected milliseconds since 1970")
    return int(text)


def parse_range(request: web.Request, span_ms: int) -> tuple[int, int]:
    """Parse `since` and `until` from the query, in ms since 1970; by default the last `span_ms` up to now."""
    now_ms = clock.now_ms()
    since_ms, until_ms = parse_time(request, "since"), parse_time(request, "until")
    until_ms = now_ms + 1 if until_ms is None else until_ms
    return max(0, min(until_ms, now_ms) - span_ms) if since_ms is None else since_ms, until_ms


def parse_flag(request: web.Request, name: str) -> bool:
    """Parse `true` or `false` from the query; false when absent."""
    text = request.query.get(name, "")
    truth = _TRUTHS.get(text.lower())
    if truth is None:
        raise BadRequestError(f"{name} {text[:_SHOWN_CHARACTERS]!r}: expected true or false")
    return truth


_AUTHORIZATION = istr("Authorization")
_FETCH_SITE = istr("Sec-Fetch-Site")
_ORIGIN = istr("Origin")
_OURS = ("same-origin", "none")
_SHOWN_ORIGIN = 80


def refuse_foreign_page(request: web.Request) -> None:
    """Raise `ForbiddenError` for a request from a page of another origin, unless it carries a token (CSRF protection).

    The victim's browser may have access by its network address, while no token is required, or by a client certificate.
    Browsers name the origin of a request and pages cannot change that; other clients name none. Browsers never add a
    bearer token by themselves.
    """
    if bearer_token(request.headers.get(_AUTHORIZATION, "")) is not None:
        return
    site, origin = request.headers.get(_FETCH_SITE), request.headers.get(_ORIGIN)
    is_ours = site in _OURS if site is not None else origin is None or _host_in(origin) == request.host.lower()
    if not is_ours:
        whose = repr(origin[:_SHOWN_ORIGIN]) if origin else "another"
        raise ForbiddenError(
            f"Origin: a page of {whose} may change nothing here; a proxy before {request.host[:_SHOWN_ORIGIN]!r}"
            " must not change the Host header"
        )


def _host_in(origin: str) -> str:
    """Return the host and port of an origin; empty without one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
