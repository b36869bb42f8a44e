"""Learned loads of bundles without history, published by the pipeline."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation
from loadmanager.http.request_bodies import parse_value
from loadmanager.http.responses import MAX_BODY_BYTES, json_bytes
from loadmanager.leader.node_port import MirrorPort, OperatorConfigPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.learned_records import LEARNED_DATA, LearnedData, encode_learned

_LEARNED = "/loadbalance/v1/learned"


class LearnedHandlers:
    """Learned loads: any node reads them, the leader changes and deletes them."""

    def __init__(self, mirror: MirrorPort, operators: OperatorConfigPort, forwarder: Forwarder) -> None:
        self._mirror = mirror
        self._operators = operators
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        done = (204, 409, 413)
        return [
            Operation(
                "GET",
                _LEARNED,
                "what was learned from a history, and by which run; an empty object when nothing was published",
                self.get_learned,
                role=AccessRole.READ,
            ),
            Operation(
                "PUT",
                _LEARNED,
                "take bundles without any history to carry what was learned of their namespace",
                self.put_learned,
                role=AccessRole.OPERATE,
                body_model=LearnedData,
                most_body_bytes=MAX_BODY_BYTES,
                statuses=done,
            ),
            Operation(
                "DELETE",
                _LEARNED,
                "take them to carry the default again",
                self.forget_learned,
                role=AccessRole.OPERATE,
                statuses=done,
            ),
        ]

    async def get_learned(self, request: web.Request) -> web.Response:
        del request
        return json_bytes(encode_learned(self._mirror.operator_config.learned))

    async def put_learned(self, request: web.Request) -> web.Response:
        learned: LearnedData = await parse_value(request, LEARNED_DATA)
        return await self._update(request, learned)

    async def forget_learned(self, request: web.Request) -> web.Response:
        return await self._update(request, None)

    async def _update(self, request: web.Request, learned: LearnedData | None) -> web.Response:
        async def act() -> web.Response:
            before = self._mirror.operator_config.learned
            await self._operators.update_learned(learned)
            note_change(request, _run_of(before), _run_of(learned))
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._forwarder.on_leader(request, act)


def _run_of(learned: LearnedData | None) -> dict[str, object] | None:
    return learned and {"run": learned["run"], "publishedAt": learned["publishedAt"]}
