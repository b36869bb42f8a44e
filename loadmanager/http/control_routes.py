"""Operator controls: exclude or hold off a broker, pin or freeze a bundle, freeze the balancer, dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, NamespaceName
from loadmanager.http.audit_middleware import noting
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation
from loadmanager.http.request_bodies import parse_body
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import LeadershipPort, MirrorPort, OperatorConfigPort
from loadmanager.net.auth.gate import AccessRole
from loadmanager.wire.control_records import ControlsData, HoldOff, Pin, Reasoned, data_of

_OURS = "/loadbalance/v1"
_BROKER = f"{_OURS}/brokers/{{broker}}"
_BUNDLE = f"{_OURS}/bundles/{{tenant}}/{{namespace}}/{{range}}"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Change = Callable[[Controls], Controls]


class ControlHandlers:
    """Operator controls: any node reads them, the leader changes them. Removing a control that is not in force
    succeeds.
    """

    def __init__(
        self, leadership: LeadershipPort, mirror: MirrorPort, operators: OperatorConfigPort, forwarder: Forwarder
    ) -> None:
        self._leadership = leadership
        self._mirror = mirror
        self._operators = operators
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        return [*self.of_balancing(), *self._of_placement()]

    def _of_placement(self) -> list[Operation]:
        """Return the controls that matter only to a process that assigns free bundles."""
        return [
            Operation(
                "PUT",
                f"{_BROKER}/hold-off",
                "let the broker's bundles wait for it while it restarts",
                self.hold_off,
                role=AccessRole.OPERATE,
                body_model=HoldOff,
                statuses=(204, 404, 409),
            ),
            Operation(
                "DELETE",
                f"{_BROKER}/hold-off",
                "let its bundles wait no longer",
                self.let_go,
                role=AccessRole.OPERATE,
                statuses=(204, 409),
            ),
        ]

    def of_balancing(self) -> list[Operation]:
        """Return the controls of moves."""
        of_broker, of_bundle, done = (204, 404, 409), (204, 404, 409, 412), (204, 409)
        return [
            Operation(
                "GET",
                f"{_OURS}/controls",
                "all that is in force",
                self.get_controls,
                role=AccessRole.READ,
                response_model=ControlsData,
            ),
            Operation(
                "PUT",
                f"{_BROKER}/exclusion",
                "give the broker no new bundles",
                self.exclude,
                role=AccessRole.OPERATE,
                statuses=of_broker,
            ),
            Operation(
                "DELETE",
                f"{_BROKER}/exclusion",
                "give it bundles again",
                self.include,
                role=AccessRole.OPERATE,
                statuses=done,
            ),
            Operation(
                "PUT",
                f"{_BUNDLE}/pin",
                "say on which broker the bundle belongs",
                self.pin,
                role=AccessRole.OPERATE,
                body_model=Pin,
                statuses=of_bundle,
            ),
            Operation(
                "DELETE",
                f"{_BUNDLE}/pin",
                "let it belong anywhere",
                self.unpin,
                role=AccessRole.OPERATE,
                statuses=(204, 409, 412),
            ),
            Operation(
                "PUT",
                f"{_BUNDLE}/freeze",
                "let nothing move the bundle by itself",
                self.freeze_bundle,
                role=AccessRole.OPERATE,
                body_model=Reasoned,
                statuses=of_bundle,
            ),
            Operation(
                "DELETE",
                f"{_BUNDLE}/freeze",
                "let it move again",
                self.thaw_bundle,
                role=AccessRole.OPERATE,
                statuses=(204, 409, 412),
            ),
            Operation(
                "PUT",
                f"{_OURS}/freeze",
                "let nothing be shed, split or merged by itself",
                self.freeze,
                role=AccessRole.OPERATE,
                body_model=Reasoned,
                statuses=done,
            ),
            Operation(
                "DELETE",
                f"{_OURS}/freeze",
                "let the balancer work again",
                self.thaw,
                role=AccessRole.OPERATE,
                statuses=done,
            ),
            Operation(
                "PUT",
                f"{_OURS}/dry-run",
                "let shedding decide and move nothing",
                self.dry_run,
                role=AccessRole.OPERATE,
                statuses=done,
            ),
            Operation(
                "DELETE",
                f"{_OURS}/dry-run",
                "let shedding move bundles again",
                self.wet_run,
                role=AccessRole.OPERATE,
                statuses=done,
            ),
        ]

    async def get_controls(self, request: web.Request) -> web.Response:
        del request
        return json_response(data_of(self._mirror.operator_config.controls))

    async def exclude(self, request: web.Request) -> web.Response:
        broker = _broker_of(request)
        return await self._change(
            request,
            lambda controls: replace(controls, excluded=controls.excluded | {broker}),
            lambda: self._must_be_known(broker),
        )

    async def include(self, request: web.Request) -> web.Response:
        broker = _broker_of(request)
        return await self._change(request, lambda controls: replace(controls, excluded=controls.excluded - {broker}))

    async def hold_off(self, request: web.Request) -> web.Response:
        """`PUT`: the time counts from now; a repeated call prolongs or shortens it."""
        broker, wanted = _broker_of(request), await parse_body(request, HoldOff)

        def change(controls: Controls) -> Controls:
            return replace(controls, held_off={**controls.held_off, broker: time.time() + wanted.for_s})

        return await self._change(request, change, lambda: self._must_be_known(broker))

    async def let_go(self, request: web.Request) -> web.Response:
        broker = _broker_of(request)
        return await self._change(
            request, lambda controls: replace(controls, held_off=_without(controls.held_off, broker))
        )

    async def pin(self, request: web.Request) -> web.Response:
        bundle, wanted = _bundle_of(request), await parse_body(request, Pin)
        broker = BrokerId(wanted.broker)

        def check() -> None:
            self._mirror.bundle(bundle)
            self._mirror.get_registration(broker)

        return await self._change(
            request, lambda controls: replace(controls, pinned={**controls.pinned, str(bundle): broker}), check
        )

    async def unpin(self, request: web.Request) -> web.Response:
        bundle = str(_bundle_of(request))
        return await self._change(request, lambda controls: replace(controls, pinned=_without(controls.pinned, bundle)))

    async def freeze_bundle(self, request: web.Request) -> web.Response:
        bundle, why = _bundle_of(request), await parse_body(request, Reasoned)

        def change(controls: Controls) -> Controls:
            return replace(controls, frozen_bundles={**controls.frozen_bundles, str(bundle): why.reason})

        return await self._change(request, change, lambda: self._mirror.bundle(bundle))

    async def thaw_bundle(self, request: web.Request) -> web.Response:
        bundle = str(_bundle_of(request))
        return await self._change(
            request, lambda controls: replace(controls, frozen_bundles=_without(controls.frozen_bundles, bundle))
        )

    async def freeze(self, request: web.Request) -> web.Response:
        why = await parse_body(request, Reasoned)
        return await self._change(request, lambda controls: replace(controls, frozen=why.reason))

    async def thaw(self, request: web.Request) -> web.Response:
        return await self._change(request, lambda controls: replace(controls, frozen=""))

    async def dry_run(self, request: web.Request) -> web.Response:
        return await self._change(request, lambda controls: replace(controls, dry_run=True))

    async def wet_run(self, request: web.Request) -> web.Response:
        return await self._change(request, lambda controls: replace(controls, dry_run=False))

    async def _change(
        self, request: web.Request, change: _Change, check: Callable[[], object] = lambda: None
    ) -> web.Response:
        """Change the controls on the leader, if `check` passes there."""

        async def act() -> web.Response:
            self._leadership.get_term()  # only the leader knows for certain what there is
            check()
            await noting(request, self._operators.update_controls, change, data_of)
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._forwarder.on_leader(request, act)

    def _must_be_known(self, broker: BrokerId) -> None:
        """Raise `BrokerNotFoundError` unless the broker is registered, or owns bundles while it is away."""
        mirror = self._mirror
        if broker not in mirror.registrations:
            owners = {ownership.owner.broker for _, _, ownership in mirror.ownerships() if ownership.owner}
            if broker not in owners:
                mirror.get_registration(broker)


def _broker_of(request: web.Request) -> BrokerId:
    return BrokerId(request.match_info["broker"])


def _bundle_of(request: web.Request) -> BundleName:
    names = request.match_info
    namespace = NamespaceName.of(names["tenant"], names["namespace"])
    return BundleName(namespace, BundleRange.parse(names["range"].lower()))


def _without(known: Mapping[_Key, _Value], key: _Key) -> dict[_Key, _Value]:
    return {other: value for other, value in known.items() if other != key}
