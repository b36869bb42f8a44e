"""The page of a node that a reverse proxy has under a path of its own."""

from __future__ import annotations

from playwright.async_api import BrowserContext, expect
from support.nodes import Cluster
from support.page import Shown, a_tab, on_one_loop
from support.prefix_proxy import a_proxy

pytestmark = on_one_loop


async def test_page_requests_stay_below_its_path(context: BrowserContext, cluster: Cluster) -> None:
    async with a_proxy(cluster.nodes[0].node.service_url) as url, a_tab(context, cluster) as shown:
        await _open(shown, f"{url}/#/fleet")
        await expect(shown.page.get_by_role("table", name="Brokers")).to_be_visible()
        await _open(shown, f"{url}/#/broker/b4:8080")
        await shown.press("Exclude…")
        await shown.agree("Exclude")
        assert cluster.nodes[0].node.mirror.operator_config.controls.excluded == {"b4:8080"}
        await shown.press("Include again…")
        await shown.agree("Include")


async def test_missing_slash_is_explained(context: BrowserContext, cluster: Cluster) -> None:
    async with a_proxy(cluster.nodes[0].node.service_url) as url, a_tab(context, cluster) as shown:
        said = shown.page.get_by_text("with a slash at the end")
        await shown.page.goto(url)
        await expect(said).to_be_visible()
        await _open(shown, f"{url}/#/fleet")
        await expect(said).to_be_hidden()
        shown.complaints.clear()  # of files that have no type because they are not there


async def _open(shown: Shown, url: str) -> None:
    await shown.page.goto(url)
    await expect(shown.page.get_by_text("live", exact=True)).to_be_visible()
