"""The page of a node in a tab of a browser, for tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect
from support.nodes import Cluster, RunningNode
from support.registrations import a_record, load_of
from support.servers import listen, serve_app
from support.waiting import patience
from yarl import URL

from loadmanager.http.app import make_app
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats, ResourceUsage

BROKERS = ("b1:8080", "b2:8080", "b3:8080", "b4:8080")
CPU = {"b1:8080": 92.0, "b2:8080": 61.0, "b3:8080": 40.0, "b4:8080": 31.0}
NAMESPACE = "t/ns"
BUNDLES = 16

on_one_loop = pytest.mark.asyncio(loop_scope="session")

# Of each text its contrast with what is behind it, by the formula of WCAG 2; those below 4.5.
FAINT = """(root) => {
  const luminance = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const shares = [...canvas.getImageData(0, 0, 1, 1).data].map((c) => c / 255);
    const [r, g, b] = shares.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
    }
  };
  const faint = [];
  for (const each of document.querySelectorAll(`${root} *`)) {
    const hasText = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !each.checkVisibility() || each.closest(":disabled, option, .hidden")) continue;
    const [a, b] = [luminance(getComputedStyle(each).color), luminance(ground(each))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(`${each.tagName} ${each.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""


@dataclass
class Shown:
    """The page of a node in a tab of its own, and the cluster behind it. `complaints` are the browser's: errors of
    scripts, and what the content security policy has refused.
    """

    page: Page
    node: RunningNode
    cluster: Cluster
    bundles: list[str]
    complaints: list[str] = field(default_factory=list)

    async def open(self, mirror: str) -> None:
        """Open a view by its address, such as `fleet` or `bundle/t/ns/0x00000000_0x10000000`."""
        await self.page.goto(f"{self.node.node.service_url}/#/{mirror}")
        await expect(self.page.get_by_text("live", exact=True)).to_be_visible()

    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    async def press(self, name: str) -> None:
        """Press a button of the view."""
        await self.page.locator("main").get_by_role("button", name=name, exact=True).click()

    async def agree(self, verb: str) -> None:
        """Press this button of the dialog, wait until the server has succeeded, and close the dialog."""
        await self.dialog().get_by_role("button", name=verb, exact=True).click()
        await expect(self.dialog().locator(".done, .problem")).to_be_visible()
        await expect(self.dialog().locator(".problem")).to_have_count(0)
        await self.dialog().get_by_role("button", name="Close", exact=True).click()
        await expect(self.dialog()).to_have_count(0)

    async def answer_with(self, method: str, path: str, **answer: Any) -> None:  # noqa: ANN401 - playwright's options
        """Intercept that request in the browser, and answer it with this."""

        async def answered(route: Any) -> None:  # noqa: ANN401 - playwright's
            if route.request.method != method:
                await route.fallback()
            elif answer.get("abort"):
                await route.abort("connectionrefused")
            else:
                await route.fulfill(**answer)

        await self.page.route(lambda url: URL(url).path == path, answered)

    def note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


@asynccontextmanager
async def a_tab(context: BrowserContext, cluster: Cluster) -> AsyncIterator[Shown]:
    """One more tab. At its end the browser may not have complained of anything."""
    context.set_default_timeout(1000 * patience())
    node, page = cluster.nodes[0], await context.new_page()
    shown = Shown(page, node, cluster, node.node.mirror.namespaces[NAMESPACE].state.bundle_names())
    page.on("console", shown.note)
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    try:
        yield shown
    finally:
        await page.close()
    assert shown.complaints == []


@asynccontextmanager
async def a_browser_of(browser: Browser, cluster: Cluster, **options: Any) -> AsyncIterator[Shown]:  # noqa: ANN401 - playwright's
    """A tab with settings of its own, such as the size of a screen."""
    async with AsyncExitStack() as stack:
        context = await browser.new_context(**options)
        stack.push_async_callback(context.close)
        yield await stack.enter_async_context(a_tab(context, cluster))


def a_record_of(
    broker: str, loads: Mapping[str, NamespaceBundleStats] | None = None, url: str | None = None, *, cpu: float = 0.0
) -> LocalBrokerData:
    """The record of one of `BROKERS`, without a limit of its memory."""
    record = a_record(broker, loads, agent_url=url, cpu=cpu)
    return {**record, "memory": ResourceUsage(usage=0.0, limit=0.0)}


async def report(cluster: Cluster) -> None:
    """Have each broker tell its usage, and a load of each bundle that it has."""
    state = cluster.nodes[0].node.mirror.namespaces[NAMESPACE].state
    owners = [ownership.owner and ownership.owner.broker for ownership in state.ownerships]
    for broker in BROKERS:
        agent, bundles = cluster.brokers[broker], zip(state.bundle_names(), owners, strict=True)
        loads = {bundle: load_of(3.0) for bundle, owner in bundles if owner == broker}
        await agent.report(a_record_of(broker, loads, agent.url, cpu=CPU[broker]))


@asynccontextmanager
async def away(node: RunningNode) -> AsyncIterator[None]:
    """Close the node's port inside the block, and open it again afterwards."""
    port = URL(str(node.node.service_url)).port
    assert port is not None
    await node.vanish()
    yield
    node._runner = await serve_app(make_app(node.node), listen(port))
