"""Pulsar's admin paths for dynamic configuration."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from loadmanager.config import dynamic_keys, values_as_text
from loadmanager.config.overrides import check_dynamic
from loadmanager.http.audit_middleware import noting
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import OperatorConfigPort, SettingsPort
from loadmanager.net.auth.roles import AccessRole

_CONFIGURATION = "/admin/v2/brokers/configuration"


class ConfigurationHandlers:
    """Dynamic configuration: any node reads its settings, the leader changes those of all nodes."""

    def __init__(self, live: SettingsPort, operators: OperatorConfigPort, forwarder: Forwarder) -> None:
        self._live = live
        self._operators = operators
        self._forwarder = forwarder

    def questions(self) -> list[Operation]:
        """Return the read-only operations."""
        texts = dict[str, str]
        return [
            Operation(
                "GET",
                _CONFIGURATION,
                "the dynamic keys",
                self.list_keys,
                role=AccessRole.READ,
                response_model=list[str],
            ),
            Operation(
                "GET",
                f"{_CONFIGURATION}/values",
                "what overrides nodes' own settings",
                self.values,
                role=AccessRole.READ,
                response_model=texts,
            ),
            Operation(
                "GET",
                f"{_CONFIGURATION}/runtime",
                "all settings of this node as they are now",
                self.runtime,
                role=AccessRole.READ,
                response_model=texts,
            ),
        ]

    def operations(self) -> list[Operation]:
        return [
            *self.questions(),
            Operation(
                "POST",
                f"{_CONFIGURATION}/{{key}}/{{value:.*}}",
                "override a setting of all nodes; 412 for a key that is not dynamic",
                self.set_value,
                role=AccessRole.ADMIN,
                statuses=(200, 400, 409, 412),
            ),
            Operation(
                "DELETE",
                f"{_CONFIGURATION}/{{key}}",
                "let each node go by its own setting again",
                self.delete_value,
                role=AccessRole.ADMIN,
                statuses=(200, 409, 412),
            ),
        ]

    async def list_keys(self, request: web.Request) -> web.Response:
        del request
        return json_response(dynamic_keys())

    async def values(self, request: web.Request) -> web.Response:
        del request
        return json_response(dict(sorted(self._live.overrides.items())))

    async def runtime(self, request: web.Request) -> web.Response:
        del request
        return json_response(values_as_text(self._live.current))

    async def set_value(self, request: web.Request) -> web.Response:
        """`POST`: 200 as in Pulsar, once the leader has applied it; 400 for an unusable value, 412 for the key."""
        key, text = request.match_info["key"], request.match_info["value"]

        def put(stored: Mapping[str, str]) -> Mapping[str, str]:
            self._live.check({**self._live.overrides, key: text})
            return {**stored, key: text}

        async def act() -> web.Response:
            await noting(request, self._operators.update_configuration, put)
            return web.Response()

        return await self._forwarder.on_leader(request, act)

    async def delete_value(self, request: web.Request) -> web.Response:
        """`DELETE`: 200 as in Pulsar; an override that cannot be used goes too, whatever its key."""
        key = request.match_info["key"]

        def remove(stored: Mapping[str, str]) -> Mapping[str, str]:
            if key not in stored:
                check_dynamic(key)
            others = {name: text for name, text in self._live.overrides.items() if name != key}
            self._live.check(others)
            return {name: text for name, text in stored.items() if name != key}

        async def act() -> web.Response:
            await noting(request, self._operators.update_configuration, remove)
            return web.Response()

        return await self._forwarder.on_leader(request, act)
