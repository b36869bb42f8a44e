from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
from aiohttp import web
from support.demo import serving

from loadmanager.calling import HttpClient
from loadmanager.demo.lookup import LookupAnswer, TopicLookup

TOPIC = "persistent://demo/orders/topic-000"
PATH = "/lookup/v2/topic/persistent/demo/orders/topic-000"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


async def found(_request: web.Request) -> web.Response:
    return web.json_response({"brokerId": "b:1", "brokerUrl": "tcp://b:2", "nativeUrl": "tcp://b:2"})


async def busy(_request: web.Request) -> web.Response:
    return web.json_response({"reason": "no broker"}, status=503, headers={"Retry-After": "2"})


def broker_url(answer: LookupAnswer) -> str | None:
    return answer.data.broker_url if answer.data is not None else None


async def test_the_answer_says_where_the_owner_listens(http: HttpClient) -> None:
    async with serving([web.get(PATH, found)]) as url:
        assert broker_url(await TopicLookup([url], http).ask(TOPIC)) == "tcp://b:2"


async def test_a_redirect_is_not_followed_and_the_next_node_is_asked(http: HttpClient) -> None:
    async with serving([web.get(PATH, found)]) as target, serving([web.get(PATH, found)]) as other:

        async def elsewhere(_request: web.Request) -> web.Response:
            return web.Response(status=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": f"{target}{PATH}"})

        async with serving([web.get(PATH, elsewhere)]) as url:
            lookup = TopicLookup([url, other], http)
            assert broker_url(await lookup.ask(TOPIC)) is None
            assert broker_url(await lookup.ask(TOPIC)) == "tcp://b:2"


async def test_a_503_says_when_to_ask_again_and_does_not_blame_the_node(http: HttpClient) -> None:
    async with serving([web.get(PATH, busy)]) as url, serving([web.get(PATH, found)]) as other:
        lookup = TopicLookup([url, other], http)
        assert await lookup.ask(TOPIC) == LookupAnswer(None, 2.0)
        assert await lookup.ask(TOPIC) == LookupAnswer(None, 2.0)


async def test_after_a_node_that_is_gone_the_next_one_is_asked(http: HttpClient) -> None:
    async with serving([web.get(PATH, found)]) as url:
        lookup = TopicLookup([NOBODY, url], http)
        assert broker_url(await lookup.ask(TOPIC)) is None
        assert broker_url(await lookup.ask(TOPIC)) == "tcp://b:2"
        assert broker_url(await lookup.ask(TOPIC)) == "tcp://b:2"


async def test_each_client_starts_with_another_node(http: HttpClient) -> None:
    async with serving([web.get(PATH, found)]) as url:
        assert broker_url(await TopicLookup([NOBODY, NOBODY, url], http, first=5).ask(TOPIC)) == "tcp://b:2"


async def test_an_answer_that_is_none_is_no_answer(http: HttpClient) -> None:
    async def nonsense(_request: web.Request) -> web.Response:
        return web.Response(body=b"{}")

    async with serving([web.get(PATH, nonsense)]) as url:
        assert broker_url(await TopicLookup([url], http).ask(TOPIC)) is None
