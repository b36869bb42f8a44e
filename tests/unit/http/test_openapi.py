from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from support.nodes import RunningNode

from loadmanager.http.openapi import PATH, Operation, Parameter, document
from loadmanager.net.auth.gate import AccessRole
from loadmanager.wire.http_bodies import BrokerInfo, NamespacePolicies


async def _nothing(_: web.Request) -> web.Response:
    return web.Response()


def _references(content: object) -> Iterator[str]:
    if isinstance(content, dict):
        if isinstance(content.get("$ref"), str):
            yield content["$ref"]
        for value in content.values():
            yield from _references(value)
    elif isinstance(content, list):
        for value in content:
            yield from _references(value)


def described(operation: Operation) -> dict[str, Any]:
    path, method = operation.key
    content: dict[str, Any] = document([operation])["paths"][path][method]
    return content


async def test_document_lists_exactly_the_routes_of_a_node(node: RunningNode) -> None:
    content = (await node.get(PATH)).json()
    documented = {(method.upper(), path) for path, methods in content["paths"].items() for method in methods}
    routes = {
        (route.method, re.sub(r"\{(\w+)(?=[:}])[^/]*\}", r"{\1}", route.resource.canonical.rstrip("/") or "/"))
        for route in node.app.router.routes()
        if route.resource is not None and route.method not in ("*", "HEAD")
    }
    assert documented == routes
    assert ("GET", PATH) in documented


async def test_document_references_only_its_own_schemas(node: RunningNode) -> None:
    content = (await node.get(PATH)).json()
    assert content["openapi"] == "3.1.0"
    known = {f"#/components/schemas/{name}" for name in content["components"]["schemas"]}
    assert set(_references(content)) <= known


async def test_path_parameters_are_required_and_described(node: RunningNode) -> None:
    content = (await node.get(PATH)).json()
    for path, methods in content["paths"].items():
        for method in methods.values():
            parameters = {each["name"]: each for each in method.get("parameters", []) if each["in"] == "path"}
            assert list(parameters) == re.findall(r"\{(\w+)\}", path)
            assert all(each["required"] and each["description"] for each in parameters.values())


def test_every_operation_has_a_503_response() -> None:
    responses = described(Operation("GET", "/x", _nothing, AccessRole.ANYONE))["responses"]
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert responses == {
        "200": {"description": "OK"},
        "503": {"description": "Service Unavailable", "content": problem},
    }


def test_operation_without_a_role_is_rejected() -> None:
    with pytest.raises(TypeError, match="role"):
        Operation("GET", "/x", _nothing)  # type: ignore[call-arg]


def test_operation_with_a_role_has_401_and_403_responses() -> None:
    content = described(Operation("GET", "/x", _nothing, AccessRole.READ))
    assert content["x-role"] == "read"
    assert content["security"] == [{"token": ["read"]}]
    assert list(content["responses"]) == ["200", "401", "403", "503"]


def test_operation_for_anyone_needs_no_token() -> None:
    content = described(Operation("GET", "/x", _nothing, AccessRole.ANYONE))
    assert content["x-role"] == "anyone"
    assert content["security"] == []
    assert list(content["responses"]) == ["200", "503"]


def test_operation_with_a_body_has_responses_that_refuse_it() -> None:
    content = described(
        Operation("PUT", "/x", _nothing, AccessRole.ANYONE, body=NamespacePolicies, statuses=(204, 409))
    )
    assert list(content["responses"]) == ["204", "400", "408", "409", "413", "503"]
    body = {"schema": {"$ref": "#/components/schemas/NamespacePolicies"}}
    assert content["requestBody"] == {"required": True, "content": {"application/json": body}}


def test_response_without_a_schema_has_only_its_media_type() -> None:
    content = described(Operation("GET", "/x", _nothing, AccessRole.ANYONE, media_type="text/plain"))
    assert content["responses"]["200"]["content"] == {"text/plain": {}}


def test_no_content_response_has_no_schema() -> None:
    operation = Operation("GET", "/x", _nothing, AccessRole.ANYONE, answer=BrokerInfo, statuses=(200, 204))
    responses = described(operation)["responses"]
    assert "content" not in responses["204"]
    assert responses["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/BrokerInfo"}


def test_parameters_are_those_of_path_and_query() -> None:
    operation = Operation(
        "GET",
        "/x/{cluster:(?!(?:a|b)$)[^/]+}/{broker:.{2}}",
        _nothing,
        AccessRole.ANYONE,
        (Parameter("q", "q"),),
    )
    assert operation.key == ("/x/{cluster}/{broker}", "get")
    places = [(each["name"], each["in"], each["required"]) for each in described(operation)["parameters"]]
    assert places == [("cluster", "path", True), ("broker", "path", True), ("q", "query", False)]


def test_undescribed_path_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="unheard_of"):
        document([Operation("GET", "/x/{unheard_of}", _nothing, AccessRole.ANYONE)])


def test_document_is_deterministic() -> None:
    operations = [Operation("GET", "/x", _nothing, AccessRole.ANYONE, answer=list[str])]
    assert json.dumps(document(operations)) == json.dumps(document(operations))
