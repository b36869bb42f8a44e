"""Splits and merges of bundles, and the hash positions of their topics."""

from __future__ import annotations

import re
from http import HTTPStatus
from itertools import pairwise

from aiohttp import web
from pydantic import ValidationError

from loadmanager.core.domain.bundles import BoundariesError
from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.errors import BadRequestError
from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import Forwarder, unloading_timeout_s
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter
from loadmanager.http.request_bodies import parse_body, parse_flag
from loadmanager.http.responses import json_bytes, problem
from loadmanager.leader.node_port import BundlePort, SettingsPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.bundle_bodies import (
    HOT,
    LARGEST,
    MergedBundle,
    MergeRequest,
    SplitPositions,
    TopicHashPositions,
)
from loadmanager.wire.validation import describe

_BUNDLE = "/admin/v2/namespaces/{tenant}/{namespace}/{range}"
_PARTITION = re.compile(r"-partition-[0-9]+$")


class BundleHandlers:
    """Bundles: the leader splits and merges them; any node asks their owners for topics."""

    def __init__(self, bundles: BundlePort, live: SettingsPort, forwarder: Forwarder) -> None:
        self._bundles = bundles
        self._live = live
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "PUT",
                f"{_BUNDLE}/split",
                f"split a bundle, or the one that {LARGEST} (most topics) or {HOT} (highest throughput) stands for; no"
                " place to cut: 204, and nothing is done",
                self.split,
                (
                    Parameter("splitAlgorithmName", "where to cut; none: the configured default"),
                    Parameter("unload", "release the parts, so that each is placed anew", BOOLEAN),
                ),
                role=AccessRole.OPERATE,
                body_model=SplitPositions,
                body_required=False,
                statuses=(204, 404, 409, 412),
            ),
            Operation(
                "GET",
                f"{_BUNDLE}/topicHashPositions",
                "the hashes of a bundle's topics, as far as its owner has them open",
                self.topic_hash_positions,
                (Parameter("topics", "only these; repeatable; a name without its partition stands for all of them"),),
                role=AccessRole.READ,
                response_model=TopicHashPositions,
                statuses=(200, 404, 412),
            ),
            Operation(
                "POST",
                "/loadbalance/v1/bundles/{tenant}/{namespace}/{range}/merge",
                "make one bundle of this one and a neighbour of the same owner",
                self.merge,
                role=AccessRole.OPERATE,
                body_model=MergeRequest,
                response_model=MergedBundle,
                body_required=False,
                statuses=(200, 404, 409, 412),
            ),
        ]

    async def split(self, request: web.Request) -> web.Response:
        """`PUT .../split`: 204 once the record has the parts, or there is no place to cut.

        412 for a range that is no current bundle or cannot be cut, or an algorithm that is not supported; 400 for
        positions that do not ascend; 404 when `LARGEST` or `HOT` finds nothing; 503 when the owner does not say which
        topics it has.
        """
        namespace, text = _namespace_of(request), request.match_info["range"]
        positions = await parse_positions(request)
        unload = parse_flag(request, "unload")
        algorithm = request.query.get("splitAlgorithmName", "")
        own = None if text in (LARGEST, HOT) else BundleName(namespace, BundleRange.parse(text.lower()))

        async def act() -> web.Response:
            name = own or self._bundles.find(namespace, text)
            if name is None:
                return problem(HTTPStatus.NOT_FOUND, f"{text}: no bundle of namespace {namespace} carries anything")
            parts = await self._bundles.split(name, algorithm=algorithm, positions=positions, unload=unload)
            note_change(request, [str(name)], [str(part) for part in parts] or [str(name)])
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._live.current))

    async def merge(self, request: web.Request) -> web.Response:
        """`POST .../merge`: 200 and the new bundle; 400 for bundles that are no neighbours, 409 for two owners."""
        name = BundleName(_namespace_of(request), BundleRange.parse(request.match_info["range"].lower()))
        wanted = (await parse_body(request, MergeRequest)).with_
        with_ = None if wanted is None else BundleRange.parse(wanted.lower())

        async def act() -> web.Response:
            merged = await self._bundles.merge(name, with_)
            neighbours = [str(name)] if with_ is None else [str(name), f"{name.namespace}/{with_}"]
            note_change(request, neighbours, [str(merged)])
            return json_bytes(MergedBundle(bundle=str(merged)).to_json())

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._live.current))

    async def topic_hash_positions(self, request: web.Request) -> web.Response:
        """`GET .../topicHashPositions`: 412 for a range that is no current bundle, or one that nobody owns."""
        name = BundleName(_namespace_of(request), BundleRange.parse(request.match_info["range"].lower()))
        topics = await self._bundles.get_topics(name)
        if topics is None:
            return problem(HTTPStatus.PRECONDITION_FAILED, f"bundle {name} has no owner that could name its topics")
        wanted = set(request.query.getall("topics", ()))
        positions = {
            each.topic: each.hash
            for each in topics
            if not wanted or each.topic in wanted or _PARTITION.sub("", each.topic) in wanted
        }
        answer = TopicHashPositions(
            namespace=str(name.namespace), bundle=str(name.range), topic_hash_positions=positions
        )
        return json_bytes(answer.to_json())


async def parse_positions(request: web.Request) -> list[int]:
    """Return the body of a split; an empty body, or `null`, is a split without positions."""
    content = (await request.read()).strip()
    if content in (b"", b"null"):
        return []
    try:
        positions = SplitPositions.model_validate_json(content).root
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None
    if any(left >= right for left, right in pairwise(positions)):
        raise BoundariesError("body: expected split positions that ascend, each of them once")
    return positions


def _namespace_of(request: web.Request) -> NamespaceName:
    return NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
