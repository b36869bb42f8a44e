"""The report of the pipeline in a browser: every picture is drawn, tells what is under the pointer, and fits."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from support.page import FAINT, on_one_loop
from support.reported import RECOMMENDED, contents_of, summary_of

from loadmanager.pipeline.reporting.page import PAGE, make_report

pytestmark = on_one_loop

PICTURES = 8
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_COLOURS = """() => [...new Set([...document.querySelectorAll(".plot path, .plot line")]
  .flatMap((each) => [each.getAttribute("fill"), each.getAttribute("stroke")]).filter(Boolean))]"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for name, data in make_report(contents_of(54), summary_of(54), RECOMMENDED).items():
        (folder / name).write_bytes(data)
    return folder / PAGE


@asynccontextmanager
async def opened(browser: Browser, report: Path, at: str = "", **options: Any) -> AsyncIterator[Page]:  # noqa: ANN401 - playwright's
    """The report with all pictures drawn. Nothing else may have been asked for, and nothing complained of."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    asked, complaints = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    await page.goto(f"file://{report}{at}")
    await expect(page.locator("html[data-drawn]")).to_be_attached()
    yield page
    await context.close()
    assert [each for each in asked if not each.startswith(("data:", f"file://{report}"))] == []
    assert complaints == []


async def test_every_picture_is_drawn_in_the_colours_of_the_system(browser: Browser, report: Path) -> None:
    async with opened(browser, report, color_scheme="light") as page:
        await expect(page.locator(".plot svg")).to_have_count(PICTURES)
        light = set(await page.evaluate(_COLOURS))
        assert await page.evaluate(FAINT, "body") == []
        await page.emulate_media(color_scheme="dark")
        await expect(page.locator("html[data-drawn=dark]")).to_be_attached()
        await expect(page.locator(".plot svg")).to_have_count(PICTURES)
        assert len(light - set(await page.evaluate(_COLOURS))) > 5
        assert await page.evaluate(FAINT, "body") == []


async def test_hours_are_those_of_a_clock_with_24(browser: Browser, tmp_path: Path) -> None:
    for name, data in make_report(contents_of(1), summary_of(1)).items():
        (tmp_path / name).write_bytes(data)
    async with opened(browser, tmp_path / PAGE) as page:
        for section in ("brokers", "imbalance", "bundles"):
            axis = await page.locator(f"#{section} .plot svg .role-axis-label text").all_text_contents()
            assert "03:00" in axis, axis
            assert not any(re.search(r"[AP]M", text) for text in axis)


async def test_what_is_under_the_pointer_is_told_in_units(browser: Browser, report: Path) -> None:
    async with opened(browser, report, viewport={"width": 1400, "height": 900}) as page:
        for section, said in (
            ("imbalance", "highest"),
            ("brokers", "%"),
            ("bundles", "MB/s"),
            ("capacity", "needed"),
            ("forecast", "MB/s"),
        ):
            plot = page.locator(f"#{section} .plot svg").first
            await plot.scroll_into_view_if_needed()
            box = await plot.bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
            await expect(page.locator("#tip")).to_contain_text(said)
            await expect(page.locator("#tip")).to_contain_text("2026-1")
            await page.mouse.move(2, 2)
            await expect(page.locator("#tip")).to_be_hidden()


async def test_it_fits_a_phone_and_a_finger_is_told_what_it_touches(browser: Browser, report: Path) -> None:
    async with opened(browser, report, viewport={"width": 400, "height": 800}, has_touch=True) as page:
        assert await page.evaluate(_OVERFLOW) == 0
        for details in await page.locator("details").all():
            await details.evaluate("(each) => { each.open = true; }")
        assert await page.evaluate(_OVERFLOW) == 0
        plot = page.locator("#imbalance .plot svg")
        await plot.scroll_into_view_if_needed()
        await plot.tap()
        await expect(page.locator("#tip")).to_contain_text("median")


async def test_evidence_is_one_click_away_also_where_it_is_folded(browser: Browser, report: Path) -> None:
    async with opened(browser, report) as page:
        row = page.locator("#advice-4")
        await expect(row).to_be_hidden()
        await page.locator(".action", has_text="Partition").get_by_role("link", name="The evidence").click()
        await expect(row).to_be_in_viewport()
        await expect(row).to_contain_text("public/shop-1/0x10000000_0x20000000")
    async with opened(browser, report, "#advice-2") as page:
        await expect(page.locator("#advice-2")).to_be_in_viewport()
