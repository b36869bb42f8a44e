"""Page of the report: complete without a network, with every section and chart, also without data."""

from __future__ import annotations

import hashlib
import io
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pandas as pd
import pyarrow as pa
import pytest
from support.reported import HOUR_MS, RECOMMENDED, START_MS, WINDOW_MS, contents_of, summary_of

from loadmanager.pipeline.reporting.charts import distinct_labels, draw_band, draw_forecast, draw_heat
from loadmanager.pipeline.reporting.contents import collect
from loadmanager.pipeline.reporting.page import PAGE, make_report
from loadmanager.pipeline.reporting.sections import TEXTS, make_sections
from loadmanager.pipeline.step import Summary

SECTIONS = [
    *("brokers", "imbalance", "bundles", "capacity", "forecast", "league", "moves", "advice", "rejected"),
]
PICTURES = {"brokers": 1, "imbalance": 1, "bundles": 1, "capacity": 1, "forecast": 2, "league": 1, "moves": 1}
if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun

VENDOR = files("loadmanager.pipeline.reporting") / "page" / "vendor"
UNCHECKED = {"README.md", "SHA256SUMS"}


class Page(HTMLParser):
    """Content of a page: sections by name, with their text and pictures, and all references."""

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


def test_page_has_every_section_and_no_external_references() -> None:
    made = make_report(contents_of(20), summary_of(20))
    page = Page(made[PAGE].decode())
    assert list(page.sections) == SECTIONS
    assert {name: len(each) for name, each in page.pictures.items() if each} == PICTURES
    assert [each for each in page.references if not each.startswith(("#", "data:")) and each not in made] == []
    assert {each[1:] for each in page.references if each.startswith("#")} <= page.ids
    assert "left out: a: damaged" in page.sections["rejected"]


def test_every_section_answers_its_question() -> None:
    sections = {each.name: each for each in make_sections(contents_of(20), summary_of(20))}
    assert [*sections] == [*TEXTS]
    assert sections["brokers"].answer == (
        "Highest mean of the range: 70 % (b2:8080); of 5 minutes: 90 % (b2:8080); highest report: 95 % (b2:8080)."
        " 1 of 6 brokers had a mean of 5 minutes above 85 %."
    )
    assert "with 31 MB/s (12 % of all load)." in sections["bundles"].answer
    assert "is too small from 2026-10-23 on; cpu runs out first." in sections["capacity"].answer
    assert "of 399 measured moves" in sections["moves"].answer
    assert "3 of 7 finished moves" in sections["moves"].answer
    assert sections["league"].answer == (
        "For the fleet as-recorded: TransferShedder is recommended, from 20 days and 3 seeds."
        " For the fleet one-less: no recommendation. 4 whole days are known."
    )
    assert "In the back-test, 76.1 % of 1,000 hours" in sections["forecast"].answer
    assert sections["forecast"].points == ["public/new: short: needs 3 days of hourly windows, has 0.8."]


def test_figures_are_not_separated_from_their_units() -> None:
    text = make_report(contents_of(20), summary_of(20))[PAGE].decode()
    assert (
        "public/shop-1/0x10000000_0x20000000 with 31\N{NO-BREAK SPACE}MB/s (12\N{NO-BREAK SPACE}% of all load)" in text
    )
    assert "is too small from 2026-10-23 on" in text


def test_charts_have_a_bounded_number_of_marks() -> None:
    page = Page(make_report(contents_of(54), summary_of(54))[PAGE].decode())
    for text in (each for pictures in page.pictures.values() for each in pictures):
        spec = json.loads(text)
        rows = pd.read_csv(io.StringIO(spec["data"]["values"]))
        per_row = rows.groupby(rows.columns[0]).size().max() if "mean" in rows else len(rows)
        assert 0 < per_row <= 24 * 14 + 1 or "predicted" in rows
        assert len(rows) <= 30 * 160


def rows_of(spec: dict[str, Any]) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(spec["data"]["values"]))


def domain_of(spec: dict[str, Any]) -> list[int]:
    scales = [each["encoding"]["x"]["scale"] for each in spec["layer"] if "x" in each["encoding"]]
    (domain,) = {(scale["domainMin"], scale["domainMax"]) for scale in scales}
    return list(domain)


def test_band_breaks_at_gaps_and_its_axis_covers_known_time() -> None:
    at = [START_MS + 60_000 + n * WINDOW_MS for n in (*range(300), *range(420, 600))]
    spec = draw_band(pd.DataFrame({"start_ms": at, "value": 1.5}), "value", 1.2, "x").spec
    assert domain_of(spec) == [at[0], at[-1] + WINDOW_MS]
    steps = rows_of(spec)
    (gap,) = steps[steps["middle"].isna()]["start"].iloc[:-1]
    assert gap == at[299] + WINDOW_MS
    assert steps[steps["start"] > gap]["start"].min() == at[300]


def test_heat_map_and_forecast_cover_known_time() -> None:
    bins = pd.DataFrame({"b": ["a", "a"], "start": [100, 900], "end": [400, 950], "mean": 1.0, "high": 1.0})
    spec = draw_heat(bins, "b", "high", of_limit=True, label="x").spec
    assert domain_of(spec) == [100, 950]
    assert rows_of(spec)[["start", "end"]].to_numpy().tolist() == [[100, 400], [900, 950]]
    hours = pd.DataFrame({"start_ms": [START_MS + n * HOUR_MS for n in (0, 1, 5, 6)], "load": 1.0})
    forecast = pd.DataFrame({"start_ms": [START_MS + 7 * HOUR_MS], "q10": 1.0, "q50": 1.0, "q90": 1.0})
    spec = draw_forecast(hours, forecast, "x").spec
    assert domain_of(spec) == [START_MS, START_MS + 8 * HOUR_MS]
    assert rows_of(spec)["load"].isna().tolist() == [False, False, True, True, True, False, False, True]


@pytest.mark.parametrize(
    "names",
    [
        [f"pulsar-broker-prod-eu-{n}.internal.example.com:8080" for n in range(60)],
        [f"public/shop-{n % 3}/0x{n // 3:x}0000000_0x{n // 3 + 1:x}0000000" for n in range(30)],
        ["ThresholdShedder+LeastResourceUsageWithWeight", "ThresholdShedder+LeastLongTermMessageRate"],
    ],
)
def test_labels_are_shortened_in_the_middle_and_stay_distinct(names: list[str]) -> None:
    labels = distinct_labels(names, 16)
    assert len(set(labels)) == len(names)
    assert max(map(len, labels)) <= 28
    for label, name in zip(labels, names, strict=True):
        head, _, tail = label.partition("…")
        assert name.startswith(head)
        assert name.endswith(tail)
    assert distinct_labels(["b1:8080", "b2:8080"], 16) == ["b1:8080", "b2:8080"]


def test_section_below_its_minimum_says_how_much_is_missing() -> None:
    contents, summary = contents_of(20), summary_of(20)
    contents["imbalance"] = contents["imbalance"].tail(5)
    contents["move_effects"] = contents["move_effects"].tail(9)
    contents["backtest"] = contents["backtest"].assign(points=4)
    sections = {each.name: each for each in make_sections(contents, summary)}
    for name in ("brokers", "imbalance", "bundles"):
        assert "Too little for shares and a chart: 25 min known, 60 min needed." in sections[name].answer
        assert not sections[name].charts
    assert "Too little for a share and a chart: 9 measured moves, 10 needed." in sections["moves"].answer
    assert "Too little to judge the forecasts: 8 back-tested hours, 24 needed." in sections["forecast"].answer
    assert not sections["moves"].charts


def test_missing_forecast_has_the_reason_of_the_shown_metric() -> None:
    contents = contents_of(20)
    other = contents["backtest"].assign(metric="msg_rate_in", why="another metric")
    contents["backtest"] = pd.concat([other, contents["backtest"]], ignore_index=True)
    points = {each.name: each for each in make_sections(contents, summary_of(20))}["forecast"].points
    assert points == ["public/new: short: needs 3 days of hourly windows, has 0.8."]


def test_namespace_newer_than_the_forecast_is_listed_as_such() -> None:
    contents = contents_of(20)
    contents["backtest"] = contents["backtest"].query("key != 'public/new'")
    points = {each.name: each for each in make_sections(contents, summary_of(20))}["forecast"].points
    assert points == ["public/new: not forecast yet (--step forecast)."]


def test_broker_of_unknown_usage_is_in_no_share() -> None:
    contents = contents_of(2)
    contents["brokers"] = contents["brokers"].assign(mean_usage=[None, *[0.5] * 5], highest_report=[9.0, *[0.6] * 5])
    answer = make_sections(contents, summary_of(2))[0].answer
    assert "highest report: 60 % (b1:8080)" in answer


def test_fleet_that_no_number_of_brokers_serves_is_too_small() -> None:
    contents = contents_of(20)
    is_high = contents["capacity"]["quantile"] > 0.5
    contents["capacity"] = contents["capacity"].assign(exhausted_on="2026-10-11")
    contents["capacity"].loc[is_high, "needed"] = pd.NA
    capacity = make_sections(contents, summary_of(20))[3]
    assert "is too small from 2026-10-11 on" in capacity.answer
    assert not capacity.charts


def test_names_from_the_history_are_escaped() -> None:
    evil = "</script><script>alert(1)</script>"
    advice = pd.DataFrame({"kind": ["split"], "subject": [f"t/{evil}/0x0_0x1"], "text": [evil], "evidence": ["{}"]})
    contents = contents_of(2)
    contents |= {"advice": advice, "bundle_times": contents["bundle_times"].assign(bundle=evil)}
    text = make_report(contents, summary_of(2), RECOMMENDED)[PAGE].decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "why: &lt;b&gt;" in text


def test_content_security_policy_names_two_scripts_and_no_hosts() -> None:
    text = make_report(contents_of(2), summary_of(2))[PAGE].decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src ")
    scripts = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert len(scripts) == policy.count("sha256-") == 2
    assert not re.search(r"https?:(?!//www\.w3\.org/|//vega\.github\.io/)", text.replace(scripts[0], ""))


def test_tables_are_csv_files_and_the_page_shows_their_first_rows() -> None:
    hot = pd.DataFrame({"bundle": [f"b{n}" for n in range(30)], "load": [1_234_567.25] * 30, "share": [0.1234] * 30})
    hot["start_ms"] = 1_790_000_000_000
    made = make_report({**contents_of(2), "hot_bundles": hot}, summary_of(2))
    table = pd.read_csv(io.BytesIO(made["hot_bundles.csv"]))
    assert table["load"].tolist() == hot["load"].tolist()
    assert table["start"].tolist() == ["2026-09-21 14:13:20"] * 30
    text = made[PAGE].decode()
    assert "hot_bundles: the first 25 of 30 rows" in text
    assert '<td class="number">1.23 MB/s</td><td class="number">12.3 %</td>' in text


def test_section_of_a_step_not_run_says_so() -> None:
    page = Page(make_report({}, Summary("run-1", "/var/history", "/out"))[PAGE].decode())
    for name, step in (("imbalance", "balance"), ("league", "whatif"), ("capacity", "capacity"), ("advice", "advice")):
        assert f"the step {step} has not been run" in page.sections[name]
    assert not any(page.pictures.values())


def test_section_with_empty_tables_says_why() -> None:
    empty = {name: frame.iloc[:0] for name, frame in contents_of(2).items()}
    sections = {each.name: each for each in make_sections(empty, Summary("run-1", "/var/history", "/out", 0, 1))}
    assert not any(each.has_something for each in sections.values())
    assert sections["advice"].empty == "There is nothing to advise."
    assert sections["rejected"].empty == "No row of the range was rejected."
    make_report(empty, Summary("run-1", "/var/history", "/out", 0, 1))


def test_vendored_files_have_the_listed_hashes() -> None:
    listed = {name: digest for digest, name in map(str.split, (VENDOR / "SHA256SUMS").read_text().splitlines())}
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in VENDOR.iterdir()}
    assert {name: digest for name, digest in found.items() if name not in UNCHECKED} == listed
    told = (VENDOR / "README.md").read_text()
    assert [name for name in listed if f"`{name}`" not in told] == []


class ManyWindows:
    """Tables with more rows than a report reads: a year of windows."""

    rows = 120_000

    @property
    def tables(self) -> ManyWindows:
        return self

    def has(self, name: str, /) -> bool:
        return name == "imbalance"

    def read(self, name: str, /) -> NoReturn:
        raise NotImplementedError(name)

    def read_rows(self, name: str, where: object, /) -> pa.Table:
        assert (name, where) == ("imbalance", None)
        return pa.table({"start_ms": [START_MS + n * WINDOW_MS for n in range(self.rows)]})


def test_newest_windows_are_judged_when_there_are_too_many() -> None:
    read = collect(cast("JobRun", ManyWindows()))["imbalance"]["start_ms"]
    assert (len(read), read.max()) == (100_000, START_MS + (ManyWindows.rows - 1) * WINDOW_MS)
