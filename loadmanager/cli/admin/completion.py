"""Shell completion of brokers, namespaces and bundles, by asking a node. No answer means no completion."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import redirect_stderr
from itertools import pairwise

import typer

from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.admin.service_client import ASKING_ERRORS, Service
from loadmanager.cli.connection_options import given_tls, given_token

_PATIENCE_S = 0.5
_PARTS = 2
"""A tenant and a namespace stand before a bundle's range."""


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The registered brokers."""
    return _beginning(incomplete, _strings(_ask(ctx, get("/admin/v2/brokers"))))


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tenants, then the namespaces of the one that is typed."""
    tenant, separator, _ = incomplete.partition("/")
    if separator:
        return _beginning(incomplete, _strings(_ask(ctx, get("/admin/v2/namespaces", tenant))))
    return _beginning(incomplete, (f"{each}/" for each in _strings(_ask(ctx, get("/admin/v2/tenants")))))


def bundles(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces, then the bundles of the one that is typed."""
    if incomplete.count("/") < _PARTS:
        return [each if each.endswith("/") else f"{each}/" for each in namespaces(ctx, incomplete)]
    namespace = incomplete.rpartition("/")[0]
    content = _ask(ctx, get(f"/admin/v2/namespaces/{namespace}", "bundles"))
    bounds = _strings(content.get("boundaries") if isinstance(content, dict) else None)
    ranges = (f"{namespace}/{lower}_{upper}" for lower, upper in pairwise(bounds))
    return _beginning(incomplete, ranges)


def _ask(ctx: typer.Context, request: AdminRequest) -> object:
    """The answer; None when nobody gives one at once."""
    given = ctx.params
    urls = [url.strip().rstrip("/") for url in str(given.get("url", "")).split(",")]
    try:
        with redirect_stderr(io.StringIO()):
            token = given_token(given.get("token") or "", given.get("token_file"))
            tls = given_tls(*(given.get(name) for name in ("tls_trust_certs", "tls_certificate", "tls_key")))
        return Service(urls, _PATIENCE_S, token=token, tls=tls).get(request)
    except (*ASKING_ERRORS, ValueError, SystemExit):
        return None


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _strings(content: object) -> list[str]:
    return [each for each in content if isinstance(each, str)] if isinstance(content, list) else []
