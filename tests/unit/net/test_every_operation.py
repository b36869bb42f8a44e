"""All operations, with every role and without a token: 401 and 403 for whom they are, and an answer for the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.beside import beside_pulsar
from support.nodes import Reply, a_leader
from support.tokens import CLOSED, PRINCIPALS, bearer, expired_token_of, token_of

from loadmanager.http.openapi import PATH
from loadmanager.net.auth.roles import AccessRole

SAID = {
    "domain": "persistent",
    "tenant": "t",
    "namespace": "ns",
    "topic": "x",
    "range": "0x00000000_0x40000000",
    "cluster": "standalone",
    "broker": "b1:8080",
    "policy": "p",
    "failureDomain": "d",
    "group": "g",
    "key": "noSuchKey",
    "value": "1",
    "hash": "0" * 64,
}
TOKENS = {principal: token_of(principal) for principal in PRINCIPALS} | {"stranger": token_of("stranger")}


def operations_in(document: dict[str, Any]) -> Iterator[tuple[str, str, AccessRole]]:
    """Method, path and role of each operation that the document names."""
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            filled = re.sub(r"\{(\w+)\}", lambda found: SAID.get(found[1], "x"), path)
            yield method.upper(), filled, AccessRole(described["x-role"])


def expected(principal: str, role: AccessRole) -> int | None:
    """The status with which the principal is refused; None for one that may."""
    return None if role in {*PRINCIPALS.get(principal, set()), AccessRole.ANYONE} else 403


async def walk(ask: Any, document: dict[str, Any]) -> int:  # noqa: ANN401 - asks a process
    """Try each operation as each principal; how many were tried."""
    tried = 0
    for method, path, role in operations_in(document):
        for principal, token in TOKENS.items():
            refused = expected(principal, role)
            is_endless = path.endswith("/live") and refused is None
            reply = await ask("HEAD" if is_endless else method, path, headers=bearer(token))
            assert (reply.status in (401, 403)) == (refused is not None), (method, path, principal, reply)
            tried += 1
            if refused is not None:
                assert reply.status == refused
                assert repr(principal) in reply.reason
                assert role.value.upper() in reply.reason
        for headers in ({}, bearer("no.token.this"), bearer(expired_token_of("root")), {"Authorization": "Basic eA=="}):
            reply = await ask(method, path, headers=headers)
            assert (reply.status == 401) == (role is not AccessRole.ANYONE), (method, path, reply)
            if reply.status == 401:
                assert reply.reason
                assert reply.headers["WWW-Authenticate"] == "Bearer"
    return tried


async def test_every_operation_of_a_node_asks_for_its_role() -> None:
    async with a_leader(**CLOSED) as (_, node):
        document = (await node.get(PATH, headers=bearer(TOKENS["root"]))).json()
        assert await walk(node.ask, document) > 300


async def test_every_operation_beside_a_pulsar_asks_for_its_role(tmp_path: Path) -> None:
    async with beside_pulsar(tmp_path) as beside:
        node = await beside.start(**CLOSED)

        async def ask(method: str, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's
            return await beside.ask(node, method, path, **options)

        document = (await ask("GET", PATH, headers=bearer(TOKENS["root"]))).json()
        assert await walk(ask, document) > 150
