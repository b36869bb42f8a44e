"""Bundles that brokers seem to die of: which they are, and an operator's word that they are given away again."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from loadmanager.auth.roles import Role
from loadmanager.core.names import BundleName
from loadmanager.http.auditing import note_change
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.responses import json_response
from loadmanager.leader.port import PoisonPort
from loadmanager.wire.plans import OwnerDeath, PoisonAnswer, PoisonBundle

_POISON = "/loadbalance/v1/poison"


class PoisonHandlers:
    """Answered by the leader, which alone gives bundles away."""

    def __init__(self, poison: PoisonPort, forwarder: Forwarder) -> None:
        self._poison = poison
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        bundle = Parameter("bundle", "only of this bundle, tenant/namespace/0x.._0x..; none: of all")
        return [
            Operation(
                "GET",
                _POISON,
                "the bundles that are given to nobody because their last owners died soon after they got them",
                self.show,
                role=Role.READ,
                response_model=PoisonAnswer,
            ),
            Operation(
                "DELETE",
                _POISON,
                "have them given away again",
                self.lift,
                (bundle,),
                role=Role.OPERATE,
                statuses=(204, 412),
            ),
        ]

    async def show(self, request: web.Request) -> web.Response:
        async def act() -> web.Response:
            memory, verdicts = self._poison.memory, self._poison.verdicts()
            bundles = [
                PoisonBundle(
                    bundle=bundle,
                    deaths=[
                        OwnerDeath(
                            broker=each.broker,
                            incarnation=each.incarnation,
                            at=round(each.at_s * 1000),
                            held_seconds=round(each.held_s, 3),
                        )
                        for each in memory.poison[bundle]
                    ],
                    sentence=verdict.sentence(),
                    remedy=verdict.remedy(),
                )
                for bundle, verdict in verdicts.items()
            ]
            return json_response(PoisonAnswer(bundles=bundles, suspects=len(memory.suspects)).model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act)

    async def lift(self, request: web.Request) -> web.Response:
        wanted = request.query.get("bundle")
        bundle = None if wanted is None else str(BundleName.parse(wanted))

        async def act() -> web.Response:
            before = sorted(self._poison.verdicts())
            self._poison.lift(bundle)
            note_change(request, before, sorted(self._poison.verdicts()))
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._forwarder.once_it_leads(request, act)
