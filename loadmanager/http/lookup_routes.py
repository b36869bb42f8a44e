"""Lookups of topic owners, single, in batches and on a fast path; and reads of ownership without side effects.

Any node answers a lookup for an owned bundle; the leader assigns the others. A read of ownership can wait until the
bundle has the owner that the caller expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from http import HTTPStatus

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE
from multidict import istr

from loadmanager.core.domain.names import InvalidNameError, TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.errors import NoLeaderError, NotLeaderError
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.messages import answer_error, json_bytes, parse_body, problem
from loadmanager.http.metrics_text import LookupMetrics
from loadmanager.http.openapi import JSON, Operation, Parameter, number_parameter, parse_number, read
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.execution.assignment_driver import OwnerLookups
from loadmanager.leader.mirror.cluster_mirror import BrokerEntry, ClusterMirror
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.net.request_ids import REQUEST_ID_HEADER, new_id
from loadmanager.wire.http_bodies import (
    LISTENER_HEADER,
    LookupData,
    LookupsAnswer,
    OwnershipAnswer,
    PartitionedTopicMetadata,
    WantedLookups,
)

_TOPIC = "{domain}/{tenant}/{namespace}/{topic}"
_TOPICS_KEPT = 16_384
_LISTENER_HEADER = istr(LISTENER_HEADER)
_NOT_PARTITIONED = PartitionedTopicMetadata().to_json()


_check_topic = lru_cache(maxsize=_TOPICS_KEPT)(TopicName.of)
"""The check of a topic's name takes longer than the rest of the lookup."""


def parse_topic(request: web.Request) -> TopicName:
    """Return the topic in a path; raises `InvalidNameError`."""
    names = request.match_info
    return _check_topic(names["domain"], names["tenant"], names["namespace"], names["topic"])


def parse_listener(request: web.Request) -> str | None:
    """Return the requested advertised listener; None for the default."""
    listener = request.query.get("listenerName") if "?" in request.raw_path else None
    return listener or request.headers.get(_LISTENER_HEADER)


def answer_with(owner: BrokerEntry, listener: str | None) -> web.Response:
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

    def __init__(
        self, lookups: OwnerLookups, mirror: ClusterMirror, forwarder: Forwarder, metrics: LookupMetrics
    ) -> None:
        self._lookups = lookups
        self._mirror = mirror
        self._forwarder = forwarder
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        look_up, found = partial(read, role=AccessRole.LOOKUP), (200, 404, 412)
        return [
            look_up(f"/lookup/v2/topic/{_TOPIC}", self.lookup, LookupData, LISTENER, statuses=(200, 404, 412, 500)),
            look_up(f"/lookup/v2/topic/{_TOPIC}/bundle", self.bundle, None, statuses=found, media_type=JSON),
            look_up(f"/admin/v2/{_TOPIC}/partitions", self.partitions, PartitionedTopicMetadata, statuses=found),
        ]

    async def lookup(self, request: web.Request) -> web.Response:
        """Return the addresses of the topic's owner; if there is none, one is assigned."""
        started_s = time.perf_counter()
        try:
            topic = parse_topic(request)
            owner = self._lookups.find_owner(topic)
            response = (
                answer_with(owner, parse_listener(request)) if owner is not None else await self._assign(request, topic)
            )
        except Exception as error:  # noqa: BLE001 - answered here, because failures are counted
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
        """Return the range of the topic's bundle, as bare text despite the JSON content type; nothing is assigned."""
        entry, index = self._mirror.bundle_of_topic(parse_topic(request))
        return web.Response(text=str(entry.state.bundles.range_at(index)), content_type="application/json")

    async def partitions(self, request: web.Request) -> web.Response:
        """Return the partitions of the topic, which clients request before a lookup; topics here have none."""
        self._mirror.get_namespace(str(parse_topic(request).namespace))
        return json_bytes(_NOT_PARTITIONED)


OWNER_WAIT = number_parameter("waitMs", "how long any other answer is held back at most", 0, 1_000, least=0)


class OwnershipHandlers:
    """Ownership in this node's mirror, which agents use for grants."""

    def __init__(self, node: Candidate) -> None:
        self._node = node
        self._changes: dict[str, asyncio.Event] = {}
        node.mirror.on_namespace.append(self._on_changed)

    def operations(self) -> list[Operation]:
        return [
            read(
                "/loadbalance/v1/ownership/{domain}/{tenant}/{namespace}/{topic}",
                self.ownership,
                OwnershipAnswer,
                Parameter("owner", "the broker that is about to get it, for whom `waitMs` waits"),
                OWNER_WAIT,
                role=AccessRole.LOOKUP,
                statuses=(200, 400, 404, 412, 503),
            )
        ]

    async def ownership(self, request: web.Request) -> web.Response:
        """Return the owner of the topic's bundle in this node's mirror; nothing is assigned.

        The answer shows the state at the end of the wait, and whether the mirror is current then.
        """
        topic, awaited = parse_topic(request), request.query.get("owner")
        wait_ms = parse_number(request, OWNER_WAIT)
        if awaited is not None and wait_ms:
            await self._wait_for(awaited, topic, wait_ms / 1000)
        return json_bytes(self._answer(topic).to_json())

    async def _wait_for(self, broker: str, topic: TopicName, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._is_owned_by(broker, topic):
                    await self._changes.setdefault(str(topic.namespace), asyncio.Event()).wait()

    def _is_owned_by(self, broker: str, topic: TopicName) -> bool:
        entry, index = self._node.mirror.bundle_of_topic(topic)
        ownership = entry.state.ownerships[index]
        owner = ownership.owner if ownership.state is OwnershipState.OWNED else None
        return owner is not None and owner.broker == broker

    def _answer(self, topic: TopicName) -> OwnershipAnswer:
        self._node.must_be_current()
        entry, index = self._node.mirror.bundle_of_topic(topic)
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

    def _on_changed(self, namespace: str) -> None:
        changed = self._changes.pop(namespace, None)
        if changed is not None:
            changed.set()


_FAILED = b'{"status":'

_parse_topic = lru_cache(maxsize=_TOPICS_KEPT)(TopicName.parse)


class BatchLookupHandlers:
    """Batch lookup of owners."""

    def __init__(self, lookups: OwnerLookups, forwarder: Forwarder, metrics: LookupMetrics) -> None:
        self._lookups = lookups
        self._forwarder = forwarder
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/loadbalance/v1/lookups",
                self.lookups,
                AccessRole.LOOKUP,
                (LISTENER,),
                body=WantedLookups,
                answer=LookupsAnswer,
                is_question=True,
            )
        ]

    async def lookups(self, request: web.Request) -> web.Response:
        """Return the addresses of the owners of many topics, in their order; each as a single lookup would.

        The node answers from memory if all have owners; otherwise the leader answers the whole batch.
        """
        started_s = time.perf_counter()
        topics = (await parse_body(request, WantedLookups)).topics
        listener = parse_listener(request)
        known = [self._find_in_memory(request, topic, listener) for topic in topics]
        answers = [each for each in known if each is not None]
        if len(answers) == len(topics):
            return self._respond(answers, started_s)

        async def act() -> web.Response:
            asked = [_parse_topic(topic) for topic, each in zip(topics, known, strict=True) if each is None]
            deadline_s = await self._lookups.assign_many(asked)
            now = {topic: self._find_in_memory(request, topic, listener) for topic in dict.fromkeys(topics)}
            left = [topic for topic, each in now.items() if each is None]
            chosen = (self._chosen(request, topic, listener, deadline_s) for topic in left)
            now.update(zip(left, await asyncio.gather(*chosen), strict=True))
            return self._respond([each for topic in topics if (each := now[topic]) is not None], started_s)

        return await self._forwarder.run_on_leader(request, act)

    def _find_in_memory(self, request: web.Request, topic: str, listener: str | None) -> bytes | None:
        """Return the answer from memory; None for a topic without an owner."""
        try:
            owner = self._lookups.find_owner(_parse_topic(topic))
            return None if owner is None else _encode_entry(owner, listener)
        except Exception as error:  # noqa: BLE001 - any error becomes this topic's answer
            return _encode_failure(answer_error(request, error))

    async def _chosen(self, request: web.Request, topic: str, listener: str | None, deadline_s: float) -> bytes:
        """Return the answer for a topic; an owner is assigned if there is none."""
        try:
            return _encode_entry(await self._lookups.lookup(_parse_topic(topic), deadline_s), listener)
        except (NotLeaderError, NoLeaderError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return _encode_failure(answer_error(request, error))

    def _respond(self, answers: Sequence[bytes], started_s: float) -> web.Response:
        failed = sum(each.startswith(_FAILED) for each in answers)
        self._metrics.failures.inc(failed)
        self._metrics.answered(time.perf_counter() - started_s, len(answers) - failed)
        return json_bytes(b'{"lookups":[%b]}' % b",".join(answers))


def _encode_entry(owner: BrokerEntry, listener: str | None) -> bytes:
    if not listener:
        return owner.lookup_body
    answer = answer_with(owner, listener)
    return _body(answer) if answer.status == HTTPStatus.OK else _encode_failure(answer)


def _encode_failure(answer: web.Response) -> bytes:
    """Return one topic's entry for the error of a single lookup."""
    return b"%b%d,%b" % (_FAILED, answer.status, _body(answer)[1:])


def _body(answer: web.Response) -> bytes:
    assert isinstance(answer.body, bytes), "it was made of bytes"
    return answer.body


_HEADS_KEPT = 1_024
"""Every client repeats the same headers."""
_MOST_BYTES = 4_096

_BEGINNING, _VERSION = b"GET /lookup/v2/topic/", b" HTTP/1.1\r\n"
_NAME = rb"([A-Za-z0-9_][-A-Za-z0-9_.]*)"
_TARGET = re.compile(_BEGINNING + rb"(persistent|non-persistent)/" + rb"/".join([_NAME] * 3))
_LINE = re.compile(
    rb"(?:(?P<host>host: [-A-Za-z0-9.:\[\]_]+)|(?:user-agent|accept|accept-encoding|accept-language): [ -~]+"
    rb"|connection: keep-alive|authorization: (?P<authorization>[!-~](?:[ -~]*[!-~])?))\r\n",
    re.IGNORECASE,
)


class FastLookups:
    """Fast path of lookups; called with the bytes that an idle connection has received.

    A request qualifies if it contains nothing that could change the answer, except the topic:

        part          condition
        ----          ---------
        the line      GET /lookup/v2/topic/..., without escaped characters and query
        the head      complete, and only of these lines: Host, User-Agent, Accept*, Connection: keep-alive,
                      Authorization
        the caller    in the gate's cache
        the bundle    owned

    All other requests take the normal path, which refuses, assigns, forwards, explains and counts failures.

    The answer equals the normal one byte for byte, except for request id and time. The fast path is off if requests are
    traced.
    """

    def __init__(self, lookups: OwnerLookups, metrics: LookupMetrics, gate: AuthGate) -> None:
        self._lookups = lookups
        self._metrics = metrics
        self._gate = gate

    def __call__(self, received: bytes) -> bytes | None:
        """Return the complete answer, or None for a request that takes the normal path."""
        started_s = time.perf_counter()
        if not received.startswith(_BEGINNING) or len(received) > _MOST_BYTES:
            return None
        line, version, head = received.partition(_VERSION)
        topic, authorization = _find_topic(line), _find_authorization(head)
        if topic is None or authorization is None or not version:
            return None
        if not (self._gate.is_open or self._gate.knows(authorization, AccessRole.LOOKUP)):
            return None
        try:
            owner = self._lookups.find_owner(topic)
        except Exception:  # noqa: BLE001 - the normal path will meet and report it
            return None
        if owner is None:
            return None
        answer = _encode_response(owner.lookup_body)
        self._metrics.answered(time.perf_counter() - started_s)
        return answer


@lru_cache(_TOPICS_KEPT)
def _find_topic(line: bytes) -> TopicName | None:
    """Return the topic in the request line up to the version; None if it does not qualify."""
    found = _TARGET.fullmatch(line)
    if found is None:
        return None
    try:
        return TopicName.of(*(part.decode() for part in found.groups()))
    except InvalidNameError:
        return None


@lru_cache(_HEADS_KEPT)
def _find_authorization(head: bytes) -> str | None:
    """Return the Authorization header, empty without one; None if the headers do not qualify for the fast path."""
    at, hosts, found = 0, 0, list[str]()
    while (line := _LINE.match(head, at)) is not None:
        at = line.end()
        hosts += line["host"] is not None
        found += [line["authorization"].decode()] if line["authorization"] else []
    is_whole = head[at:] == b"\r\n"
    return "".join(found) if is_whole and hosts == 1 and len(found) <= 1 else None


def _encode_response(body: bytes) -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n{REQUEST_ID_HEADER}: {new_id()}\r\n\r\n"
    ).encode() + body
