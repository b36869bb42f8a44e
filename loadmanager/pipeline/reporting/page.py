"""The report as one HTML page that fetches nothing, and its tables as CSV.

The page contains the charts and the library that draws them. Its content security policy allows no request, and no
script but the two of this package.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from importlib.resources import files

import jinja2
import numpy as np
import pandas as pd

from loadmanager.pipeline.reporting.actions import SHOWN, find_actions
from loadmanager.pipeline.reporting.contents import SHOWN_ROWS, Contents
from loadmanager.pipeline.reporting.findings import find_numbers, judge_health
from loadmanager.pipeline.reporting.sections import TEXTS, make_sections
from loadmanager.pipeline.reporting.units import between, count, moment, number, rate, share, span
from loadmanager.pipeline.step import Summary

PAGE = "index.html"
_ASSETS = files("loadmanager.pipeline.reporting") / "page"
_FORMATS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("share", "mean_usage", "highest_mean", "highest_report", "worst_usage"), share),
    **dict.fromkeys(("time_above", "time_hot", "time_full", "moved_share", "moved_again", "headroom"), share),
    **dict.fromkeys(("coverage", "baseline_coverage", "quantile"), share),
    **dict.fromkeys(("load", "mean_load", "max_load"), rate),
    **dict.fromkeys(("above_s", "observed_s", "covered_s", "duration_s", "time_above_s"), span),
}
"""Formats of numbers on the page by column; CSV files have all digits."""


def make_report(contents: Contents, summary: Summary, recommended: str | None = None) -> dict[str, bytes]:
    """Make the files of a report by name: the page, its tables, and the files that its commands refer to."""
    sections = make_sections(contents, summary, recommended)
    actions = find_actions(contents, summary, recommended)[:SHOWN]
    style, library, script = (_asset(name) for name in ("page.css", "vendor/vega.js", "page.js"))
    scripts = " ".join(f"'sha256-{_digest(each)}'" for each in (library, script))
    from_ms, to_ms = summary.from_ms, summary.to_ms
    page = _environment().from_string(_asset("page.html"))
    text = page.render(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-eval' {scripts}",
        style=style,
        library=library,
        script=script,
        summary=summary,
        known="unknown range" if from_ms is None or to_ms is None else f"{between(from_ms, to_ms)} UTC",
        health=judge_health(contents),
        numbers=find_numbers(contents),
        actions=actions,
        sections=sections,
        texts=TEXTS,
        shown_rows=SHOWN_ROWS,
    )
    made = {PAGE: text.encode()}
    for section in sections:
        made |= {f"{name}.csv": _readable(frame).to_csv(index=False).encode() for name, frame in section.tables.items()}
    return made | {name: text.encode() for action in actions for name, text in action.files.items()}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"units": _with_units, "readable": _readable, "cell": _cell, "count": count}
    return environment


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _with_units(text: str) -> str:
    """Keep each number and its unit on one line."""
    return re.sub(r"(?<![\w/:.,-])(\d[\d.,]*) (?=[%A-Za-z])", "\\1\N{NO-BREAK SPACE}", text)


def _readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace milliseconds by formatted times."""
    at = {name: str(name).removesuffix("_ms") for name in frame.columns if str(name).endswith("_ms")}
    return frame.assign(**{name: frame[name].map(moment, na_action="ignore") for name in at}).rename(columns=at)


def _cell(value: object, column: str) -> tuple[str, bool]:
    """Return the text of a cell, and whether it is a number."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "", False
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no", False
    if isinstance(value, (int, float, np.integer, np.floating)):
        return _FORMATS.get(column, number)(float(value)), True
    return str(value), False
