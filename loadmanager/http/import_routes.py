"""Operator config and dynamic configuration: import, learned loads, and Pulsar's admin paths for settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import cast

from aiohttp import web

from loadmanager.config.dynamic_settings import check_dynamic, dynamic_keys, values_as_text
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import NamespaceName
from loadmanager.errors import BadRequestError, InvalidRecordError, NamespaceExistsError
from loadmanager.http.audit_middleware import note_change, noting
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.messages import MAX_BODY_BYTES, json_bytes, json_response, parse_flag, parse_value
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter, administer, operate, read
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.node import Node
from loadmanager.wire.control_records import ControlsData, controls_of, standing_data_of
from loadmanager.wire.learned_records import LEARNED_DATA, LearnedData, encode_learned
from loadmanager.wire.operator_config import (
    Changes,
    NamespaceShape,
    OperatorConfigDocument,
    decode_operator_config,
    find_changes,
)

_CREATED_AT_A_TIME = 50
_IMPORT_TIMEOUT_S = 300.0
"""Restoring ten thousand namespaces takes minutes."""


class ImportHandlers(LeaderHandlers[Node]):
    """Import by the leader: everything is validated before any change, and unchanged records are not written."""

    def operations(self) -> list[Operation]:
        return [
            administer(
                "PUT",
                "/loadbalance/v1/operator-config",
                self.put_operator_config,
                parameters=(Parameter("dryRun", "only say what would change", BOOLEAN),),
                body=OperatorConfigDocument,
                answer=Changes,
                statuses=(200, 409, 412, 413),
            )
        ]

    async def put_operator_config(self, request: web.Request) -> web.Response:
        """Replace namespaces, policies, controls and settings by those of an export; records absent from it stay.

        200 with the changes; 400 or 412 for an unusable document, without any change.
        """
        try:
            wanted = decode_operator_config(await request.read(), "body")
        except InvalidRecordError as error:
            raise BadRequestError(str(error)) from None
        is_dry = parse_flag(request, "dryRun")

        async def act() -> Changes:
            if wanted.configuration is not None:
                self._node.live.check(wanted.configuration)
            changes = find_changes(self._current(wanted.namespaces or {}), wanted)
            if not is_dry:
                await self._create(wanted.namespaces or {})
                await self._lay_down(wanted)
                note_change(request, None, [f"{each.change} {each.kind} {each.name}" for each in changes] or None)
            return Changes(changes=changes)

        return await self._forwarder.run_on_leader(request, act, _IMPORT_TIMEOUT_S)

    def _current(self, wanted: Collection[str]) -> OperatorConfigDocument:
        """Return the current config, with those of the wanted namespaces that exist. It was validated when read."""
        operator_config, namespaces = self._node.mirror.operator_config, self._node.mirror.namespaces
        existing = {name: namespaces[name].state.bundles for name in wanted if name in namespaces}
        return OperatorConfigDocument.model_construct(
            namespaces={name: NamespaceShape.of(bundles) for name, bundles in existing.items()},
            isolation_policies=dict(operator_config.isolation),
            failure_domains=dict(operator_config.failure_domains),
            anti_affinity_groups=dict(operator_config.anti_affinity),
            controls=standing_data_of(operator_config.controls),
            configuration=dict(self._node.live.overrides),
            learned=operator_config.learned,
        )

    async def _create(self, wanted: Mapping[str, NamespaceShape]) -> None:
        missing = [name for name in wanted if name not in self._node.mirror.namespaces]
        for first in range(0, len(missing), _CREATED_AT_A_TIME):
            part = missing[first : first + _CREATED_AT_A_TIME]
            await asyncio.gather(*(self._create_one(name, wanted[name].value()) for name in part))

    async def _create_one(self, name: str, bundles: NamespaceBundles) -> None:
        with contextlib.suppress(NamespaceExistsError):
            await self._node.bundles.create_namespace(NamespaceName.parse(name), bundles)

    async def _lay_down(self, wanted: OperatorConfigDocument) -> None:
        isolation, domains, groups = wanted.isolation_policies, wanted.failure_domains, wanted.anti_affinity_groups
        configuration = wanted.configuration
        if isolation is not None:
            await self._node.operators.update_isolation(lambda _: isolation)
        if domains is not None:
            await self._node.operators.update_failure_domains(lambda _: domains)
        if groups is not None:
            await self._node.operators.update_anti_affinity(lambda _: groups)
        if wanted.controls is not None:
            controls = controls_of(cast("ControlsData", wanted.controls))
            await self._node.operators.update_controls(
                lambda now: replace(controls, draining=now.draining, returning=now.returning, held_off=now.held_off)
            )
        if configuration is not None:
            await self._node.operators.update_configuration(lambda _: configuration)
        if wanted.learned is not None:
            await self._node.operators.update_learned(wanted.learned)


_LEARNED = "/loadbalance/v1/learned"


class LearnedHandlers(LeaderHandlers[Candidate]):
    """Learned loads: any node reads them, the leader changes and deletes them."""

    def operations(self) -> list[Operation]:
        done = (204, 409, 413)
        return [
            read(_LEARNED, self.get_learned, None),
            operate("PUT", _LEARNED, self.put_learned, body=LearnedData, most_body_bytes=MAX_BODY_BYTES, statuses=done),
            operate("DELETE", _LEARNED, self.forget_learned, statuses=done),
        ]

    async def get_learned(self, _: web.Request) -> web.Response:
        """Return the learned loads and their run; an empty object if nothing was published."""
        return json_bytes(encode_learned(self._node.mirror.operator_config.learned))

    async def put_learned(self, request: web.Request) -> web.Response:
        """Publish learned loads. A bundle without history gets the load of its namespace."""
        learned: LearnedData = await parse_value(request, LEARNED_DATA)
        return await self._update(request, learned)

    async def forget_learned(self, request: web.Request) -> web.Response:
        """Delete the learned loads."""
        return await self._update(request, None)

    async def _update(self, request: web.Request, learned: LearnedData | None) -> web.Response:
        async def act() -> None:
            before = self._node.mirror.operator_config.learned
            await self._node.operators.update_learned(learned)
            note_change(request, _run_of(before), _run_of(learned))

        return await self._forwarder.on_leader(request, act)


def _run_of(learned: LearnedData | None) -> dict[str, object] | None:
    return learned and {"run": learned["run"], "publishedAt": learned["publishedAt"]}


_CONFIGURATION = "/admin/v2/brokers/configuration"


class ConfigurationHandlers(LeaderHandlers[Candidate]):
    """Dynamic configuration: any node reads its settings, the leader changes those of all nodes."""

    def questions(self) -> list[Operation]:
        """Return the read-only operations."""
        texts = dict[str, str]
        return [
            read(_CONFIGURATION, self.list_keys, list[str]),
            read(f"{_CONFIGURATION}/values", self.values, texts),
            read(f"{_CONFIGURATION}/runtime", self.runtime, texts),
        ]

    def operations(self) -> list[Operation]:
        return [
            *self.questions(),
            administer("POST", f"{_CONFIGURATION}/{{key}}/{{value:.*}}", self.set_value, statuses=(200, 400, 409, 412)),
            administer("DELETE", f"{_CONFIGURATION}/{{key}}", self.delete_value, statuses=(200, 409, 412)),
        ]

    async def list_keys(self, _: web.Request) -> web.Response:
        """Return the dynamic keys."""
        return json_response(dynamic_keys())

    async def values(self, _: web.Request) -> web.Response:
        """Return the overrides of the nodes' own settings."""
        return json_response(dict(sorted(self._node.live.overrides.items())))

    async def runtime(self, _: web.Request) -> web.Response:
        """Return all current settings of this node."""
        return json_response(values_as_text(self._node.live.current))

    async def set_value(self, request: web.Request) -> web.Response:
        """Override a setting of all nodes.

        200 as in Pulsar, once the leader has applied it; 400 for an unusable value, 412 for a key that is not dynamic.
        """
        key, text = request.match_info["key"], request.match_info["value"]

        def put(stored: Mapping[str, str]) -> Mapping[str, str]:
            self._node.live.check({**self._node.live.overrides, key: text})
            return {**stored, key: text}

        return await self._change(request, put)

    async def delete_value(self, request: web.Request) -> web.Response:
        """Remove an override, so that each node returns to its own setting.

        200 as in Pulsar; unusable overrides can be removed as well.
        """
        key = request.match_info["key"]

        def remove(stored: Mapping[str, str]) -> Mapping[str, str]:
            if key not in stored:
                check_dynamic(key)
            others = {name: text for name, text in self._node.live.overrides.items() if name != key}
            self._node.live.check(others)
            return {name: text for name, text in stored.items() if name != key}

        return await self._change(request, remove)

    async def _change(
        self, request: web.Request, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> web.Response:
        async def act() -> web.Response:
            await noting(request, self._node.operators.update_configuration, change)
            return web.Response()

        return await self._forwarder.on_leader(request, act)
