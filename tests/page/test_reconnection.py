"""A page that loses its node says so, and comes back by itself."""

from __future__ import annotations

import re

from playwright.async_api import Browser, expect
from support.nodes import Cluster
from support.page import Shown, away, on_one_loop
from support.waiting import patience

pytestmark = on_one_loop


async def test_a_node_that_goes_away_and_comes_back(shown: Shown) -> None:
    await shown.open("fleet")
    view, lost = shown.page.locator("main"), shown.page.get_by_role("alert").filter(has_text="This node is not heard")
    rows = shown.page.get_by_role("table", name="Brokers").locator("[data-row]")
    await expect(rows).to_have_count(4)
    async with away(shown.node):
        await expect(lost).to_contain_text(re.compile(r"What you see is \d+ s old"))
        await expect(view).to_have_class("stale")
        await expect(rows).to_have_count(4)  # what was known is still there
        await lost.get_by_role("button", name="Try now").click()
        await expect(lost).to_contain_text("tried again")
    await expect(lost).to_have_count(0)
    await expect(view).not_to_have_class("stale")
    await shown.node.put("/loadbalance/v1/dry-run")
    try:
        await expect(shown.page.locator(".notice").filter(has_text="Dry run")).to_be_visible()
    finally:
        await shown.node.ask("DELETE", "/loadbalance/v1/dry-run")


async def test_what_was_decided_meanwhile_is_made_up_for(shown: Shown) -> None:
    bundle = shown.bundles[2]
    await shown.open("decisions")
    await shown.page.get_by_placeholder("in subject or sentence").fill(bundle)
    entries = shown.page.get_by_role("list", name=re.compile("Decisions")).get_by_role("listitem")
    await expect(entries.first).to_be_visible()
    before = await entries.count()
    async with away(shown.node):
        await expect(shown.page.locator("main")).to_have_class("stale")
        await shown.node.unload(bundle)
    await expect(entries.nth(before)).to_be_visible()


async def test_page_continues_with_another_node_when_its_own_dies(browser: Browser) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader()
        dying = await cluster.start_node()
        await cluster.known_everywhere(lambda node: len(node.node.mirror.nodes) == 2)
        page = await browser.new_page()
        page.set_default_timeout(1000 * patience())
        try:
            await page.goto(f"{dying.node.service_url}/#/decisions")
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
            await dying.kill()
            await page.wait_for_url(f"{leader.node.service_url}/#/decisions")
            await expect(page.get_by_text("live", exact=True)).to_be_visible()
        finally:
            await page.close()
