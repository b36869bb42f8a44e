"""HTTP requests to the brokers of a Pulsar; redirects from broker to broker are followed."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 60.0
_MOST_BYTES = 64 << 20
_HOPS = 4
_REDIRECTS = (301, 302, 307, 308)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def content(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.body)


class RefusedError(Exception):
    """A broker answered with an error; the message has the request, the status and its reason."""


def ask(base_url: str, method: str, path: str, content: object = None, timeout_s: float = _TIMEOUT_S) -> Answer:
    """Send a request and follow redirects with the same method. Raises `OSError` without an answer."""
    url = base_url + path
    body = None if content is None else json.dumps(content)
    for _ in range(_HOPS):
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(method, target, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            answer = Answer(response.status, response.read(_MOST_BYTES))
            where = response.headers.get("Location")
        except http.client.HTTPException as error:  # a starting or stopping broker closes connections
            raise ConnectionError(f"{method} {url}: {error!r}") from error
        finally:
            connection.close()
        if answer.status not in _REDIRECTS or where is None:
            return answer
        url = where
    raise ConnectionError(f"{method} {base_url}{path}: sent on {_HOPS} times")


def demand(base_url: str, method: str, path: str, content: object = None) -> Answer:
    """Send a request as `ask` does. Raises `RefusedError` unless it succeeds."""
    answer = ask(base_url, method, path, content)
    if not 200 <= answer.status < 300:  # noqa: PLR2004
        raise RefusedError(f"{method} {base_url}{path}: {answer.status} {answer.body[:500].decode(errors='replace')}")
    return answer
