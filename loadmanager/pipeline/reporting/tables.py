"""Tables as people read them: times in UTC, parts in percent, rates in bytes a second; folded, with their beginning."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import pandas as pd

from loadmanager.pipeline.reporting.units import moment, number, rate, share, span

_SHOWN_ROWS = 25
_SAID: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("share", "mean_usage", "max_usage", "worst_usage", "hottest_share", "headroom"), share),
    **dict.fromkeys(("time_above", "time_hot", "time_full", "moved_share", "moved_again"), share),
    **dict.fromkeys(("coverage", "baseline_coverage", "quantile"), share),
    **dict.fromkeys(("load", "mean_load", "max_load"), rate),
    **dict.fromkeys(("above_s", "observed_s", "covered_s", "duration_s", "time_above_s"), span),
}
"""By column, how its figures are said on the page; files have all digits."""


def write_table(name: str, frame: pd.DataFrame) -> str:
    """The first rows, each with an id of its own; all of them are in the file beside the page."""
    shown = readable(frame.head(_SHOWN_ROWS))
    columns = [str(column) for column in shown.columns]
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    rows = "".join(
        f'<tr id="{name}-{at}">{"".join(map(_cell, columns, row))}</tr>'
        for at, row in enumerate(shown.itertuples(index=False, name=None))
    )
    count = f"the first {len(shown):,} of {len(frame):,} rows" if len(frame) > len(shown) else f"{len(frame):,} rows"
    return (
        f"<details><summary>{name}: {count}</summary>"
        f'<p><a href="{name}.csv" download>{name}.csv</a> has all of them.</p>'
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """With moments in place of milliseconds."""
    at = [name for name in frame.columns if str(name).endswith("_ms")]
    found = frame.assign(**{name: frame[name].map(_moment, na_action="ignore") for name in at})
    return found.rename(columns={name: name.removesuffix("_ms") for name in at})


def _moment(at_ms: float) -> str:
    return moment(at_ms)


def _cell(column: str, value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "<td></td>"
    if isinstance(value, (bool, np.bool_)):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return f'<td class="number">{escape(_SAID.get(column, number)(float(value)))}</td>'
    return f"<td>{escape(str(value))}</td>"
