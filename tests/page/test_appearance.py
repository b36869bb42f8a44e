"""Light and dark, a phone, the keyboard, and who does not see it."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.async_api import Browser, expect
from support.nodes import Cluster
from support.page import FAINT, Shown, a_browser_of, on_one_loop

pytestmark = on_one_loop

VIEWS = (
    "fleet",
    "heat?range=900",
    "decisions",
    "plans",
    "drains",
    "audit",
    "broker/b1:8080",
    "bundle/t/ns/0x00000000_0x10000000",
)

# What can be operated and has no name; ids that are there twice; headings of the first order but one.
_NAMELESS = """() => {
  const isNamed = (each) => each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
    || each.labels?.length || each.textContent.trim() || each.title;
  const operated = document.querySelectorAll("button, a, input, select, textarea, progress, canvas, nav, dialog");
  const nameless = [...operated].filter((each) => !isNamed(each)).map((each) => each.outerHTML.slice(0, 100));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const twice = ids.filter((id, n) => ids.indexOf(id) !== n);
  const headings = document.querySelectorAll("h1").length === 1 ? [] : ["not one h1"];
  return [...nameless, ...twice, ...headings];
}"""

# What a component says of a cell that changes as soon as it is shown, after the browser has painted.
_SAID_OF_A_CELL = """async () => {
  const { html, render, Cell, useCell } = await import("/page/ui.js");
  const cell = new Cell("before");
  const Said = () => html`<p>${useCell(cell)}</p>`;
  const root = document.createElement("div");
  render(html`<${Said} />`, root);
  cell.value = "after";
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 200)));
  return root.textContent;
}"""

_IS_INSIDE = """() => {
  const now = document.activeElement;
  return now === document.body || document.querySelector("dialog").contains(now);
}"""


async def _shown(shown: Shown, view: str) -> None:
    await shown.open(view)
    await expect(shown.page.locator("h1")).to_be_attached()
    await expect(shown.page.get_by_text("Loading…")).to_have_count(0)
    await expect(shown.page.get_by_text("Asking the leader…")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_contrast_and_names(browser: Browser, cluster: Cluster, scheme: Literal["light", "dark"]) -> None:
    async with a_browser_of(browser, cluster, color_scheme=scheme) as shown:
        for view in VIEWS:
            await _shown(shown, view)
            assert await shown.page.evaluate(FAINT, "#page") == [], view
            assert await shown.page.evaluate(_NAMELESS) == [], view


async def test_every_view_fits_a_phone(browser: Browser, cluster: Cluster) -> None:
    async with a_browser_of(browser, cluster, viewport={"width": 360, "height": 740}) as shown:
        for view in VIEWS:
            await _shown(shown, view)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await shown.page.evaluate(wide) == 0, view


async def test_the_colours_are_those_of_the_system_until_somebody_chooses(browser: Browser, cluster: Cluster) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    async with a_browser_of(browser, cluster, color_scheme="dark") as shown:
        await shown.open("fleet")
        dark = await shown.page.evaluate(ground)
        await shown.page.keyboard.press("t")
        light = await shown.page.evaluate(ground)
        assert light != dark
        await shown.page.reload()
        assert await shown.page.evaluate(ground) == light
        await shown.page.emulate_media(color_scheme="light")
        await shown.page.get_by_role("button", name="Colours: light").click()
        assert await shown.page.evaluate(ground) == dark
        await shown.page.get_by_role("button", name="Colours: dark").click()
        assert await shown.page.evaluate(ground) == light


async def test_what_changes_before_the_browser_has_painted_is_shown(shown: Shown) -> None:
    await shown.open("fleet")
    assert await shown.page.evaluate(_SAID_OF_A_CELL) == "after"


async def test_the_keyboard_is_enough(shown: Shown) -> None:
    press = shown.page.keyboard.press
    views = shown.page.get_by_role("navigation", name="Views")
    await shown.open("fleet")
    await expect(shown.page.locator("[data-row]").first).to_be_visible()
    await press("?")
    await expect(shown.dialog()).to_contain_text("the next and the previous row")
    await press("2")  # not while a dialog is open
    await press("Escape")
    await expect(shown.dialog()).to_have_count(0)
    await expect(views.get_by_role("link", name="Fleet")).to_have_attribute("aria-current", "page")
    for _ in "jjk":
        await press(_)
    await expect(shown.page.locator("[data-row]").first).to_be_focused()
    await press("Enter")
    await expect(shown.page.get_by_role("heading", name="b1:8080")).to_be_visible()
    await press("/")
    await expect(shown.page.get_by_role("combobox", name="Find a broker")).to_be_focused()
    await press("2")  # is typed
    await expect(shown.page.get_by_role("heading", name="b1:8080")).to_be_visible()
    await shown.page.locator("main").focus()
    for key, name in zip("123456", ("Fleet", "Heat map", "Decisions", "Plans", "Drains", "Audit"), strict=True):
        await press(key)
        await expect(views.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
    await shown.page.go_back()
    await expect(shown.page.get_by_role("heading", name="Drains")).to_be_visible()


async def test_a_time_is_selected_with_the_keyboard(shown: Shown) -> None:
    await shown.open("heat?range=900")
    surface = shown.page.locator(".map canvas")
    await surface.focus()
    await shown.page.keyboard.press("ArrowLeft")
    await expect(shown.page.locator("#map-says")).to_contain_text("s")
    for _ in range(3):
        await shown.page.keyboard.press("Shift+ArrowLeft")
    await expect(shown.page.get_by_role("heading", name="Decisions from")).to_be_visible()
    await expect(shown.page.locator("#map-says")).to_contain_text("moves")
    await shown.page.keyboard.press("Escape")
    await expect(shown.page.get_by_role("heading", name="Decisions from")).to_have_count(0)


async def test_the_focus_comes_back_from_a_dialog_and_stays_in_it_meanwhile(shown: Shown) -> None:
    await shown.open("broker/b3:8080")
    button = shown.page.get_by_role("button", name="Drain…")
    await button.focus()
    await shown.page.keyboard.press("Enter")
    await expect(
        shown.dialog().get_by_role("button", name="Cancel")
    ).to_be_focused()  # what is grave is not one key away
    for _ in range(4):
        await shown.page.keyboard.press("Tab")
        assert await shown.page.evaluate(_IS_INSIDE)
    await shown.page.keyboard.press("Escape")
    await expect(button).to_be_focused()


# The texts of a drawn heat map above the cells, and the bars: [text or "", left, top, right, bottom].
_DRAWN_IN_LANE = """async ([from, columns, leaders]) => {
  const { draw, imageOf, LANE } = await import("/page/heat_drawing.js");
  const canvas = document.querySelector(".map canvas");
  const moves = leaders.map(([ms]) => [ms, "t/ns/0x00000000_0x10000000", "b1:8080", "b2:8080", "shed"]);
  const cells = new Uint8Array(columns).fill(50);
  const timeline = { of: "brokers", from, stepMs: 1000, columns, rows: ["b1:8080"], cells, moves, splits: [], leaders };
  const drawn = [], context = canvas.getContext("2d");
  const note = (text, x, y, width, height) => y + height <= LANE && drawn.push([text, x, y, x + width, y + height]);
  context.fillRect = (x, y, width, height) => note("", x, y, width, height);
  context.fillText = (text, x, y) => note(text, x, y - 8, context.measureText(text).width, 10);
  draw(canvas, 300, 200, { timeline, image: imageOf(canvas, timeline), selection: null, cursor: null });
  delete context.fillRect;
  delete context.fillText;
  return drawn;
}"""


async def test_labels_of_leaders_cover_no_bar_and_stay_on_the_map(shown: Shown) -> None:
    await shown.open("heat?range=900")
    await expect(shown.page.locator(".map canvas")).to_be_visible()
    leaders = [[second * 1000, "n1:8080", epoch] for epoch, second in enumerate((2, 50, 58))]
    drawn = await shown.page.evaluate(_DRAWN_IN_LANE, [0, 60, leaders])
    labels, bars = [each for each in drawn if each[0]], [each for each in drawn if not each[0]]
    assert len(labels) >= 2
    assert len(bars) == 3
    for _, left, top, right, bottom in labels:
        assert left >= 0
        assert right <= 300
        assert all(bottom <= bar[2] or bar[4] <= top for bar in bars)
        assert not any(left < second * 5 < right for second in (2, 50, 58)), "a label that a line goes through"
