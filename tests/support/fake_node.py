"""A fake node for agents: a real HTTP server that returns ownerships set by a test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import orjson
from aiohttp import web
from support.servers import LoopbackServer

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName, TopicName
from loadmanager.wire.http_bodies import OwnershipAnswer
from loadmanager.wire.store_records import BundlesData


@dataclass(slots=True)
class FakeNode(LoopbackServer):
    """Knows `namespaces`; every bundle without an entry in `ownerships` (by bundle name) is Free at version 0."""

    namespaces: dict[str, NamespaceBundles] = field(default_factory=dict)
    ownerships: dict[str, OwnershipAnswer] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)
    """The `owner` parameter of each question."""
    authorizations: list[str] = field(default_factory=list)
    """Authorization header of each question."""
    spoiled: bytes | None = None
    """Sent instead of any answer."""
    status: int = 200
    redirect: str = ""
    """Location of answers with another status: the same path there."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: answers are made up at once, as of that moment, but held back."""

    def __post_init__(self) -> None:
        self.may_answer.set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/loadbalance/v1/ownership/{domain}/{tenant}/{namespace}/{topic}", self._ownership),
            web.get("/admin/v2/namespaces/{tenant}/{namespace}", self._namespace),
        ]

    def create_namespace(self, name: str, bundles: int = 4) -> NamespaceBundles:
        self.namespaces[name] = NamespaceBundles(equal_boundaries(bundles))
        return self.namespaces[name]

    def bundle_of(self, topic: str) -> str:
        namespace = str(TopicName.parse(topic).namespace)
        bundles = self.namespaces[namespace]
        return f"{namespace}/{bundles.range_at(bundles.index_of_topic(topic))}"

    def own(self, bundle: str, owner: str, incarnation: int | None, version: int = 1, state: str = "Owned") -> None:
        self.ownerships[bundle] = OwnershipAnswer(
            bundle=bundle, state=state, owner=owner, incarnation=incarnation, version=version, epoch=1
        )

    async def _ownership(self, request: web.Request) -> web.Response:
        topic = TopicName.of(*(request.match_info[part] for part in ("domain", "tenant", "namespace", "topic")))
        self.questions.append(str(topic))
        self.awaited.append(request.query.get("owner", ""))
        self.authorizations.append(request.headers.get("Authorization", ""))
        if str(topic.namespace) not in self.namespaces:
            return web.Response(status=404, body=orjson.dumps({"reason": "namespace not found"}))
        bundle = self.bundle_of(str(topic))
        free = OwnershipAnswer(bundle=bundle, state="Free", owner=None, incarnation=None, version=0, epoch=0)
        return await self._answer(request, self.ownerships.get(bundle, free).to_json())

    async def _namespace(self, request: web.Request) -> web.Response:
        namespace = NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
        bundles = self.namespaces.get(str(namespace))
        if bundles is None:
            return web.Response(status=404, body=orjson.dumps({"reason": "namespace not found"}))
        body = {"bundles": BundlesData.of(bundles).model_dump(by_alias=True), "hashFunction": bundles.hash_function}
        return await self._answer(request, orjson.dumps(body))

    async def _answer(self, request: web.Request, body: bytes) -> web.Response:
        await self.may_answer.wait()
        return web.Response(
            status=self.status,
            headers={"Location": f"{self.redirect}{request.raw_path}"},
            body=self.spoiled or body,
            content_type="application/json",
        )
