"""Speed of the page with 1,000 brokers and 100,000 bundles, in a headless Chromium: frames per second with one update
each second, duration of long tasks, and time to draw a heat map of one day. The baseline is the frame rate of an empty
page in the same browser.
"""

from __future__ import annotations

import asyncio
import sys

from measure import Measured, show
from playwright.async_api import Page, async_playwright
from support.browser import find_browser
from support.large_fleet import a_large_fleet

SECONDS = 15
_FRAMES = """async (ms) => {
  const tasks = [];
  const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((each) => each.duration)));
  observer.observe({ type: "longtask" });
  let frames = 0, stop = performance.now() + ms;
  while (performance.now() < stop) { await new Promise(requestAnimationFrame); frames += 1; }
  observer.disconnect();
  return [frames / (ms / 1000), tasks.length, Math.max(0, ...tasks)];
}"""
_SCROLLED = """() => {
  const body = document.querySelector(".rows .body.long");
  let down = 0;
  const scroll = () => { body.scrollTop = (down += 40) % body.scrollHeight; requestAnimationFrame(scroll); };
  scroll();
}"""
_A_DAY = """async () => {
  const canvas = document.querySelector(".map canvas");
  const pixels = () => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join("");
  const before = pixels(), began = performance.now();
  [...document.querySelectorAll("button")].find((each) => each.textContent === "24 h").click();
  do await new Promise(requestAnimationFrame); while (pixels() === before);
  return performance.now() - began;
}"""


async def _frames(page: Page) -> list[float]:
    figures: list[float] = await page.evaluate(_FRAMES, 1000 * SECONDS)
    return figures


async def measure(executable: str) -> None:
    async with async_playwright() as driver, a_large_fleet() as fleet:
        browser = await driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        empty, _, _ = await _frames(page)
        await page.goto(f"{fleet.url}/#/fleet")
        await page.locator(".rows .body.long").wait_for()
        still = await _frames(page)
        await page.evaluate(_SCROLLED)
        scrolled = await _frames(page)
        await page.goto(f"{fleet.url}/#/heat?range=900")
        await page.locator(".map canvas").wait_for()
        await page.wait_for_timeout(1000)
        day_ms: float = await page.evaluate(_A_DAY)
        await browser.close()
    show(
        f"The page before {fleet.brokers:,} brokers with {fleet.bundles:,} bundles",
        [
            Measured("an empty page", empty, "frames/s"),
            Measured("a picture each second", still[0], "frames/s", 0.9 * empty, at_least=True),
            Measured("the longest task meanwhile", still[2], "ms", 100),
            Measured("scrolled all the time", scrolled[0], "frames/s", 0.8 * empty, at_least=True),
            Measured("the longest task meanwhile", scrolled[2], "ms", 100),
            Measured("tasks above 50 ms", still[1] + scrolled[1], f"in {2 * SECONDS} s"),
            Measured("24 h of heat map", day_ms, "ms", 1000),
        ],
    )


def main() -> int:
    executable = find_browser()
    if executable is None:
        print("no Chromium was found: apt-get install chromium", file=sys.stderr)
        return 1
    asyncio.run(measure(executable))
    return 0


if __name__ == "__main__":
    sys.exit(main())
