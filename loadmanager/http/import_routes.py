"""Import of operator config from one document: `loadmanager admin import`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import NamespaceName
from loadmanager.errors import BadRequestError, InvalidRecordError, NamespaceExistsError
from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter
from loadmanager.http.request_bodies import parse_flag
from loadmanager.http.responses import json_bytes
from loadmanager.leader.node_port import BundlePort, MirrorPort, OperatorConfigPort, SettingsPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.operator_config import (
    Changes,
    OperatorConfigDocument,
    StoredOperatorConfig,
    decode_operator_config,
    find_changes,
    standing,
)

_CREATED_AT_A_TIME = 50
_PATIENCE_S = 300.0
"""A restore of some ten thousand namespaces takes minutes."""


class ImportHandlers:
    """Import by the leader: everything is checked before anything changes, and equal records are not written."""

    def __init__(
        self,
        mirror: MirrorPort,
        live: SettingsPort,
        bundles: BundlePort,
        operators: OperatorConfigPort,
        forwarder: Forwarder,
    ) -> None:
        self._mirror = mirror
        self._live = live
        self._bundles = bundles
        self._operators = operators
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "PUT",
                "/loadbalance/v1/operator-config",
                "replace namespaces, policies, controls and settings by those of an export; what it lacks stays",
                self.put_operator_config,
                (Parameter("dryRun", "only say what would change", BOOLEAN),),
                role=AccessRole.ADMIN,
                body_model=OperatorConfigDocument,
                response_model=Changes,
                statuses=(200, 409, 412, 413),
            )
        ]

    async def put_operator_config(self, request: web.Request) -> web.Response:
        """`PUT`: 200 with the changes made, or to be made; 400 or 412 for a document that cannot be used, without any
        change.
        """
        try:
            wanted = decode_operator_config(await request.read(), "body")
        except InvalidRecordError as error:
            raise BadRequestError(str(error)) from None
        is_dry = parse_flag(request, "dryRun")

        async def act() -> web.Response:
            if wanted.configuration is not None:
                self._live.check(wanted.configuration)
            changes = find_changes(self._current(), wanted)
            if not is_dry:
                await self._create(wanted.namespaces or {})
                await self._lay_down(wanted)
                note_change(request, None, [f"{each.change} {each.kind} {each.name}" for each in changes] or None)
            return json_bytes(Changes(changes=changes).to_json())

        return await self._forwarder.once_it_leads(request, act, _PATIENCE_S)

    def _current(self) -> StoredOperatorConfig:
        operator_config = self._mirror.operator_config
        return StoredOperatorConfig(
            {name: record.state.bundles for name, record in self._mirror.namespaces.items()},
            operator_config.isolation,
            operator_config.failure_domains,
            operator_config.anti_affinity,
            standing(operator_config.controls),
            self._live.overrides,
            operator_config.learned,
        )

    async def _create(self, wanted: Mapping[str, NamespaceBundles]) -> None:
        missing = [name for name in wanted if name not in self._mirror.namespaces]
        for first in range(0, len(missing), _CREATED_AT_A_TIME):
            part = missing[first : first + _CREATED_AT_A_TIME]
            await asyncio.gather(*(self._create_one(name, wanted[name]) for name in part))

    async def _create_one(self, name: str, bundles: NamespaceBundles) -> None:
        with contextlib.suppress(NamespaceExistsError):
            await self._bundles.create_namespace(NamespaceName.parse(name), bundles)

    async def _lay_down(self, wanted: StoredOperatorConfig) -> None:
        isolation, domains, groups = wanted.isolation, wanted.failure_domains, wanted.anti_affinity
        controls, configuration = wanted.controls, wanted.configuration
        if isolation is not None:
            await self._operators.update_isolation(lambda _: isolation)
        if domains is not None:
            await self._operators.update_failure_domains(lambda _: domains)
        if groups is not None:
            await self._operators.update_anti_affinity(lambda _: groups)
        if controls is not None:
            await self._operators.update_controls(
                lambda now: replace(controls, draining=now.draining, returning=now.returning, held_off=now.held_off)
            )
        if configuration is not None:
            await self._operators.update_configuration(lambda _: configuration)
        if wanted.learned is not None:
            await self._operators.update_learned(wanted.learned)
