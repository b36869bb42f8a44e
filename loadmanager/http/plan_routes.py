"""Plans: computed, reviewed, and executed exactly as they are."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from loadmanager.errors import PlanDriftedError
from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter
from loadmanager.http.request_bodies import parse_body, parse_flag
from loadmanager.http.responses import MAX_BODY_BYTES, json_response
from loadmanager.leader.node_port import PlanPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.plan_bodies import ExecutionAnswer, PlanAnswer, PlanRequest, PlansAnswer

_PLANS = "/loadbalance/v1/plans"
_FILE = "application/octet-stream"
_PLANNING_TIMEOUT_S = 60.0
_EXECUTION_TIMEOUT_S = 3_600.0
"""Timeout of a node for the leader's execution of a plan: as long as its unloads may take."""


class PlanHandlers:
    def __init__(self, plans: PlanPort, forwarder: Forwarder) -> None:
        self._plans = plans
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                _PLANS,
                "compute a plan with its predicted effect and keep it by its hash; nothing is carried out",
                self.compute,
                role=AccessRole.OPERATE,
                body_model=PlanRequest,
                most_body_bytes=MAX_BODY_BYTES,
                response_model=PlanAnswer,
                statuses=(200, 404, 409, 412),
            ),
            Operation(
                "GET",
                _PLANS,
                "the plans that the leader keeps, the newest first",
                self.all,
                role=AccessRole.READ,
                response_model=PlansAnswer,
            ),
            Operation(
                "GET",
                f"{_PLANS}/{{hash}}",
                "a plan that the leader keeps",
                self.get,
                role=AccessRole.READ,
                response_model=PlanAnswer,
                statuses=(200, 404),
            ),
            Operation(
                "GET",
                f"{_PLANS}/{{hash}}/file",
                "a plan that the leader keeps, as a file that can be checked without it",
                self.file,
                role=AccessRole.READ,
                media_type=_FILE,
                statuses=(200, 404),
            ),
            Operation(
                "POST",
                f"{_PLANS}/{{hash}}/execute",
                "carry out exactly this plan; 409 with what became of each step when the cluster has drifted or is"
                " frozen",
                self.execute,
                (Parameter("evenIfFrozen", "carry it out although the balancer is frozen", BOOLEAN),),
                role=AccessRole.OPERATE,
                response_model=ExecutionAnswer,
                statuses=(200, 404, 409),
            ),
        ]

    async def compute(self, request: web.Request) -> web.Response:
        wanted = await parse_body(request, PlanRequest)

        async def act() -> web.Response:
            plan = await self._plans.compute(wanted)
            note_change(request, None, {"plan": plan.hash, "steps": len(plan.steps)})
            return json_response(plan.model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act, _PLANNING_TIMEOUT_S)

    async def all(self, request: web.Request) -> web.Response:
        async def act() -> web.Response:
            return json_response(self._plans.all().model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act)

    async def get(self, request: web.Request) -> web.Response:
        async def act() -> web.Response:
            return json_response(self._plans.get(request.match_info["hash"]).model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act, _PLANNING_TIMEOUT_S)

    async def file(self, request: web.Request) -> web.Response:
        async def act() -> web.Response:
            return web.Response(body=await self._plans.file(request.match_info["hash"]), content_type=_FILE)

        return await self._forwarder.once_it_leads(request, act, _PLANNING_TIMEOUT_S)

    async def execute(self, request: web.Request) -> web.Response:
        insists = parse_flag(request, "evenIfFrozen")

        async def act() -> web.Response:
            try:
                report = await self._plans.execute(request.match_info["hash"], even_if_frozen=insists)
            except PlanDriftedError as error:
                note_change(request, None, {"executed": error.report["executed"], "reason": str(error)})
                return json_response(error.report, HTTPStatus.CONFLICT)
            note_change(request, None, {"executed": report.executed})
            return json_response(report.model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act, _EXECUTION_TIMEOUT_S)
