"""The page before 1,000 brokers with 100,000 bundles. How smooth that is, `benchmarks/bench_page.py` measures."""

from __future__ import annotations

from playwright.async_api import Browser, expect
from support.large_fleet import a_large_fleet
from support.page import on_one_loop
from support.waiting import patience

pytestmark = on_one_loop

_ELEMENTS = "document.getElementsByTagName('*').length"
# How many colours there are along a line through the middle of a canvas: one when nothing is drawn.
_COLOURS = """(canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, Math.floor(canvas.height / 2), canvas.width, 1).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
}"""


async def test_a_thousand_brokers_are_one_drawing_and_a_list_of_what_is_seen(browser: Browser) -> None:
    async with a_large_fleet() as fleet:
        page = await browser.new_page()
        page.set_default_timeout(1000 * patience())
        try:
            await page.goto(f"{fleet.url}/#/fleet")
            table = page.get_by_role("table", name="Brokers")
            await expect(table).to_have_attribute("aria-rowcount", "1001")
            await expect(page.get_by_label("At a glance")).to_contain_text("Bundles100,000")
            assert await page.evaluate(_ELEMENTS) < 1_500
            await expect(page.locator(".bars canvas")).to_be_visible()
            await page.wait_for_function(f"({_COLOURS})(document.querySelector('.bars canvas')) > 1")
            body = table.locator(".body")
            await page.get_by_role("columnheader", name="Broker").get_by_role("button").click()
            await expect(table.locator("[data-row]").first).to_contain_text("broker-0000")
            await body.evaluate("element => element.scrollTo(0, element.scrollHeight)")
            await expect(table.get_by_role("link", name="broker-0999.example.com:8080")).to_be_visible()
            await expect(table.get_by_role("link", name="broker-0000.example.com:8080")).to_have_count(0)
            assert await page.evaluate(_ELEMENTS) < 1_500
        finally:
            await page.close()


async def test_update_changes_figures_and_keeps_the_order_under_the_pointer(browser: Browser) -> None:
    async with a_large_fleet() as fleet:
        page = await browser.new_page()
        page.set_default_timeout(1000 * patience())
        await page.clock.install()
        try:
            await page.goto(f"{fleet.url}/#/fleet")
            rows = page.get_by_role("table", name="Brokers").locator("[data-row]")
            await rows.nth(3).hover()
            name = await rows.nth(3).get_attribute("data-row")
            figure = await rows.nth(3).locator(".meter").inner_text()
            await expect(rows.nth(3).locator(".meter")).not_to_have_text(figure)
            await page.clock.run_for(12_000)  # longer than it takes until rows are put in order by themselves
            assert await rows.nth(3).get_attribute("data-row") == name
        finally:
            await page.close()


async def test_a_day_of_a_thousand_brokers_is_a_heat_map(browser: Browser) -> None:
    async with a_large_fleet() as fleet:
        page = await browser.new_page()
        page.set_default_timeout(1000 * patience())
        try:
            await page.goto(f"{fleet.url}/#/heat?range=86400")
            await expect(page.locator(".map canvas")).to_be_visible()
            await page.wait_for_function(f"({_COLOURS})(document.querySelector('.map canvas')) > 20")
            assert await page.evaluate(_ELEMENTS) < 1_500
        finally:
            await page.close()
