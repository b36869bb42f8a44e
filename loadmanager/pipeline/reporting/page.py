"""The report as one HTML page that fetches nothing, and its tables as CSV.

The page contains the charts and the library that draws them. Its content security policy allows no request, and no
script but the two of this package.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files

import numpy as np
import pandas as pd

from loadmanager.pipeline.reporting.actions import SHOWN, Action, find_actions
from loadmanager.pipeline.reporting.charts import Chart
from loadmanager.pipeline.reporting.contents import About, Contents
from loadmanager.pipeline.reporting.findings import FleetHealth, Number, find_numbers, judge_health
from loadmanager.pipeline.reporting.sections import TEXTS, Section, make_sections
from loadmanager.pipeline.reporting.units import between, count, moment, number, rate, share, span

PAGE = "index.html"
_ASSETS = files("loadmanager.pipeline.reporting") / "page"
_SHOWN_ROWS = 25
_FORMATS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("share", "mean_usage", "highest_mean", "highest_report", "worst_usage", "hottest_share"), share),
    **dict.fromkeys(("time_above", "time_hot", "time_full", "moved_share", "moved_again", "headroom"), share),
    **dict.fromkeys(("coverage", "baseline_coverage", "quantile"), share),
    **dict.fromkeys(("load", "mean_load", "max_load"), rate),
    **dict.fromkeys(("above_s", "observed_s", "covered_s", "duration_s", "time_above_s"), span),
}
"""Formats of numbers on the page by column; CSV files have all digits."""


def make_report(contents: Contents, about: About) -> dict[str, bytes]:
    """Make the files of a report by name: the page, its tables, and the files that its commands refer to."""
    sections, actions = make_sections(contents, about), find_actions(contents, about)[:SHOWN]
    first = _first_screen(judge_health(contents), find_numbers(contents), actions)
    made = {PAGE: _page(first, sections, about).encode()}
    for section in sections:
        made |= {f"{name}.csv": _readable(frame).to_csv(index=False).encode() for name, frame in section.tables.items()}
    return made | {name: text.encode() for action in actions for name, text in action.files.items()}


def _first_screen(health: FleetHealth, numbers: Sequence[Number], actions: Sequence[Action]) -> str:
    shown = "".join(
        f'<a href="#{each.section}"><span>{_text(each.name)}</span><strong>{_text(each.value)}</strong>'
        f'<span>{_text(each.about)}</span><span data-trend="{each.going}">{_text(each.trend)}</span></a>'
        for each in numbers
    )
    listed = "".join(map(_action, actions)) or '<li class="action">Nothing to do.</li>'
    return (
        f'<p class="health" data-state="{health.state}">{_text(health.sentence)}</p>'
        f'<p class="quiet">{_text(health.highest)}</p><div class="numbers">{shown}</div>'
        f'<h2>What to do</h2><ol class="actions">{listed}</ol>'
    )


def _action(action: Action) -> str:
    commands = "".join(
        f'<div class="command"><code>{escape(each)}</code><button data-copy>copy</button></div>'
        for each in action.commands
    )
    return (
        f'<li class="action"><h3>{_text(action.what)}</h3><p>{_text(action.why)}'
        f' <a href="{action.evidence}">The evidence</a></p>{commands}</li>'
    )


def _page(first: str, sections: Sequence[Section], about: About) -> str:
    library, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("vendor/vega.js", "page.js"))
    scripts = " ".join(f"'sha256-{_digest(each)}'" for each in (library, script))
    is_known = about.from_ms is not None and about.to_ms is not None
    known = f"{between(about.from_ms or 0, about.to_ms or 0)} UTC" if is_known else "unknown range"
    return _PAGE.format(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-eval' {scripts}",
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        about=escape(f"{about.history}, {known}; run {about.run}"),
        first=first,
        links=" ".join(f'<a href="#{each.name}">{each.name.capitalize()}</a>' for each in sections),
        sections="\n".join(map(_section, sections)),
        library=library,
        script=script,
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(text: str) -> str:
    """Escape a sentence, and keep each number and its unit on one line."""
    return re.sub(r"(?<=\d) (?=[%A-Za-z])", "\N{NO-BREAK SPACE}", escape(text))


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{_text(TEXTS[section.name].question)}</h2>']
    if section.has_something:
        points = "".join(f"<li>{_text(each)}</li>" for each in section.points)
        text = f"<details><summary>recommended.yaml</summary><pre>{escape(section.text)}</pre></details>"
        parts += [f'<p class="answer">{_text(section.answer)}</p>'] if section.answer else []
        parts += [f"<ul>{points}</ul>"] if points else []
        parts += map(_figure, section.charts)
        parts += [_table(name, frame) for name, frame in section.tables.items() if len(frame)]
        parts += [text] if section.text else []
    else:
        parts.append(f'<p class="empty">{_text(section.empty)}</p>')
    return "".join([*parts, f'<p class="quiet">{_text(TEXTS[section.name].note)}</p></section>'])


def _figure(chart: Chart) -> str:
    keys = "".join(f'<span class="key" data-style="{style}">{escape(text)}</span>' for style, text in chart.keys)
    spec = json.dumps(chart.spec, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure data-picture><figcaption>{escape(chart.label)} {keys}</figcaption>"
        f'<div class="plot" role="img" aria-label="{escape(chart.label)}"></div>'
        f'<script type="application/json">{spec}</script></figure>'
    )


def _table(name: str, frame: pd.DataFrame) -> str:
    """Write the first rows, folded; each row has an id of its own."""
    shown = _readable(frame.head(_SHOWN_ROWS))
    columns = [str(column) for column in shown.columns]
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    rows = "".join(
        f'<tr id="{name}-{at}">{"".join(map(_cell, columns, row))}</tr>'
        for at, row in enumerate(shown.itertuples(index=False, name=None))
    )
    size = (
        f"the first {len(shown)} of {count(len(frame), 'row')}" if len(frame) > len(shown) else count(len(frame), "row")
    )
    return (
        f"<details><summary>{name}: {size}</summary>"
        f'<p><a href="{name}.csv" download>{name}.csv</a> has all rows.</p>'
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _readable(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace milliseconds by formatted times."""
    at = {name: str(name).removesuffix("_ms") for name in frame.columns if str(name).endswith("_ms")}
    return frame.assign(**{name: frame[name].map(moment, na_action="ignore") for name in at}).rename(columns=at)


def _cell(column: str, value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "<td></td>"
    if isinstance(value, (bool, np.bool_)):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return f'<td class="number">{escape(_FORMATS.get(column, number)(float(value)))}</td>'
    return f"<td>{escape(str(value))}</td>"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>Fleet report</title><style>{style}</style></head>
<body><header><h1>Fleet report</h1><p class="quiet">{about}</p></header>
<main>{first}
<p class="quiet">Commands ask the node that LOADMANAGER_ADMIN_URL names, by default the one on this machine.</p>
<nav aria-label="Sections">{links}</nav>
<noscript><p>Charts need JavaScript, which is off; tables do not.</p></noscript>
{sections}
</main><dl id="tip" hidden></dl>
<script type="module">{library}</script><script type="module">{script}</script>
</body>
</html>
"""
