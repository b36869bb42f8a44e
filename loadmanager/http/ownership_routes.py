"""Ownership of bundles, read without side effects; the answer can wait until the bundle has the owner that the caller
expects.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from loadmanager.core.domain.names import TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.http.lookup_routes import parse_topic
from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.request_bodies import parse_number
from loadmanager.http.responses import json_bytes
from loadmanager.leader.node_port import LeadershipPort, MirrorPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import OwnershipAnswer

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
