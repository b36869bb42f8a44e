"""Recommended actions, the most valuable first, each with a link to its evidence and commands that run as printed.

| order | finding | action | command |
|---|---|---|---|
| 1 | the fleet is too small on a day of the plan | start brokers | replays the last day with more brokers |
| 2 | a configuration is recommended | apply it | sets each key, on all nodes at once |
| 3 | bundles above a limit because of one topic | partition the topic | lists the topics of the bundle |
| 4 | bundles above a limit in a full namespace | allow more bundles | sets the limit |
| 5 | bundles above a limit | split them | splits them |
| 6 | none of these, but overloaded brokers or uneven load | find the cause | explains it |
| 7 | brokers that report other totals than their bundles | check the reports | shows the report |
| 8 | brokers without a limit, or silent | find the cause | explains the broker |
| 9 | cold neighbours | merge them | merges them |

Commands ask the node that `LOADMANAGER_ADMIN_URL` names.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson
import pandas as pd
import yaml

from loadmanager.config.dynamic_settings import dynamic_keys, text_of
from loadmanager.core.domain.resources import HOT
from loadmanager.core.domain.settings import KEYS
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.reporting.contents import SHOWN_ROWS, Contents, table
from loadmanager.pipeline.reporting.findings import MINIMUM_S, OFTEN_UNEVEN, median_plan, threshold
from loadmanager.pipeline.reporting.units import count, moment, share, span, times
from loadmanager.pipeline.step import Summary

SHOWN = 3
MORE_BROKERS = "more-brokers.yaml"
REPORT = "report"
COMPARED = "time_hot"
"""Column of the league that the report compares configurations by."""
COMPARED_TEXT = f"some broker was above {share(HOT)}"
_MOST_COMMANDS = 3
_MOST_BUNDLES = KEYS["namespace_maximum_bundles"]
_SUBJECTS = {"quiet_reports": "broker", "unknown_limits": "broker"}


@dataclass(frozen=True, slots=True)
class Action:
    """One recommended action. `evidence` is an anchor of the page; `files` are put beside the page, by name."""

    what: str
    why: str
    evidence: str
    commands: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def find_actions(contents: Contents, summary: Summary, recommended: str | None = None) -> list[Action]:
    """Apply the rules at the top of this module."""
    found = [
        _start_brokers(contents, summary),
        _apply_configuration(contents, recommended),
        *(_follow_advice(contents, kind) for kind in ("unsplittable", "split_blocked", "split")),
    ]
    if not any(found):
        found.append(_explain_overload(contents) or _explain_imbalance(contents))
    found += [
        _check_reports(contents),
        *(_follow_advice(contents, kind) for kind in ("unknown_limits", "quiet_reports", "merge")),
    ]
    return [each for each in found if each is not None]


def _start_brokers(contents: Contents, summary: Summary) -> Action | None:
    plan = median_plan(contents)
    if plan["exhausted_on"].isna().all():
        return None
    needed, days, last = plan["needed"], count(len(plan), "day"), plan["resource_first"].iloc[-1]
    why = f"The fleet is too small from {plan['exhausted_on'].dropna().iloc[0]} on by the median forecast."
    if needed.isna().any():
        why += f" No number of brokers is enough: an idle one leaves too little {last} free."
        return Action("Use larger brokers, or lower the headroom", why, "#capacity")
    most = int(needed.max())
    more = max(1, most - int(plan["have"].iloc[0]))
    why += f" {most} are needed within {days}; {last} runs out first. The command replays the last day with them."
    what = f"Start {more} more broker{'' if more == 1 else 's'} like the present ones"
    if "://" in summary.out:
        return Action(what, why, "#capacity")
    fleets = [{"name": "as-recorded"}, {"name": "more", "added": [{"count": more}]}]
    scenario = {"name": "more-brokers", "fleets": fleets}
    if summary.to_ms is not None:
        scenario["from"] = moment(summary.to_ms - DAY_MS)
    path, out = f"{summary.out}/{REPORT}/{MORE_BROKERS}", f"{summary.out}/more-brokers"
    tried = "pipeline run {history} --out {out} --step whatif --scenarios {path}"
    command = _command(tried, path=path, history=summary.history, out=out)
    return Action(what, why, "#capacity", (command,), {MORE_BROKERS: yaml.safe_dump(scenario, sort_keys=False)})


def _apply_configuration(contents: Contents, recommended: str | None) -> Action | None:
    """Recommend the configuration of the file, which has both strategies and what differs from the defaults."""
    rows = table(contents, "league")
    chosen = rows[rows["recommended"].astype(bool)]
    values = yaml.safe_load(recommended) if recommended else None
    if not len(chosen) or not isinstance(values, dict):
        return None
    best = chosen.iloc[0]
    others = rows[(rows["fleet"] == best["fleet"]) & ~rows["recommended"].astype(bool)][COMPARED]
    why = f"Replayed over the range, {COMPARED_TEXT} for {share(best[COMPARED])} of the time"
    why += f"; with the others for {share(others.min())} to {share(others.max())}." if len(others) else "."
    keys = set(dynamic_keys())
    commands = [_command(_SET, key=key, value=text_of(value)) for key, value in values.items() if key in keys]
    return Action(f"Balance with {best['configuration']}", why, "#league", tuple(commands))


def _command(template: str, **values: object) -> str:
    """Fill in the words of a command of `loadmanager`."""
    return shlex.join(["loadmanager", *(word.format(**values) for word in template.split())])


_SET = "admin brokers update-dynamic-config -c {key} -v {value}"
_EXPLAIN = "admin explain broker {subject}"
_SHOW_REPORT = "admin broker-stats load-report {subject}"
_ADVICE = {
    "unsplittable": (
        "Partition the one topic that makes {} too large",
        "admin namespaces get-topic-positions {namespace} -b {range}",
    ),
    "split_blocked": ("Allow more bundles: {} cannot be split", _SET),
    "split": ("Split {}", "admin namespaces split-bundle {namespace} -b {range} --unload"),
    "unknown_limits": ("Set the limits of {} in its agent", _SHOW_REPORT),
    "quiet_reports": ("Find out why {} was silent", _EXPLAIN),
    "merge": ("Merge {} with the next one", "admin bundles merge {subject}"),
}
"""Action and command by kind of advice."""


def _advice_commands(kind: str, rows: pd.DataFrame) -> Iterator[str]:
    for subject, evidence in zip(rows["subject"], map(orjson.loads, rows["evidence"]), strict=True):
        namespace, _, range_ = subject.rpartition("/")
        most = evidence.get(_MOST_BUNDLES, 0)
        if most or kind != "split_blocked":
            values = {"subject": subject, "namespace": namespace, "range": range_}
            yield _command(_ADVICE[kind][1], key=_MOST_BUNDLES, value=2 * int(most), **values)


def _follow_advice(contents: Contents, kind: str) -> Action | None:
    rows = table(contents, "advice")
    rows = rows[rows["kind"] == kind].reset_index()
    if not len(rows):
        return None
    first, others = rows.iloc[0], len(rows) - 1
    subjects = count(len(rows), _SUBJECTS.get(kind, "bundle")) if others else first["subject"]
    commands = list(dict.fromkeys(_advice_commands(kind, rows)))[:_MOST_COMMANDS]
    more = f" The same holds for {others} more." if others else ""
    why = f"{first['subject']}: {first['text'].rstrip('.')}.{more}"
    evidence = f"#advice-{first['index']}" if first["index"] < SHOWN_ROWS else "#advice"
    return Action(_ADVICE[kind][0].format(subjects), why, evidence, tuple(commands))


def _explain_overload(contents: Contents) -> Action | None:
    rows = _observed(contents, "usage")
    rows = rows[rows["above_s"] > 0]
    if not len(rows):
        return None
    worst = rows.sort_values("above_s", ascending=False).iloc[0]
    part = f"{share(worst['share'])} of the time ({span(worst['above_s'])})"
    why = f"It was above {share(threshold(contents, 'usage'))} for {part}, and no other finding explains it."
    command = _command(_EXPLAIN, subject=worst["subject"])
    return Action(f"Find out what keeps {worst['subject']} busy", why, "#brokers", (command,))


def _explain_imbalance(contents: Contents) -> Action | None:
    rows = _observed(contents, "imbalance")
    rows = rows[rows["share"] > OFTEN_UNEVEN]
    if not len(rows):
        return None
    limit, part = times(threshold(contents, "imbalance")), share(rows["share"].iloc[0])
    why = f"The imbalance was above {limit} for {part} of the time. The command says why nothing moves."
    return Action("Find out why load is uneven", why, "#imbalance", (_command("admin status"),))


def _observed(contents: Contents, what: str) -> pd.DataFrame:
    """Return the rows of `time_above` that were observed for long enough to speak of a share."""
    rows = table(contents, "time_above")
    return rows[(rows["what"] == what) & (rows["observed_s"] >= MINIMUM_S)]


def _check_reports(contents: Contents) -> Action | None:
    rows = table(contents, "inconsistent_brokers")
    rows = rows[rows["inconsistent"] > 0]
    if not len(rows):
        return None
    worst = rows.sort_values("inconsistent", ascending=False).iloc[0]
    part = f"{worst['inconsistent']:,} of {worst['reports']:,} reports"
    why = f"In {part}, {worst['what']} differs from the sum over the bundles. Decisions that use it are off."
    command = _command(_SHOW_REPORT, subject=worst["broker"])
    return Action(f"Check the reports of {worst['broker']}", why, "#brokers", (command,))
