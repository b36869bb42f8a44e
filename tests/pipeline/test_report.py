"""The page that a run leaves: whole without a network, with every section and image, also when there is nothing."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from support.browser import find_browser, shown

from loadmanager.pipeline.forecast import HOUR_MS
from loadmanager.pipeline.report import PAGE, About, hold_out, make_report, make_sections

START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
ABOUT = About("run-1", "/var/history", START_MS, START_MS + 86_400_000, ["left out: a.parquet: damaged"], "a: <b>\n")
SECTIONS = [
    *("imbalance", "brokers", "bundles", "moves", "forecast", "capacity", "advice", "league", "costs", "rejected"),
]
WITH_FIGURES = ["imbalance", "brokers", "moves", "forecast", "capacity", "league"]


class Page(HTMLParser):
    """What is in a page: the sections by their names, with their text, and everything that is referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.figures: dict[str, list[str]] = {}
        self.references: list[str] = []
        self._open: list[str] = []
        self._name = ""
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "link", "img", "path", "use", "rect", "image"):
            self._open.append(tag)
        if tag == "section":
            self._name = given["id"] or ""
            self.sections[self._name], self.figures[self._name] = "", []
        if tag in ("svg", "img") and self._name:
            self.figures[self._name].append(tag)
        self.references += [each for key in ("src", "href", "xlink:href") if (each := given.get(key))]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._name:
            self.sections[self._name] += data


def series(hours: int, seed: int = 1) -> pd.DataFrame:
    """Hours with a day in them."""
    at = np.arange(hours)
    noise = np.random.default_rng(seed).normal(0, 1, hours)
    return pd.DataFrame({"start_ms": START_MS + at * HOUR_MS, "load": 100 + 50 * np.sin(at * np.pi / 12) + noise})


def contents() -> dict[str, pd.DataFrame]:
    times = START_MS + np.arange(12) * 300_000
    usage = pd.DataFrame([("b1:8080", at, 0.5) for at in times] + [("b2:8080", at, 0.9) for at in times[::2]])
    return {
        "imbalance": pd.DataFrame({"start_ms": np.delete(times, 5), "max_over_mean": np.linspace(1, 2, 11)}),
        "time_above": pd.DataFrame({"what": ["imbalance"], "subject": ["cluster"], "share": [0.25]}),
        "broker_usage": usage.set_axis(["broker", "start_ms", "usage"], axis=1),
        "brokers": pd.DataFrame({"broker": ["b1:8080", "b2:8080"], "max_usage": [0.5, np.nan]}),
        "hot_bundles": pd.DataFrame({"start_ms": [START_MS], "bundle": ["t/ns/0x0_0x1"], "load": [1e6]}),
        "move_effects": pd.DataFrame({"predicted_after": [1.1, 1.2, None], "measured_after": [1.15, 1.1, 1.0]}),
        "namespace_hours": series(24 * 15).assign(namespace="t/<ns>"),
        "backtest": pd.DataFrame({"kind": ["namespace"], "key": ["t/<ns>"], "used": [True], "why": ["less error"]}),
        "capacity": pd.DataFrame(
            {
                "day": ["2026-09-22"] * 3,
                "start_ms": [START_MS] * 3,
                "quantile": [0.1, 0.5, 0.9],
                "needed": pd.array([2, 3, 4], dtype="Int64"),
                "have": [3] * 3,
                "resource_first": ["cpu"] * 3,
                "exhausted_on": [None, None, "2026-09-22"],
                "exhausted_on_n1": [None, "2026-09-22", "2026-09-22"],
                "headroom": [0.3] * 3,
                "basis": ["15 whole days"] * 3,
            }
        ),
        "advice": pd.DataFrame({"kind": ["split"], "subject": ["t/ns/0x0_0x1"], "text": ["a & b"], "evidence": ["{}"]}),
        "league": pd.DataFrame(
            {
                "fleet": ["as-recorded", "as-recorded", "one-less", "one-less"],
                "place": [1, 2, 1, 2],
                "configuration": ["A", "B", "A", "B"],
                "time_above": [0.1, 0.2, 0.3, 0.4],
                "recommended": [True, False, False, False],
            }
        ),
        "cost_models": pd.DataFrame({"broker_class": ["8 cores"], "resource": ["cpu"], "base": [1.5]}),
        "rejected_rows": pd.DataFrame({"table": ["bundle_reports"], "reason": ["negative"], "count": [3]}),
    }


def test_every_section_is_there_with_its_figures_and_refers_to_nothing_outside() -> None:
    files = make_report(contents(), ABOUT)
    page = Page(files[PAGE].decode())
    assert list(page.sections) == SECTIONS
    assert [name for name in SECTIONS if page.figures[name]] == WITH_FIGURES
    outside = [each for each in page.references if not each.startswith(("#", "data:")) and each not in files]
    assert outside == []
    assert "the fleet of 3 brokers will do for the next 1 days" in page.sections["capacity"]
    assert "without any one broker from 2026-09-22 on" in page.sections["capacity"]
    assert "left out: a.parquet: damaged" in page.sections["rejected"]
    assert "2026-09-21 00:00:00" in page.sections["imbalance"]


def test_every_image_can_be_drawn() -> None:
    text = make_report(contents(), ABOUT)[PAGE].decode()
    vectors = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(vectors) == len(WITH_FIGURES) - 1
    for vector in vectors:
        assert len(list(ET.fromstring(vector).iter("{http://www.w3.org/2000/svg}path"))) > 5
    (image,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(image).startswith(b"\x89PNG")


def test_names_from_the_history_are_text_and_never_markup() -> None:
    files = make_report({**contents(), "advice": pd.DataFrame({"text": ["<script>alert(1)</script>"]})}, ABOUT)
    text = files[PAGE].decode()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "a: &lt;b&gt;" in text


def test_the_tables_are_beside_the_page_and_the_page_shows_their_beginning() -> None:
    many = pd.DataFrame({"kind": ["split"] * 30, "subject": [f"b{number}" for number in range(30)]})
    files = make_report({**contents(), "advice": many}, ABOUT)
    assert pd.read_csv(pd.io.common.BytesIO(files["advice.csv"])).equals(many)
    assert "the first 25 of 30 rows" in files[PAGE].decode()
    assert set(contents()) - {"broker_usage", "namespace_hours"} <= {name.removesuffix(".csv") for name in files}


def test_a_section_whose_step_has_not_been_run_says_so() -> None:
    page = Page(make_report({}, About("run-1", "/var/history", None, None))[PAGE].decode())
    for name, step in (("imbalance", "balance"), ("league", "whatif"), ("capacity", "capacity"), ("advice", "advice")):
        assert f"the step {step} has not been run" in page.sections[name]
    assert not any(page.figures.values())


def test_a_section_whose_tables_are_empty_says_why() -> None:
    empty = {name: frame.iloc[:0] for name, frame in contents().items()}
    sections = {each.name: each for each in make_sections(empty, About("run-1", "/var/history", 0, 1))}
    assert not any(each.has_something for each in sections.values())
    assert sections["advice"].empty == "There is nothing to advise."
    assert sections["rejected"].empty == "Every row of the range can be counted on."


def test_a_history_too_short_to_forecast_says_how_much_is_needed() -> None:
    short = {**contents(), "namespace_hours": series(20).assign(namespace="t/ns")}
    (section,) = (each for each in make_sections(short, ABOUT) if each.name == "forecast")
    assert not section.figures
    assert "t/ns: 20 hours are known, more than 24 are needed" in section.text


def test_the_last_day_is_forecast_by_what_was_known_before_it_alone() -> None:
    rows = series(24 * 15)
    found = hold_out(rows)
    assert isinstance(found, pd.DataFrame)
    assert found["start_ms"].tolist() == rows["start_ms"].tail(24).tolist()
    assert (found["q50"] - rows["load"].tail(24).to_numpy()).abs().max() < 10
    other = rows.assign(load=rows["load"].where(rows.index < 24 * 14, 0))
    again = hold_out(other)
    assert isinstance(again, pd.DataFrame)
    assert again.equals(found)


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("there is no Chromium here")
    for name, data in make_report(contents(), ABOUT).items():
        (tmp_path / name).write_bytes(data)
    page = shown(browser, tmp_path / PAGE)
    assert all(f'id="{name}"' in page for name in SECTIONS)
