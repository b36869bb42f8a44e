"""Lookups of topic owners, and reads of ownership without side effects.

Any node answers a lookup for an owned bundle; the leader assigns the others. A read of ownership can wait until the
bundle has the owner that the caller expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web
from multidict import istr

from loadmanager.core.domain.names import TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.metrics_text import LookupMetrics
from loadmanager.http.openapi import JSON, Operation, Parameter
from loadmanager.http.request_bodies import parse_number
from loadmanager.http.responses import answer_error, json_bytes, problem
from loadmanager.leader.node_port import BrokerPort, LeadershipPort, LookupPort, MirrorPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import LISTENER_HEADER, LookupData, OwnershipAnswer, PartitionedTopicMetadata

_TOPIC = "{domain}/{tenant}/{namespace}/{topic}"
_TOPICS_KEPT = 16_384
_LISTENER_HEADER = istr(LISTENER_HEADER)
_NOT_PARTITIONED = PartitionedTopicMetadata().to_json()


_topic_of = lru_cache(maxsize=_TOPICS_KEPT)(TopicName.of)
"""Checking a topic's name takes longer than all the rest of finding its owner."""


def parse_topic(request: web.Request) -> TopicName:
    """Return the topic in a path; raises `InvalidNameError` when it is none."""
    names = request.match_info
    return _topic_of(names["domain"], names["tenant"], names["namespace"], names["topic"])


def parse_listener(request: web.Request) -> str | None:
    """Return the advertised listener that is requested, None for the default."""
    listener = request.query.get("listenerName") if "?" in request.raw_path else None
    return listener or request.headers.get(_LISTENER_HEADER)


def answer_with(owner: BrokerPort, listener: str | None) -> web.Response:
    """Return the owner's LookupData; as in Pulsar, an unknown listener is a 500."""
    if not listener:
        return json_bytes(owner.lookup_body)
    answer = owner.find_answer(listener)
    if answer is None:
        reason = f"the broker {owner.registration.broker} has no advertised listener named {listener!r}"
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
    return json_bytes(answer)


LISTENER = Parameter("listenerName", f"which advertised listener; the header {LISTENER_HEADER} says it too")


class LookupHandlers:
    """Pulsar's lookup paths."""

    def __init__(self, lookups: LookupPort, mirror: MirrorPort, forwarder: Forwarder, metrics: LookupMetrics) -> None:
        self._lookups = lookups
        self._mirror = mirror
        self._forwarder = forwarder
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                f"/lookup/v2/topic/{_TOPIC}",
                "where the owner of the topic listens; it is chosen now if there is none",
                self.lookup,
                (LISTENER,),
                role=AccessRole.LOOKUP,
                response_model=LookupData,
                statuses=(200, 404, 412, 500),
                guards_itself=True,
            ),
            Operation(
                "GET",
                f"/lookup/v2/topic/{_TOPIC}/bundle",
                "the range of the topic's bundle, as bare text although it is typed as JSON",
                self.bundle,
                role=AccessRole.LOOKUP,
                statuses=(200, 404, 412),
                media_type=JSON,
            ),
            Operation(
                "GET",
                f"/admin/v2/{_TOPIC}/partitions",
                "how the topic is partitioned: it is not",
                self.partitions,
                role=AccessRole.LOOKUP,
                response_model=PartitionedTopicMetadata,
                statuses=(200, 404, 412),
            ),
        ]

    async def lookup(self, request: web.Request) -> web.Response:
        """`GET /lookup/v2/topic/...`: LookupData of the owner, which is assigned now if there is none.

        The hot path of the service: it guards itself, since another coroutine around it would be felt.
        """
        started_s = time.perf_counter()
        try:
            topic = parse_topic(request)
            owner = self._lookups.find_owner(topic)
            response = (
                answer_with(owner, parse_listener(request)) if owner is not None else await self._assign(request, topic)
            )
        except Exception as error:  # noqa: BLE001 - the top of the request, as in `guarded`
            response = answer_error(request, error)
        if response.status == HTTPStatus.OK:
            self._metrics.answered(time.perf_counter() - started_s)
        else:
            self._metrics.failures.inc()
        return response

    async def _assign(self, request: web.Request, topic: TopicName) -> web.Response:
        async def act() -> web.Response:
            return answer_with(await self._lookups.lookup(topic), parse_listener(request))

        return await self._forwarder.on_leader(request, act)

    async def bundle(self, request: web.Request) -> web.Response:
        """`GET /lookup/v2/topic/.../bundle`: the range of the topic's bundle, as bare text; nothing is assigned."""
        entry, index = self._mirror.bundle_of_topic(parse_topic(request))
        return web.Response(text=str(entry.state.bundles.range_at(index)), content_type="application/json")

    async def partitions(self, request: web.Request) -> web.Response:
        """`GET /admin/v2/.../partitions`: a client's question before a lookup. Topics here are never partitioned."""
        self._mirror.get_namespace(str(parse_topic(request).namespace))
        return json_bytes(_NOT_PARTITIONED)


LONGEST_WAIT_MS = 1_000


class OwnershipHandlers:
    """Ownership as this node knows it; agents grant by it."""

    def __init__(self, leadership: LeadershipPort, mirror: MirrorPort) -> None:
        self._leadership = leadership
        self._mirror = mirror
        self._changes: dict[str, asyncio.Event] = {}
        mirror.on_namespace.append(self._changed)

    def operations(self) -> list[Operation]:
        wait: dict[str, object] = {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_MS, "default": 0}
        return [
            Operation(
                "GET",
                "/loadbalance/v1/ownership/{domain}/{tenant}/{namespace}/{topic}",
                "who owns the topic's bundle, as this node knows it; nothing is assigned",
                self.ownership,
                (
                    Parameter("owner", "the broker that is about to get it, for whom `waitMs` waits"),
                    Parameter("waitMs", "how long any other answer is held back at most", wait),
                ),
                role=AccessRole.LOOKUP,
                response_model=OwnershipAnswer,
                statuses=(200, 400, 404, 412, 503),
            )
        ]

    async def ownership(self, request: web.Request) -> web.Response:
        """Answer as of the end of the wait, with whether the mirror is current then."""
        topic, awaited = parse_topic(request), request.query.get("owner")
        wait_ms = parse_number(request, "waitMs", 0, 0, LONGEST_WAIT_MS)
        if awaited is not None and wait_ms:
            await self._wait_for(awaited, topic, wait_ms / 1000)
        return json_bytes(self._answer(topic).to_json())

    async def _wait_for(self, broker: str, topic: TopicName, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._is_owned_by(broker, topic):
                    await self._changes.setdefault(str(topic.namespace), asyncio.Event()).wait()

    def _is_owned_by(self, broker: str, topic: TopicName) -> bool:
        entry, index = self._mirror.bundle_of_topic(topic)
        ownership = entry.state.ownerships[index]
        owner = ownership.owner if ownership.state is OwnershipState.OWNED else None
        return owner is not None and owner.broker == broker

    def _answer(self, topic: TopicName) -> OwnershipAnswer:
        self._leadership.must_be_current()
        entry, index = self._mirror.bundle_of_topic(topic)
        ownership = entry.state.ownerships[index]
        owner = ownership.owner
        return OwnershipAnswer(
            bundle=entry.state.bundle_name(index),
            state=ownership.state.value,
            owner=owner.broker if owner else None,
            incarnation=owner.incarnation if owner else None,
            version=ownership.version,
            epoch=ownership.epoch,
        )

    def _changed(self, namespace: str) -> None:
        changed = self._changes.pop(namespace, None)
        if changed is not None:
            changed.set()
