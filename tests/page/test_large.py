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


# How often rows were put into the document while the list was scrolled by eight rows, one in each frame.
_SCROLLED_BY_ROWS = """async (body) => {
  const frame = () => new Promise(requestAnimationFrame);
  let changes = 0;
  const observer = new MutationObserver((all) => (changes += all.some((each) => each.type === "childList")));
  for (const at of [...Array(9).keys()]) {
    body.scrollTop = 200 * 34 + 34 * at;
    for (let n = 0; n < 3; n += 1) await frame();
    if (at === 0) observer.observe(body, { childList: true });
  }
  observer.disconnect();
  return changes;
}"""


# Whether rows fill the list from its upper to its lower edge.
_IS_COVERED = """(body) => {
  const rows = [...body.querySelectorAll("[data-row]")].map((each) => each.getBoundingClientRect());
  const { top, bottom } = body.getBoundingClientRect();
  return rows[0].top <= top && rows.at(-1).bottom >= bottom;
}"""


async def test_a_long_list_scrolls_without_new_rows_in_each_frame_and_moves_no_bars(browser: Browser) -> None:
    async with a_large_fleet(interval_s=3600) as fleet:
        page = await browser.new_page()
        page.set_default_timeout(1000 * patience())
        try:
            await page.goto(f"{fleet.url}/#/fleet")
            body = page.get_by_role("table", name="Brokers").locator(".body")
            await expect(body.locator("[data-row]").first).to_be_visible()
            assert await body.evaluate(_SCROLLED_BY_ROWS) == 2
            assert await body.evaluate(_IS_COVERED)
            bar = body.locator(".meter .fill").first
            await expect(bar).to_have_css("transition-duration", "0s")
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
