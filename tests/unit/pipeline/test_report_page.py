"""The page that a run leaves: whole without a network, with every section and picture, also when there is nothing."""

from __future__ import annotations

import hashlib
import io
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pandas as pd
from support.reported import about_days, contents_of

from loadmanager.pipeline.reporting.about import About
from loadmanager.pipeline.reporting.page import PAGE, make_report
from loadmanager.pipeline.reporting.sections import make_sections

SECTIONS = [
    *("brokers", "imbalance", "bundles", "capacity", "forecast", "league", "moves", "advice", "costs", "rejected"),
]
PICTURES = {"brokers": 1, "imbalance": 1, "bundles": 1, "capacity": 1, "forecast": 2, "league": 1, "moves": 1}
VENDOR = files("loadmanager.pipeline.reporting") / "page" / "vendor"
UNCHECKED = {"README.md", "SHA256SUMS"}


class Page(HTMLParser):
    """What is in a page: the sections by their names, with their text and pictures, and all that is referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.pictures: dict[str, list[str]] = {}
        self.references: list[str] = []
        self.ids: set[str] = set()
        self._open: list[str] = []
        self._name = ""
        self._is_picture = False
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "link"):
            self._open.append(tag)
        if tag == "section":
            self._name = given["id"] or ""
            self.sections[self._name], self.pictures[self._name] = "", []
        self._is_picture = given.get("type") == "application/json"
        self.ids |= {each for key, each in attrs if key == "id" and each}
        self.references += [each for key in ("src", "href") if (each := given.get(key))]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._is_picture = False
        if tag == "section":
            self._name = ""

    def handle_data(self, data: str) -> None:
        if self._is_picture:
            self.pictures[self._name].append(data)
        elif self._name:
            self.sections[self._name] += data


def test_every_section_is_there_with_its_pictures_and_nothing_outside_is_referred_to() -> None:
    made = make_report(contents_of(20), about_days(20))
    page = Page(made[PAGE].decode())
    assert list(page.sections) == SECTIONS
    assert {name: len(each) for name, each in page.pictures.items() if each} == PICTURES
    assert [each for each in page.references if not each.startswith(("#", "data:")) and each not in made] == []
    assert {each[1:] for each in page.references if each.startswith("#")} <= page.ids
    assert "left out: a: damaged" in page.sections["rejected"]


def test_every_section_answers_its_question() -> None:
    sections = {each.name: each for each in make_sections(contents_of(20), about_days(20))}
    assert all(each.question.endswith("?") for each in sections.values())
    assert sections["brokers"].answer == (
        "b2:8080 most: 70 % on the mean, 95 % in its highest report."
        " 1 of 6 were above 85 % on the mean of any 5 minutes."
    )
    assert "carried most: 31 MB/s, 12 % of all." in sections["bundles"].answer
    assert "is too small from 2026-10-23 on, by the median forecast; cpu is first" in sections["capacity"].answer
    assert "3 went back" in sections["moves"].answer
    assert sections["league"].answer == (
        "For the fleet as-recorded: TransferShedder is recommended, by 20 days and 3 seeds; ranks of one day and those"
        " of the next have a correlation of 0.31. For the fleet one-less: none is recommended. 4 whole days are known."
    )
    assert "In the back-test 79 % were" in sections["forecast"].answer


def test_a_picture_has_as_many_marks_as_a_screen_can_show_and_no_more() -> None:
    page = Page(make_report(contents_of(54), about_days(54))[PAGE].decode())
    for text in (each for pictures in page.pictures.values() for each in pictures):
        spec = json.loads(text)
        rows = pd.read_csv(io.StringIO(spec["data"]["values"]))
        per_row = rows.groupby(rows.columns[0]).size().max() if "high" in rows and "mean" in rows else len(rows)
        assert 0 < per_row <= 24 * 7 + 1 or "predicted" in rows
        assert len(rows) <= 30 * 160


def test_names_from_the_history_are_text_and_never_markup() -> None:
    evil = "</script><script>alert(1)</script>"
    advice = pd.DataFrame({"kind": ["split"], "subject": [f"t/{evil}/0x0_0x1"], "text": [evil], "evidence": ["{}"]})
    contents = contents_of(2)
    contents |= {"advice": advice, "bundle_times": contents["bundle_times"].assign(bundle=evil)}
    text = make_report(contents, about_days(2))[PAGE].decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "why: &lt;b&gt;" in text


def test_the_policy_names_the_two_scripts_and_allows_no_request() -> None:
    text = make_report(contents_of(2), about_days(2))[PAGE].decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src ")
    scripts = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert len(scripts) == policy.count("sha256-") == 2
    assert not re.search(r"https?:(?!//www\.w3\.org/|//vega\.github\.io/)", text.replace(scripts[0], ""))


def test_the_tables_are_beside_the_page_with_all_digits_and_the_page_shows_their_beginning() -> None:
    hot = pd.DataFrame({"bundle": [f"b{n}" for n in range(30)], "load": [1_234_567.25] * 30, "share": [0.1234] * 30})
    hot["start_ms"] = 1_790_000_000_000
    made = make_report({**contents_of(2), "hot_bundles": hot}, about_days(2))
    table = pd.read_csv(io.BytesIO(made["hot_bundles.csv"]))
    assert table["load"].tolist() == hot["load"].tolist()
    assert table["start"].tolist() == ["2026-09-21 14:13:20"] * 30
    text = made[PAGE].decode()
    assert "hot_bundles: the first 25 of 30 rows" in text
    assert '<td class="number">1.23 MB/s</td><td class="number">12.3 %</td>' in text


def test_a_section_whose_step_has_not_been_run_says_so() -> None:
    page = Page(make_report({}, About("run-1", "/var/history", "/out", None, None))[PAGE].decode())
    for name, step in (("imbalance", "balance"), ("league", "whatif"), ("capacity", "capacity"), ("advice", "advice")):
        assert f"the step {step} has not been run" in page.sections[name]
    assert not any(page.pictures.values())


def test_a_section_whose_tables_are_empty_says_why() -> None:
    empty = {name: frame.iloc[:0] for name, frame in contents_of(2).items()}
    sections = {each.name: each for each in make_sections(empty, About("run-1", "/var/history", "/out", 0, 1))}
    assert not any(each.has_something for each in sections.values())
    assert sections["advice"].empty == "There is nothing to advise."
    assert sections["rejected"].empty == "Every row of the range can be counted on."
    make_report(empty, About("run-1", "/var/history", "/out", 0, 1))


def test_what_is_used_of_others_has_the_hash_that_is_listed_and_its_licence() -> None:
    listed = {name: digest for digest, name in map(str.split, (VENDOR / "SHA256SUMS").read_text().splitlines())}
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in VENDOR.iterdir()}
    assert {name: digest for name, digest in found.items() if name not in UNCHECKED} == listed
    told = (VENDOR / "README.md").read_text()
    assert [name for name in listed if f"`{name}`" not in told] == []
