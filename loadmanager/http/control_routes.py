"""Operator controls: exclude or hold off a broker, pin or freeze a bundle, freeze the balancer, dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.http.audit_middleware import noting
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.messages import json_response, parse_body, parse_broker, parse_bundle
from loadmanager.http.openapi import Operation, operate, read
from loadmanager.leader.candidate import Candidate
from loadmanager.wire.control_records import ControlsData, HoldOff, Pin, Reasoned, data_of

_OURS = "/loadbalance/v1"
_BROKER = f"{_OURS}/brokers/{{broker}}"
_BUNDLE = f"{_OURS}/bundles/{{tenant}}/{{namespace}}/{{range}}"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Change = Callable[[Controls], Controls]


class ControlHandlers(LeaderHandlers[Candidate]):
    """Operator controls: any node reads them, the leader changes them. Removing an absent control succeeds."""

    def operations(self) -> list[Operation]:
        return [*self.of_balancing(), *self._of_placement()]

    def _of_placement(self) -> list[Operation]:
        """Return the controls for a process that assigns free bundles."""
        return [
            operate("PUT", f"{_BROKER}/hold-off", self.hold_off, body=HoldOff, statuses=(204, 404, 409)),
            operate("DELETE", f"{_BROKER}/hold-off", self.let_go, statuses=(204, 409)),
        ]

    def of_balancing(self) -> list[Operation]:
        """Return the controls of moves and rounds."""
        of_broker, of_bundle, done = (204, 404, 409), (204, 404, 409, 412), (204, 409)
        return [
            read(f"{_OURS}/controls", self.get_controls, ControlsData),
            operate("PUT", f"{_BROKER}/exclusion", self.exclude, statuses=of_broker),
            operate("DELETE", f"{_BROKER}/exclusion", self.include, statuses=done),
            operate("PUT", f"{_BUNDLE}/pin", self.pin, body=Pin, statuses=of_bundle),
            operate("DELETE", f"{_BUNDLE}/pin", self.unpin, statuses=(204, 409, 412)),
            operate("PUT", f"{_BUNDLE}/freeze", self.freeze_bundle, body=Reasoned, statuses=of_bundle),
            operate("DELETE", f"{_BUNDLE}/freeze", self.thaw_bundle, statuses=(204, 409, 412)),
            operate("PUT", f"{_OURS}/freeze", self.freeze, body=Reasoned, statuses=done),
            operate("DELETE", f"{_OURS}/freeze", self.thaw, statuses=done),
            operate("PUT", f"{_OURS}/dry-run", self.dry_run, statuses=done),
            operate("DELETE", f"{_OURS}/dry-run", self.end_dry_run, statuses=done),
        ]

    async def get_controls(self, _: web.Request) -> web.Response:
        """Return all controls in force."""
        return json_response(data_of(self._node.mirror.operator_config.controls))

    async def exclude(self, request: web.Request) -> web.Response:
        """Give the broker no new bundles."""
        broker = parse_broker(request)
        return await self._change(
            request,
            lambda controls: replace(controls, excluded=controls.excluded | {broker}),
            lambda: self._require_known(broker),
        )

    async def include(self, request: web.Request) -> web.Response:
        """Allow new bundles for the broker again."""
        broker = parse_broker(request)
        return await self._change(request, lambda controls: replace(controls, excluded=controls.excluded - {broker}))

    async def hold_off(self, request: web.Request) -> web.Response:
        """Keep the broker's bundles for it while it restarts.

        The time counts from now; a repeated call prolongs or shortens it.
        """
        broker, wanted = parse_broker(request), await parse_body(request, HoldOff)

        def change(controls: Controls) -> Controls:
            return replace(controls, held_off={**controls.held_off, broker: time.time() + wanted.for_s})

        return await self._change(request, change, lambda: self._require_known(broker))

    async def let_go(self, request: web.Request) -> web.Response:
        """Release the bundles that are kept for the broker."""
        broker = parse_broker(request)
        return await self._change(
            request, lambda controls: replace(controls, held_off=_without(controls.held_off, broker))
        )

    async def pin(self, request: web.Request) -> web.Response:
        """Pin the bundle to a broker."""
        bundle, wanted = parse_bundle(request), await parse_body(request, Pin)
        broker = BrokerId(wanted.broker)

        def check() -> None:
            self._node.mirror.bundle(bundle)
            self._node.mirror.get_registration(broker)

        return await self._change(
            request, lambda controls: replace(controls, pinned={**controls.pinned, str(bundle): broker}), check
        )

    async def unpin(self, request: web.Request) -> web.Response:
        """Unpin the bundle."""
        bundle = str(parse_bundle(request))
        return await self._change(request, lambda controls: replace(controls, pinned=_without(controls.pinned, bundle)))

    async def freeze_bundle(self, request: web.Request) -> web.Response:
        """Freeze the bundle: the balancer does not move it."""
        bundle, why = parse_bundle(request), await parse_body(request, Reasoned)

        def change(controls: Controls) -> Controls:
            return replace(controls, frozen_bundles={**controls.frozen_bundles, str(bundle): why.reason})

        return await self._change(request, change, lambda: self._node.mirror.bundle(bundle))

    async def thaw_bundle(self, request: web.Request) -> web.Response:
        """Let the balancer move the bundle again."""
        bundle = str(parse_bundle(request))
        return await self._change(
            request, lambda controls: replace(controls, frozen_bundles=_without(controls.frozen_bundles, bundle))
        )

    async def freeze(self, request: web.Request) -> web.Response:
        """Freeze the balancer: it sheds, splits and merges nothing."""
        why = await parse_body(request, Reasoned)
        return await self._change(request, lambda controls: replace(controls, frozen=why.reason))

    async def thaw(self, request: web.Request) -> web.Response:
        """End the freeze of the balancer."""
        return await self._change(request, lambda controls: replace(controls, frozen=""))

    async def dry_run(self, request: web.Request) -> web.Response:
        """Start the dry run: shedding decides but moves nothing."""
        return await self._change(request, lambda controls: replace(controls, dry_run=True))

    async def end_dry_run(self, request: web.Request) -> web.Response:
        """End the dry run."""
        return await self._change(request, lambda controls: replace(controls, dry_run=False))

    async def _change(
        self, request: web.Request, change: _Change, check: Callable[[], object] = lambda: None
    ) -> web.Response:
        """Change the controls on the leader, if `check` passes there."""

        async def act() -> None:
            self._node.get_term()  # only the leader has certainly the current controls
            check()
            await noting(request, self._node.operators.update_controls, change, data_of)

        return await self._forwarder.on_leader(request, act)

    def _require_known(self, broker: BrokerId) -> None:
        """Raise `BrokerNotFoundError` unless the broker is registered or owns bundles."""
        mirror = self._node.mirror
        if broker not in mirror.registrations:
            owners = {ownership.owner.broker for _, _, ownership in mirror.ownerships() if ownership.owner}
            if broker not in owners:
                mirror.get_registration(broker)


def _without(known: Mapping[_Key, _Value], key: _Key) -> dict[_Key, _Value]:
    return {other: value for other, value in known.items() if other != key}
