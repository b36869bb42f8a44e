"""Bundle lineage from the recorded history: decisions, moves, operator commands and leaders, across terms.

Nodes record into one common place or each into a folder on its own machine, as configured. So every node is asked for
its records, and the answers are merged.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from pydantic import ValidationError

from loadmanager.core.domain.names import BundleName
from loadmanager.errors import NotFoundError
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.openapi import TIME, Operation, Parameter, read
from loadmanager.http.request_bodies import parse_bundle, parse_number, parse_range
from loadmanager.http.responses import json_response
from loadmanager.leader.candidate import Candidate
from loadmanager.net.auth.gate import AccessRole
from loadmanager.wire.lineage_bodies import BundleLineage, merge_lineages

_LIFE = "/loadbalance/v1/history/bundle/{tenant}/{namespace}/{range}"
_OF_THIS_NODE = "/loadbalance/v1/history/here/bundle/{tenant}/{namespace}/{range}"
_HALF_A_DAY_MS = 43_200_000
_MOST = 1_000
_READING_TIMEOUT_S = 30.0


class LineageHandlers(LeaderHandlers[Candidate]):
    def operations(self) -> list[Operation]:
        limit: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _MOST}
        parameters = (
            Parameter("since", "from this time on, in ms since 1970; none: of the last 12 hours", TIME),
            Parameter("until", "before this time, in ms since 1970; none: up to now", TIME),
            Parameter("limit", "maximum number of entries; the newest are returned", limit),
        )
        return [
            read(_LIFE, self.bundle, BundleLineage, *parameters, statuses=(200, 400, 404, 412)),
            Operation(
                "GET",
                _OF_THIS_NODE,
                self.bundle_here,
                AccessRole.PEER,
                parameters,
                answer=BundleLineage,
                statuses=(200, 400, 404, 412),
            ),
        ]

    async def bundle(self, request: web.Request) -> web.Response:
        """Return the lineage of a bundle and of overlapping bundles from the histories of all nodes, oldest first.

        The range may be a bundle of the past.
        """
        name, since_ms, until_ms, limit = _parse_request(request)
        query = f"?since={since_ms}&until={until_ms}&limit={limit}"
        path = f"{_OF_THIS_NODE.partition('{')[0]}{name}{query}"
        others = {
            node: each.service_url for node, each in self._node.mirror.nodes.items() if node != self._node.node_id
        }
        asking = asyncio.gather(*(self._ask_node(url, path) for url in others.values()))
        own, answers = await asyncio.gather(self._own(name, since_ms, until_ms, limit), asking)
        heard = [own, *(life for life in answers if life is not None)]
        if not any(life.entries for life in heard):
            await self._node.lineage.of(name, since_ms, until_ms, 1)  # raises the reason if nothing is recorded
        unheard = [node for node, answer in zip(others, answers, strict=True) if answer is None]
        return json_response(merge_lineages(heard, limit, unheard))

    async def bundle_here(self, request: web.Request) -> web.Response:
        """Return the lineage from the history of this node only, for the other nodes."""
        return json_response(await self._own(*_parse_request(request)))

    async def _own(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Read this node's lineage; empty if it does not record."""
        try:
            return await self._node.lineage.of(name, since_ms, until_ms, limit)
        except NotFoundError:
            return BundleLineage(bundle=str(name), since=since_ms, until=until_ms, omitted=0, entries=[])

    async def _ask_node(self, url: str, path: str) -> BundleLineage | None:
        """Request the lineage from the node at this URL; None if it does not answer."""
        body = await self._forwarder.ask(url, path, _READING_TIMEOUT_S)
        try:
            return None if body is None else BundleLineage.model_validate_json(body)
        except ValidationError:  # a node of another version
            return None


def _parse_request(request: web.Request) -> tuple[BundleName, int, int, int]:
    """Parse the bundle, the time range and the limit of a request."""
    return parse_bundle(request), *parse_range(request, _HALF_A_DAY_MS), parse_number(request, "limit", _MOST, 1, _MOST)
