from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from support.servers import closed_port, serving

from loadmanager.client.node_client import Nodes, NotNow, checked_urls
from loadmanager.client.push_events import Owner
from loadmanager.core.domain.names import InvalidNameError
from loadmanager.errors import (
    ConfigurationError,
    NamespaceNotFoundError,
    NodesUnavailableError,
    UnauthenticatedError,
)
from loadmanager.net.auth.outgoing_token import TokenAlone

TOPIC = "persistent://demo/orders/topic/ü 1"
PATH = "/lookup/v2/topic/persistent/demo/orders/topic%2F%C3%BC%201"
FOUND = Owner("b:1", "tcp://b:2")


@asynccontextmanager
async def answering(*answers: web.Response) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """A node that gives these answers, the last one for ever, and what it was asked."""
    asked: list[web.Request] = []
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        given = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(body=given.body, status=given.status, headers=given.headers)

    async with serving([web.get("/{path:.*}", answer)]) as url:
        yield url, asked


def said(status: int, reason: str = "because", **headers: str) -> web.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({"reason": reason}, status=status, headers=names)


def found(broker_id: str = "b:1", url: str | None = "tcp://b:2") -> web.Response:
    return web.json_response({"brokerId": broker_id, "brokerUrl": url, "nativeUrl": url})


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


class InOrder(random.Random):
    """No chance at all."""

    def shuffle(self, x: object) -> None:
        """It stays as it is."""


async def test_lookup_returns_the_address_of_the_listener(http: aiohttp.ClientSession) -> None:
    async with answering(found()) as (url, asked):
        nodes = Nodes([url], http, InOrder(), token=TokenAlone("secret", "token"), listener="inside out")
        assert await nodes.lookup(TOPIC) == FOUND
        assert asked[0].raw_path == f"{PATH}?listenerName=inside+out"
        assert asked[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "answer",
    [
        said(500),
        said(307, location="http://127.0.0.1:1/"),
        web.Response(text="<html>", status=404),
        web.Response(text="<html>"),
        web.json_response({"brokerUrl": "tcp://b:2"}),
        web.Response(body=b" " * 100_000),
        web.Response(body=b"x" * 100_000, status=404),
    ],
)
async def test_node_with_a_wrong_answer_is_skipped(http: aiohttp.ClientSession, answer: web.Response) -> None:
    async with answering(answer) as (url, asked), answering(found()) as (other, _):
        nodes = Nodes([url, other], http, InOrder())
        assert await nodes.lookup(TOPIC) == await nodes.lookup(TOPIC) == FOUND
        assert len(asked) == 1
        with pytest.raises(NodesUnavailableError, match=f"{url}"):
            await Nodes([url], http, InOrder()).lookup(TOPIC)


async def test_unreachable_nodes_are_named_with_the_reason(http: aiohttp.ClientSession) -> None:
    dead = f"http://127.0.0.1:{closed_port()}"
    async with answering(said(500, "oh dear")) as (url, _):
        with pytest.raises(NodesUnavailableError) as failed:
            await Nodes([dead, url], http, InOrder()).lookup(TOPIC)
    assert f"{dead}: ConnectionRefusedError" in str(failed.value)
    assert f"{url} answered 500 oh dear" in str(failed.value)


async def test_namespace_is_unknown_once_two_nodes_say_so(http: aiohttp.ClientSession) -> None:
    unknown = said(404, "namespace demo/orders not found")
    async with answering(unknown) as (lags, _), answering(found()) as (knows, _), answering(unknown) as (last, asked):
        assert await Nodes([lags, knows, last], http, InOrder()).lookup(TOPIC) == FOUND
        with pytest.raises(NamespaceNotFoundError, match="demo/orders not found"):
            await Nodes([lags, last, knows], http, InOrder()).lookup(TOPIC)
        with pytest.raises(NamespaceNotFoundError):
            await Nodes([last], http, InOrder()).lookup(TOPIC)
        assert len(asked) == 2


@pytest.mark.parametrize(("text", "expected"), [("7", 7.0), ("soon", 1.0), ("-3", 1.0)])
async def test_unavailable_node_is_followed_by_another(http: aiohttp.ClientSession, text: str, expected: float) -> None:
    async with answering(said(503, "no leader", Retry_After=text)) as (url, asked), answering(found()) as (other, _):
        nodes = Nodes([url, other], http, InOrder())
        answer = await nodes.lookup(TOPIC)
        assert isinstance(answer, NotNow)
        assert (answer.reason, answer.passes_in_s) == (f"{url} answered 503 no leader", expected)
        assert await nodes.lookup(TOPIC) == FOUND
        assert len(asked) == 1


@pytest.mark.parametrize(("status", "kind"), [(401, UnauthenticatedError), (412, InvalidNameError)])
async def test_final_refusal_is_not_retried(http: aiohttp.ClientSession, status: int, kind: type[Exception]) -> None:
    async with answering(said(status, "no")) as (url, _), answering(found()) as (other, asked):
        with pytest.raises(kind, match=f"answered {status} no"):
            await Nodes([url, other], http, InOrder()).lookup(TOPIC)
        assert asked == []


@pytest.mark.parametrize(
    "urls", [[], "http://a:1", ["a:1"], ["ftp://a:1"], ["http://"], ["http://a:1?x=1"], ["http://a:1", "b"]]
)
def test_invalid_node_url_is_named(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"urls.*expected"):
        checked_urls(urls)
