"""Bodies and names that cannot be used: each operation refuses them, says what is wrong, and changes nothing."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.nodes import Cluster, RunningNode

from loadmanager.http import openapi
from loadmanager.http.messages import MAX_BODY_BYTES

RANGE = "0x00000000_0x80000000"
NAMES = {
    "tenant": "t",
    "namespace": "ns",
    "range": RANGE,
    "cluster": "standalone",
    "broker": "b1:8080",
}
LENIENT = {"/admin/v2/namespaces/{tenant}/{namespace}"}
"""Pulsar's policies have many fields that mean nothing here."""


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with Cluster() as cluster:
        node = await cluster.start_leader(namespace_bundle_unloading_timeout_ms=300)
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        yield node


async def operations_with_a_body(node: RunningNode) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Verb, documented path, path with names in it, and the schema of the JSON body."""
    document = (await node.get(openapi.PATH)).json()
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if openapi.JSON in content:
                asked = path.format_map(_Names())
                found.append((method.upper(), path, asked, _resolve(document, content[openapi.JSON]["schema"])))
    assert len(found) > 3
    return found


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return NAMES.get(key, "name")


def _resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


async def state_of(node: RunningNode) -> list[object]:
    """Everything that a request might have changed."""
    paths = ["/loadbalance/v1/controls", "/admin/v2/brokers/configuration/values", "/admin/v2/namespaces/t/ns"]
    policies = [f"/admin/v2/clusters/standalone/{kind}" for kind in ("namespaceIsolationPolicies", "failureDomains")]
    return [(await node.get(path)).json() for path in [*paths, *policies]]


async def test_body_that_is_not_json_is_400(node: RunningNode) -> None:
    before = await state_of(node)
    for method, _, path, _ in await operations_with_a_body(node):
        reply = await node.ask(method, path, data=b"{not json")
        assert (reply.status, "Invalid JSON" in reply.reason) == (400, True), (method, path, reply)
    assert await state_of(node) == before


async def test_body_of_another_type_is_400(node: RunningNode) -> None:
    before = await state_of(node)
    for method, _, path, _ in await operations_with_a_body(node):
        reply = await node.ask(method, path, data=b'"text"')
        assert reply.status == 400, (method, path, reply)
        assert reply.reason
    assert await state_of(node) == before


async def test_unknown_field_is_400_and_named(node: RunningNode) -> None:
    before = await state_of(node)
    for method, documented, path, schema in await operations_with_a_body(node):
        if documented in LENIENT or schema.get("type") != "object":
            continue
        assert schema["additionalProperties"] is False, (method, documented)
        reply = await node.ask(method, path, json={"fieldOfNobody": 1})
        assert (reply.status, "fieldOfNobody" in reply.reason) == (400, True), (method, path, reply)
    assert await state_of(node) == before


async def in_chunks(total_bytes: int) -> AsyncIterator[bytes]:
    """A body whose length is not said before."""
    for left in range(total_bytes, 0, -65_536):
        yield b" " * min(left, 65_536)


async def test_too_large_body_is_413(node: RunningNode) -> None:
    before = await state_of(node)
    for method, _, path, _ in await operations_with_a_body(node):
        for body in (io.BytesIO(b" " * (MAX_BODY_BYTES + 1)), in_chunks(MAX_BODY_BYTES + 1)):
            reply = await node.ask(method, path, data=body)
            assert reply.status == 413, (method, path, reply)
            assert reply.reason.startswith("body: larger than ")
    assert await state_of(node) == before


@pytest.mark.parametrize("bad_range", ["0x00000000_0x40000000", "0x0_0x1", "all", "0x80000000_0x00000000"])
async def test_outdated_range_is_412(node: RunningNode, bad_range: str) -> None:
    document = (await node.get(openapi.PATH)).json()
    asked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            # A bundle that is no more has a history all the same.
            if "{range}" in path and "requestBody" not in operation and "/history/" not in path:
                names = NAMES | {"range": bad_range}
                reply = await node.ask(method.upper(), path.format_map(names))
                assert reply.status in (412, 204), (method, path, reply)
                assert reply.status == 412 or method == "delete", (method, path, reply)
                asked += 1
    assert asked


async def test_unknown_broker_is_404(node: RunningNode) -> None:
    document = (await node.get(openapi.PATH)).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "{broker}" in path and "requestBody" not in operation and method != "delete":
                reply = await node.ask(method.upper(), path.format_map(NAMES | {"broker": "b9:8080"}))
                assert (reply.status, "b9:8080" in reply.reason) == (404, True), (method, path, reply)
