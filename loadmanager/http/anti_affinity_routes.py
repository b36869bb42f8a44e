"""Pulsar's admin paths for the anti-affinity groups of namespaces. A group is bare text, whatever its type says."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from loadmanager.core.domain.names import NamespaceName
from loadmanager.errors import BadRequestError
from loadmanager.http.audit_middleware import noting
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import JSON, Operation, Parameter
from loadmanager.http.policy_routes import check_cluster
from loadmanager.http.responses import json_response, problem
from loadmanager.leader.node_port import MirrorPort, OperatorConfigPort
from loadmanager.net.auth.roles import AccessRole

_GROUP = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
_MEMBERS = "/admin/v2/namespaces/{cluster}/antiAffinity/{group}"
_MOST_CHARACTERS = 200


class AntiAffinityHandlers:
    """Anti-affinity groups: any node reads them, the leader changes them."""

    def __init__(self, cluster: str, mirror: MirrorPort, operators: OperatorConfigPort, forwarder: Forwarder) -> None:
        self._cluster = cluster
        self._mirror = mirror
        self._operators = operators
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        tenant = Parameter("tenant", "of this tenant alone", required=True)
        return [
            Operation(
                "GET",
                _MEMBERS,
                "the namespaces of an anti-affinity group",
                self.members,
                (tenant,),
                role=AccessRole.READ,
                response_model=list[str],
                statuses=(200, 400, 404),
            ),
            Operation(
                "GET",
                _GROUP,
                "the namespace's anti-affinity group, as bare text although it is typed as JSON; 204 when it has none",
                self.get_group,
                role=AccessRole.READ,
                statuses=(200, 204, 404, 412),
                media_type=JSON,
            ),
            Operation(
                "POST",
                _GROUP,
                "set the namespace's anti-affinity group: the body is its name as bare text, without quotes",
                self.set_group,
                role=AccessRole.ADMIN,
                body_model=str,
                body_media_type="text/plain",
                statuses=(204, 404, 409, 412),
            ),
            Operation(
                "DELETE",
                _GROUP,
                "take the namespace out of its anti-affinity group",
                self.delete_group,
                role=AccessRole.ADMIN,
                statuses=(204, 404, 409, 412),
            ),
        ]

    async def members(self, request: web.Request) -> web.Response:
        """`?tenant=`: the namespaces of a group, whatever the case in which its name is written."""
        check_cluster(self._cluster, request)
        tenant = request.query.get("tenant", "")
        if not tenant:
            raise BadRequestError("tenant: is required")
        wanted = request.match_info["group"].strip().lower()
        groups = self._mirror.operator_config.anti_affinity
        return json_response(
            sorted(
                name
                for name, group in groups.items()
                if name.startswith(f"{tenant}/") and group.strip().lower() == wanted
            )
        )

    async def get_group(self, request: web.Request) -> web.Response:
        group = self._mirror.operator_config.anti_affinity.get(self._namespace(request))
        if group is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        return web.Response(text=group, content_type="application/json")

    async def set_group(self, request: web.Request) -> web.Response:
        """`POST`: 204; 412 for a blank group, as Pulsar."""
        name = self._namespace(request)
        try:
            group = (await request.read()).decode("utf-8").strip()
        except UnicodeDecodeError:
            raise BadRequestError("body: expected the name of a group in UTF-8") from None
        if not group:
            return problem(HTTPStatus.PRECONDITION_FAILED, "body: the name of a group is needed")
        if len(group) > _MOST_CHARACTERS or not group.isprintable():
            raise BadRequestError(f"body: expected up to {_MOST_CHARACTERS} printable characters")
        return await self._put(request, name, group)

    async def delete_group(self, request: web.Request) -> web.Response:
        return await self._put(request, self._namespace(request), None)

    async def _put(self, request: web.Request, name: str, group: str | None) -> web.Response:
        def change(groups: Mapping[str, str]) -> Mapping[str, str]:
            others = {other: known for other, known in groups.items() if other != name}
            return others if group is None else {**others, name: group}

        async def act() -> web.Response:
            await noting(request, self._operators.update_anti_affinity, change)
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._forwarder.on_leader(request, act)

    def _namespace(self, request: web.Request) -> str:
        """Return the namespace in the path; raises `NamespaceNotFoundError` when there is none."""
        name = NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
        self._mirror.get_namespace(str(name))
        return str(name)
