"""One page with all of it, pictures and the library that draws them in it, nothing to be fetched; and tables as CSV.

Its security policy says so: a browser asks nobody for anything, and runs no script but the two of this package.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from loadmanager.pipeline.reporting.about import About, Contents
from loadmanager.pipeline.reporting.actions import SHOWN, Action, find_actions
from loadmanager.pipeline.reporting.findings import Health, Number, find_numbers, judge_health
from loadmanager.pipeline.reporting.pictures import Picture
from loadmanager.pipeline.reporting.sections import Section, make_sections
from loadmanager.pipeline.reporting.tables import readable, write_table
from loadmanager.pipeline.reporting.units import between

PAGE = "index.html"
_ASSETS = files("loadmanager.pipeline.reporting") / "page"


def make_report(contents: Contents, about: About) -> dict[str, bytes]:
    """The files of a report by their names: the page, each of its tables, and what commands on it refer to."""
    sections, actions = make_sections(contents, about), find_actions(contents, about)[:SHOWN]
    first = _first_screen(judge_health(contents), find_numbers(contents), actions)
    made = {PAGE: _page(first, sections, about).encode()}
    for section in sections:
        made |= {f"{name}.csv": readable(frame).to_csv(index=False).encode() for name, frame in section.tables.items()}
    return made | {name: text.encode() for action in actions for name, text in action.files.items()}


def _first_screen(health: Health, numbers: Sequence[Number], actions: Sequence[Action]) -> str:
    shown = "".join(
        f'<a href="#{each.section}"><span>{escape(each.name)}</span><strong>{escape(each.value)}</strong>'
        f'<span>{escape(each.about)}</span><span data-trend="{each.going}">{escape(each.trend)}</span></a>'
        for each in numbers
    )
    listed = "".join(map(_action, actions)) or '<li class="action">Nothing that would be worth it now.</li>'
    return (
        f'<p class="health" data-state="{health.state}">{escape(health.sentence)}</p><div class="numbers">{shown}</div>'
        f'<h2>What to do</h2><ol class="actions">{listed}</ol>'
    )


def _action(action: Action) -> str:
    commands = "".join(
        f'<div class="command"><code>{escape(each)}</code><button data-copy>copy</button></div>'
        for each in action.commands
    )
    return (
        f'<li class="action"><h3>{escape(action.what)}</h3><p>{escape(action.why)}'
        f' <a href="{action.evidence}">The evidence</a></p>{commands}</li>'
    )


def _page(first: str, sections: Iterable[Section], about: About) -> str:
    sections = list(sections)
    library, script = _asset("vendor/vega.js"), _asset("page.js")
    scripts = " ".join(f"'sha256-{_digest(each)}'" for each in (library, script))
    known = "a range not known"
    if about.from_ms is not None and about.to_ms is not None:
        known = between(about.from_ms, about.to_ms)
    return _PAGE.format(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-eval' {scripts}",
        style=_asset("page.css"),
        about=escape(f"{about.history}, {known} UTC; run {about.run}"),
        first=first,
        links=" ".join(f'<a href="#{each.name}">{escape(each.title)}</a>' for each in sections),
        sections="\n".join(map(_section, sections)),
        library=library,
        script=script,
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{escape(section.question)}</h2>']
    if section.has_something:
        parts += [f'<p class="answer">{escape(section.answer)}</p>'] if section.answer else []
        parts += (
            [f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in section.points)}</ul>"] if section.points else []
        )
        parts += map(_figure, section.pictures)
        parts += [write_table(name, frame) for name, frame in section.tables.items() if len(frame)]
        parts += (
            [f"<details><summary>recommended.yaml</summary><pre>{escape(section.text)}</pre></details>"]
            if section.text
            else []
        )
    else:
        parts.append(f'<p class="empty">{escape(section.empty)}</p>')
    return "".join([*parts, f'<p class="quiet">{escape(section.note)}</p></section>'])


def _figure(picture: Picture) -> str:
    keys = "".join(f'<span class="key" data-style="{style}">{escape(text)}</span>' for style, text in picture.keys)
    spec = json.dumps(picture.spec, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure data-picture><figcaption>{escape(picture.label)} {keys}</figcaption>"
        f'<div class="plot" role="img" aria-label="{escape(picture.label)}"></div>'
        f'<script type="application/json">{spec}</script></figure>'
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>What the fleet's history says</title><style>{style}</style></head>
<body><header><h1>What the fleet's history says</h1><p class="quiet">{about}</p></header>
<main>{first}
<p class="quiet">Commands ask the node that LOADMANAGER_ADMIN_URL names, else the one on this machine.</p>
<nav aria-label="Sections">{links}</nav>
<noscript><p>Pictures are drawn by a script in this page, which is off here; the tables need none.</p></noscript>
{sections}
</main><dl id="tip" hidden></dl>
<script type="module">{library}</script><script type="module">{script}</script>
</body>
</html>
"""
