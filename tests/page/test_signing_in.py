"""The page of a node that asks who is there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, expect
from support.nodes import a_leader
from support.page import NAMESPACE, Shown, a_tab, on_one_loop
from support.tokens import CLOSED, bearer, token_of

pytestmark = on_one_loop


@pytest_asyncio.fixture(loop_scope="session")
async def closed(browser: Browser) -> AsyncIterator[Shown]:
    """In a browser of its own: another node, and nothing that another tab has kept."""
    context = await browser.new_context()
    try:
        async with a_leader(**CLOSED) as (cluster, node):
            await cluster.a_broker()
            path = f"/admin/v2/namespaces/{NAMESPACE}"
            assert (await node.put(path, headers=bearer(token_of("root")))).status == 204
            async with a_tab(context, cluster) as shown:
                yield shown
    finally:
        await context.close()


async def test_who_has_no_token_sees_nothing_and_a_bad_one_is_refused(closed: Shown) -> None:
    await closed.page.goto(f"{closed.node.node.service_url}/#/fleet")
    await expect(closed.dialog()).to_contain_text("Sign in")
    await expect(closed.page.get_by_role("table")).to_have_count(0)
    await _enter(closed, "no.such.token")
    await expect(closed.dialog()).to_be_visible()
    await expect(closed.page.get_by_role("table")).to_have_count(0)
    await _enter(closed, token_of("root"))
    await expect(closed.page.get_by_role("table", name="Brokers")).to_be_visible()
    await expect(closed.dialog()).to_have_count(0)


async def test_what_a_role_may_not_do_is_refused_and_the_page_says_what_is_lacking(closed: Shown) -> None:
    await closed.page.goto(f"{closed.node.node.service_url}/#/broker/b1:8080")
    await _enter(closed, token_of("reader"))
    await expect(closed.page.get_by_label("Usage", exact=True)).to_be_visible()
    await closed.press("Drain…")
    await closed.dialog().get_by_role("button", name="Drain", exact=True).click()
    problem = closed.dialog().locator(".problem")
    await expect(problem).to_have_attribute("data-status", "403")
    await expect(problem).to_contain_text("OPERATE")
    assert closed.node.node.mirror.operator_config.controls.draining == {}
    await closed.dialog().get_by_role("button", name="Cancel").click()
    await closed.page.get_by_role("button", name="Sign out").click()
    await expect(closed.page.get_by_label("Usage", exact=True)).to_have_count(0)  # what the token has shown is gone
    await _enter(closed, token_of("operator"))
    await closed.press("Drain…")
    await closed.agree("Drain")
    await closed.page.keyboard.press("6")
    await expect(closed.page.get_by_role("list", name="Operations, newest first")).to_contain_text("operator")


async def _enter(closed: Shown, token: str) -> None:
    await closed.dialog().get_by_label("Token").fill(token)
    await closed.dialog().get_by_role("button", name="Sign in").click()
