"""Finding the owner of a topic through any load-manager node, over plain HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web
from pydantic import ValidationError

from loadmanager.calling import HttpClient, PeerUnavailableError
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.http import LookupData

LOOKUP_TIMEOUT_S = 10.0
_DEFAULT_RETRY_AFTER_S = 1.0
_MAX_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """Where the owner listens, or after which pause to ask again."""

    data: LookupData | None
    retry_after_s: float = 0.0


class TopicLookup:
    """Asks one node until it fails, then the next one; a node that redirects has failed: any node answers itself."""

    def __init__(self, node_urls: Sequence[str], http: HttpClient, first: int = 0) -> None:
        self._http = http
        self._urls = itertools.cycle([*node_urls[first % len(node_urls) :], *node_urls[: first % len(node_urls)]])
        self._url = next(self._urls)

    async def ask(self, topic: str) -> LookupAnswer:
        """One question to one node."""
        url = self._url
        path = f"{url}/lookup/v2/topic/{topic.replace('://', '/', 1)}"
        try:
            answer = await self._http.call("GET", path, LOOKUP_TIMEOUT_S)
        except (PeerUnavailableError, InvalidRecordError):
            self._try_next_node(url)
            return LookupAnswer(None)
        if answer.status == web.HTTPOk.status_code:
            try:
                return LookupAnswer(LookupData.model_validate_json(answer.body))
            except ValidationError:
                return LookupAnswer(None)
        if answer.status != web.HTTPServiceUnavailable.status_code:
            self._try_next_node(url)
        return LookupAnswer(None, _retry_after_s(answer.headers.get("Retry-After")))

    def _try_next_node(self, failed_url: str) -> None:
        if self._url == failed_url:  # many lookups fail at once when a node dies: only the first of them moves on
            self._url = next(self._urls)


def _retry_after_s(header: str | None) -> float:
    return min(float(header), _MAX_RETRY_AFTER_S) if header and header.isdigit() else _DEFAULT_RETRY_AFTER_S
