"""Batch lookups: many topics in one request, each answered as it would be alone, and none waiting for another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web

from loadmanager.core.domain.names import TopicName
from loadmanager.errors import NoLeaderError, NotLeaderError
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.lookup_routes import LISTENER, answer_with, parse_listener
from loadmanager.http.metrics_text import LookupMetrics
from loadmanager.http.openapi import Operation
from loadmanager.http.request_bodies import parse_body
from loadmanager.http.responses import answer_error, json_bytes
from loadmanager.leader.node_port import BrokerPort, LookupPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import LookupsAnswer, WantedLookups

_TOPICS_KEPT = 16_384
_FAILED = b'{"status":'

_topic_of = lru_cache(maxsize=_TOPICS_KEPT)(TopicName.parse)


class ManyLookupHandlers:
    """Batch lookup of owners."""

    def __init__(self, lookups: LookupPort, forwarder: Forwarder, metrics: LookupMetrics) -> None:
        self._lookups = lookups
        self._forwarder = forwarder
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/loadbalance/v1/lookups",
                "where the owners of many topics listen, in their order; each is answered as it would be alone",
                self.lookups,
                (LISTENER,),
                role=AccessRole.LOOKUP,
                body_model=WantedLookups,
                response_model=LookupsAnswer,
                is_question=True,
            )
        ]

    async def lookups(self, request: web.Request) -> web.Response:
        """`POST /loadbalance/v1/lookups`: from memory if all have owners, and else the leader answers all of it."""
        started_s = time.perf_counter()
        topics = (await parse_body(request, WantedLookups)).topics
        listener = parse_listener(request)
        known = [self._known(request, topic, listener) for topic in topics]
        answers = [each for each in known if each is not None]
        if len(answers) == len(topics):
            return self._respond(answers, started_s)

        async def act() -> web.Response:
            asked = [_topic_of(topic) for topic, each in zip(topics, known, strict=True) if each is None]
            deadline_s = await self._lookups.have_assigned(asked)
            now = {topic: self._known(request, topic, listener) for topic in dict.fromkeys(topics)}
            left = [topic for topic, each in now.items() if each is None]
            chosen = (self._chosen(request, topic, listener, deadline_s) for topic in left)
            now.update(zip(left, await asyncio.gather(*chosen), strict=True))
            return self._respond([each for topic in topics if (each := now[topic]) is not None], started_s)

        return await self._forwarder.once_it_leads(request, act)

    def _known(self, request: web.Request, topic: str, listener: str | None) -> bytes | None:
        """Return the answer from memory; None for a topic without an owner."""
        try:
            owner = self._lookups.find_owner(_topic_of(topic))
            return None if owner is None else _answer(owner, listener)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is said of this topic
            return _failed(answer_error(request, error))

    async def _chosen(self, request: web.Request, topic: str, listener: str | None, deadline_s: float) -> bytes:
        """Return the answer for a topic, with an owner assigned now if there is none."""
        try:
            return _answer(await self._lookups.lookup(_topic_of(topic), deadline_s), listener)
        except (NotLeaderError, NoLeaderError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(answer_error(request, error))

    def _respond(self, answers: Sequence[bytes], started_s: float) -> web.Response:
        failed = sum(each.startswith(_FAILED) for each in answers)
        self._metrics.failures.inc(failed)
        self._metrics.answered(time.perf_counter() - started_s, len(answers) - failed)
        return json_bytes(b'{"lookups":[%b]}' % b",".join(answers))


def _answer(owner: BrokerPort, listener: str | None) -> bytes:
    if not listener:
        return owner.lookup_body
    answer = answer_with(owner, listener)
    return _body(answer) if answer.status == HTTPStatus.OK else _failed(answer)


def _failed(answer: web.Response) -> bytes:
    """Return the entry of one topic for the error that a single lookup would have been answered with."""
    return b"%b%d,%b" % (_FAILED, answer.status, _body(answer)[1:])


def _body(answer: web.Response) -> bytes:
    assert isinstance(answer.body, bytes), "it was made of bytes"
    return answer.body
