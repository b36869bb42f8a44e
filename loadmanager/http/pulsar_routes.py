"""HTTP application beside a Pulsar: like a node's without owners and lookups, plus status, diary and scores."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from loadmanager.http.app import candidate_operations, make_application, make_forwarder, make_gate
from loadmanager.http.control_routes import ControlHandlers
from loadmanager.http.fleet_routes import LiveHandlers
from loadmanager.http.import_routes import ConfigurationHandlers
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.openapi import TEXT, Operation, number_parameter, operate, parse_number, read
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.util.process_metrics import add_process_metrics
from loadmanager.wire.pulsar_records import PulsarServiceStatus

_PULSAR = "/loadbalance/v1/pulsar"
_DIARY = f"{_PULSAR}/diary"
_SCORES = f"{_PULSAR}/scores"
_ROUNDS = number_parameter("rounds", "how many rounds at most", 60, 10_000)
_ENTRIES_LIMIT = number_parameter("limit", "how many at most", 60, 10_000)
_ASK_PULSAR = (
    "this is a process beside a Pulsar, whose brokers place bundles and keep namespaces, policies and settings: ask"
    " them, as pulsar-admin does"
)


class PulsarHandlers(LeaderHandlers[PulsarService]):
    """Process beside a Pulsar. Diary and scores come from the leader, because only it plans."""

    def operations(self) -> list[Operation]:
        return [
            read(_PULSAR, self.status, PulsarServiceStatus),
            read(_DIARY, self.diary, None, _ROUNDS, statuses=(200, 400), media_type=TEXT),
            read(f"{_DIARY}/entries", self.entries, list[dict[str, Any]], _ENTRIES_LIMIT, statuses=(200, 400)),
            read(_SCORES, self.scores, list[dict[str, Any]]),
            read(f"{_SCORES}/table", self.table, None, media_type=TEXT),
            operate("POST", f"{_PULSAR}/resume", self.resume, statuses=(204, 409)),
        ]

    async def status(self, request: web.Request) -> web.Response:
        """Return the status of this process, with the obstacles that keep it from acting."""
        return await self._forwarder.run_on_leader(request, self._node.status)

    async def diary(self, request: web.Request) -> web.Response:
        """Return the diary as text: Pulsar's actions, and what this process would have done."""
        rounds = parse_number(request, _ROUNDS)
        return await self._forwarder.run_on_leader(request, lambda: web.Response(text=self._node.diary.text(rounds)))

    async def entries(self, request: web.Request) -> web.Response:
        """Return the entries of the diary, newest first."""
        limit = parse_number(request, _ENTRIES_LIMIT)
        return await self._forwarder.run_on_leader(request, lambda: self._node.diary.records(limit))

    async def scores(self, request: web.Request) -> web.Response:
        """Return Pulsar's balance and the balance that this process would have reached, by hours and days."""
        return await self._forwarder.run_on_leader(request, self._node.scores.records)

    async def table(self, request: web.Request) -> web.Response:
        """Return the newest scores as text."""
        return await self._forwarder.run_on_leader(request, lambda: web.Response(text=self._node.scores.text()))

    async def resume(self, request: web.Request) -> web.Response:
        """Resume acting after failed moves."""
        return await self._forwarder.run_on_leader(request, self._node.resume)


def make_pulsar_app(node: PulsarService) -> web.Application:
    """Build the HTTP application of a process beside a Pulsar, without owners and lookups."""
    forwarder, http = make_forwarder(node)
    settings, registry = node.live.current, add_process_metrics(CollectorRegistry())
    gate = make_gate(node.settings, registry, settings.cluster_name)
    live = LiveHandlers(node.fleet_status, forwarder, gate)
    operations = [
        *PulsarHandlers(node, forwarder).operations(),
        *ConfigurationHandlers(node, forwarder).questions(),
        *ControlHandlers(node, forwarder).of_balancing(),
        *candidate_operations(node, forwarder, registry, gate),
        *live.operations(),
    ]
    return make_application(node, operations, http, gate, (live,), _ASK_PULSAR)
