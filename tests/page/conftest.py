"""One node, its brokers and one browser for all tests of the page, which run one after the other on one event loop.

What a test changes it changes back, or does to a bundle or broker that is its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, async_playwright, expect
from support.browser import find_browser
from support.nodes import Cluster, RunningNode
from support.page import BROKERS, BUNDLES, NAMESPACE, Shown, a_record_of, a_tab, report
from support.waiting import patience


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium without a window."""
    async with async_playwright() as driver:
        expect.set_options(timeout=1000 * patience())
        browser = await driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(browser: Browser) -> AsyncIterator[Cluster]:
    """A node that leads, four brokers of different usage, and a namespace all of whose bundles have owners."""
    del browser  # first, so that nothing is started where there is none
    async with Cluster() as cluster:
        leader = await cluster.start_leader()
        for broker in BROKERS:
            await cluster.a_broker(broker, a_record_of(broker))
        bundles = await cluster.a_namespace(NAMESPACE, bundles={"numBundles": BUNDLES})
        await _look_everything_up(leader, bundles)
        await report(cluster)
        await _remember(leader)
        yield cluster


async def _look_everything_up(leader: RunningNode, bundles: list[str]) -> None:
    waiting, number = set(bundles), 0
    while waiting:
        topic = f"persistent://{NAMESPACE}/topic-{number}"
        number += 1
        if leader.bundle_of(topic) in waiting:
            waiting.discard(leader.bundle_of(topic))
            assert (await leader.lookup(topic)).status == 200


async def _remember(leader: RunningNode) -> None:
    """Fill the heat map with the current state for the last minutes."""
    now_ms = time.time_ns() // 1_000_000
    for ago_ms in range(0, 300_000, 10_000):
        for of in ("bundles", "brokers"):
            await leader.node.timeline_memory.look(of, now_ms - ago_ms)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Browser context shared by all tabs, so that the page's files are fetched once."""
    context = await browser.new_context()
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def shown(context: BrowserContext, cluster: Cluster) -> AsyncIterator[Shown]:
    """A tab of its own."""
    async with a_tab(context, cluster) as shown:
        yield shown
