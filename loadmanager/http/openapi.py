"""The routes of a node and the OpenAPI document that describes them, both made from the same operations.

A handler class lists its operations in `operations()`. No route exists without one, so every route is documented.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import TypeAdapter

from loadmanager import __version__
from loadmanager.errors import BadRequestError
from loadmanager.http.audit_middleware import audited
from loadmanager.http.leader_proxy import IS_QUESTION
from loadmanager.http.messages import EVENTS, guarded, json_bytes, refuse_foreign_page
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.net.http_server import SMALL_BYTES, BodyLimit
from loadmanager.net.tracing import OFF, Tracing
from loadmanager.wire.http_bodies import Problem

PATH = "/loadbalance/v1/openapi.json"

JSON = "application/json"
TEXT = "text/plain"

_JsonSchema = dict[str, Any]
_NUMBER = re.compile(r"[0-9]{1,9}")
_SHOWN_CHARACTERS = 40
_VARIABLE = re.compile(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})*)?\}")
_ERRORS = range(400, 600)
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_REFS = "#/components/schemas/{model}"
_STRING: _JsonSchema = {"type": "string"}
BOOLEAN: _JsonSchema = {"type": "boolean", "default": False}
TIME: _JsonSchema = {"type": "integer", "minimum": 0, "maximum": 999_999_999_999_999}


_PROBLEM = ("", "")
"""Key of the error body in the schemas of operations."""

_MEANT_FOR_PULSAR = frozenset({"authoritative"})
"""Query parameters that Pulsar's clients add and that have no effect here."""

_NAME: _JsonSchema = {"type": "string", "pattern": "^[-=:.A-Za-z0-9_]+$"}

_SECURITY_SCHEMES: _JsonSchema = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}

_PATH_VARIABLES: dict[str, tuple[str, _JsonSchema]] = {
    "domain": ("persistent or non-persistent", {"type": "string", "enum": ["persistent", "non-persistent"]}),
    "tenant": ("the tenant", _NAME),
    "namespace": ("the namespace, without its tenant", _NAME),
    "topic": ("the topic's own name, percent-encoded once", _STRING),
    "range": ("a bundle's range", {"type": "string", "pattern": "^0x[0-9a-f]{8}_0x[0-9a-f]{8}$"}),
    "cluster": ("the cluster, `clusterName`; where brokers are listed any name stands for it", _STRING),
    "broker": ("the broker's id, host:port", {"type": "string", "pattern": "^[-A-Za-z0-9._:\\[\\]]+:[0-9]{1,5}$"}),
    "policy": ("the name of an isolation policy", _STRING),
    "failureDomain": ("the name of a failure domain", _STRING),
    "group": ("the name of an anti-affinity group, in any case", _STRING),
    "key": ("a key of the configuration", _STRING),
    "value": ("its new value as text, a list with commas", _STRING),
    "file": ("a file's path", _STRING),
    "hash": ("the hash of a plan", {"type": "string", "pattern": "^[0-9a-f]{64}$"}),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; `schema` is its JSON schema."""

    name: str
    summary: str
    schema: _JsonSchema | None = None
    required: bool = False


def number_parameter(name: str, summary: str, default: int, most: int, least: int = 1) -> Parameter:
    """Declare a whole number in the query, with the limits that the document shows and `parse_number` checks."""
    return Parameter(name, summary, {"type": "integer", "minimum": least, "maximum": most, "default": default})


def parse_number(request: web.Request, parameter: Parameter) -> int:
    """Parse a parameter that `number_parameter` has declared."""
    assert parameter.schema is not None, "a number's"
    lowest, highest = parameter.schema["minimum"], parameter.schema["maximum"]
    text = request.query.get(parameter.name, str(parameter.schema["default"]))
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
        shown = text[:_SHOWN_CHARACTERS]
        raise BadRequestError(f"{parameter.name} {shown!r}: expected a number from {lowest} to {highest}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Operation:
    """One HTTP method of one path. `path` is in aiohttp's form, and its variables are documented from it. `role` is the
    role that the caller needs; it has no default. The docstring of `handler` is the description, unless `summary`
    replaces it.

    `body` and `answer`, of request and response, are types with a pydantic schema (a model class, `list[str]`). Without
    `answer` the response has no body, or one of `media_type` without a schema. Beside `statuses` an operation may
    return 503, also 401 and 403 unless `role` is ANYONE, and 400, 408 and 413 if it changes something.

    Such an operation accepts no other query parameters, because a misspelt one would change something else, and no body
    above `most_body_bytes` (`SMALL_BYTES` without a `body`).
    """

    method: str
    path: str
    handler: Handler
    role: AccessRole
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    answer: Any = None
    statuses: tuple[int, ...] = (HTTPStatus.OK,)
    media_type: str | None = None
    body_media_type: str = JSON
    body_required: bool = True
    most_body_bytes: int = 1024 * 1024
    is_question: bool = False
    summary: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Return the path in OpenAPI form, and the verb."""
        return _VARIABLE.sub(r"{\1}", self.path), self.method.lower()

    @property
    def path_variables(self) -> list[str]:
        return _VARIABLE.findall(self.path)

    @property
    def all_statuses(self) -> set[int]:
        of_change = {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
        of_role = set() if self.role is AccessRole.ANYONE else {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        of_request = set() if self.method == "GET" else of_change
        return {*self.statuses, *of_request, *of_role, HTTPStatus.SERVICE_UNAVAILABLE}

    def route(self, gate: AuthGate, audit: AuditTrail, room: BodyLimit, tracing: Tracing = OFF) -> web.RouteDef:
        """Return the route behind the authentication gate. Operations that change something write to the `audit` log,
        even if they are refused.

        It is traced, except for streams and operations that anyone may call.
        """
        path = self.key[0]
        traced = tracing if self.role is not AccessRole.ANYONE and self.media_type != EVENTS else OFF
        if self.method == "GET":
            return web.get(self.path, traced.serving(path, guarded(gate.permitting(self.role, self.handler))))
        handler = guarded(gate.permitting(self.role, partial(self._change, room)))
        if not self.is_question:
            handler = audited(f"{self.method} {path}", handler, audit)
        return web.route(self.method, self.path, traced.serving(path, handler))

    async def _change(self, room: BodyLimit, request: web.Request) -> web.StreamResponse:
        refuse_foreign_page(request)
        known = [parameter.name for parameter in self.parameters]
        for name in request.query:
            if name not in known and name not in _MEANT_FOR_PULSAR:
                shown = name[:_SHOWN_CHARACTERS]
                raise BadRequestError(f"query parameter {shown!r}: unknown; known: {', '.join(known) or 'none'}")
        if self.is_question:
            request[IS_QUESTION] = True
        most_bytes = SMALL_BYTES if self.body is None else self.most_body_bytes
        async with room.read(request, most_bytes):
            return await self.handler(request)


def read(
    path: str,
    handler: Handler,
    answer: Any,  # noqa: ANN401 - as in `Operation`
    *parameters: Parameter,
    role: AccessRole = AccessRole.READ,
    statuses: tuple[int, ...] = (HTTPStatus.OK,),
    media_type: str | None = None,
    summary: str = "",
) -> Operation:
    """Return the operation of a GET, for readers unless there is another `role`."""
    return Operation(
        "GET",
        path,
        handler,
        role,
        parameters,
        answer=answer,
        statuses=statuses,
        media_type=media_type,
        summary=summary,
    )


operate = partial(Operation, role=AccessRole.OPERATE)
"""An operation of operators."""
administer = partial(Operation, role=AccessRole.ADMIN)
"""An operation of administrators."""


class OpenApiHandlers:
    """Serves the OpenAPI document of all operations, including its own."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._document = cache(lambda: orjson.dumps(document([*operations, *self.operations()])))

    def operations(self) -> list[Operation]:
        return [read(PATH, self.openapi, dict[str, Any])]

    async def openapi(self, _: web.Request) -> web.Response:
        """Return this document."""
        return json_bytes(await asyncio.to_thread(self._document))


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these operations."""
    inputs: list[tuple[Any, Any, TypeAdapter[Any]]] = [(_PROBLEM, "serialization", TypeAdapter(Problem))]
    for operation in operations:
        if operation.body is not None:
            inputs.append((operation.key, "validation", TypeAdapter(operation.body)))
        if operation.answer is not None:
            inputs.append((operation.key, "serialization", TypeAdapter(operation.answer)))
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REFS)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path, method = operation.key
        paths.setdefault(path, {})[method] = _describe_operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "loadmanager",
            "version": __version__,
            "description": "Pulsar's lookup and admin paths for load balancing, and our own under /loadbalance/v1.",
        },
        "paths": paths,
        "components": {"schemas": definitions["$defs"], "securitySchemes": _SECURITY_SCHEMES},
    }


def _describe_operation(operation: Operation, schemas: Mapping[tuple[Any, Any], _JsonSchema]) -> _JsonSchema:
    """Return the operation object of the document."""
    summary, _, details = (operation.summary or inspect.getdoc(operation.handler) or "").partition("\n\n")
    described: _JsonSchema = {"summary": " ".join(summary.split()), "x-role": operation.role.value}
    if details:
        described["description"] = details
    described["security"] = [] if operation.role is AccessRole.ANYONE else [{"token": [operation.role.value]}]
    parameters = [_path_parameter(name) for name in operation.path_variables]
    parameters += [
        {
            "name": each.name,
            "in": "query",
            "description": each.summary,
            "required": each.required,
            "schema": each.schema or _STRING,
        }
        for each in operation.parameters
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {operation.body_media_type: {"schema": schemas[operation.key, "validation"]}}
        described["requestBody"] = {"required": operation.body_required, "content": content}
    described["responses"] = {
        str(status): _response(operation, status, schemas) for status in sorted(operation.all_statuses)
    }
    return described


def _path_parameter(name: str) -> _JsonSchema:
    summary, schema = _PATH_VARIABLES[name]
    return {"name": name, "in": "path", "description": summary, "required": True, "schema": schema}


def _response(operation: Operation, status: int, schemas: Mapping[tuple[Any, Any], _JsonSchema]) -> _JsonSchema:
    described: _JsonSchema = {"description": HTTPStatus(status).phrase}
    if status in _ERRORS:
        described["content"] = {JSON: {"schema": schemas[_PROBLEM, "serialization"]}}
    elif status in _WITHOUT_BODY:
        return described
    elif operation.answer is not None:
        described["content"] = {operation.media_type or JSON: {"schema": schemas[operation.key, "serialization"]}}
    elif operation.media_type is not None:
        described["content"] = {operation.media_type: {}}
    return described
