"""Protection against cross-site requests: a foreign page in a browser cannot change anything here.

Whoever opens that page may be let in by where they are, while nobody is asked for a token, or by a certificate that
their browser shows for them. Browsers say of whose page a request is, and pages cannot keep them from it; who is no
browser says nothing. No browser sends a bearer token by itself, nor for a page that we have not allowed it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web
from multidict import istr

from loadmanager.errors import ForbiddenError
from loadmanager.net.auth.token_verifier import bearer_token

_AUTHORIZATION = istr("Authorization")
_FETCH_SITE = istr("Sec-Fetch-Site")
_ORIGIN = istr("Origin")
_OURS = ("same-origin", "none")
_SHOWN_CHARACTERS = 80


def refuse_foreign_page(request: web.Request) -> None:
    """Raise `ForbiddenError` for a request from a page of another origin, unless it carries a token."""
    if bearer_token(request.headers.get(_AUTHORIZATION, "")) is not None:
        return
    site, origin = request.headers.get(_FETCH_SITE), request.headers.get(_ORIGIN)
    is_ours = site in _OURS if site is not None else origin is None or _host_in(origin) == request.host.lower()
    if not is_ours:
        whose = repr(origin[:_SHOWN_CHARACTERS]) if origin else "another"
        raise ForbiddenError(
            f"Origin: a page of {whose} may change nothing here; a proxy before {request.host[:_SHOWN_CHARACTERS]!r}"
            " has to pass Host on as it came"
        )


def _host_in(origin: str) -> str:
    """Return the host and port of an origin; empty where there is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
