"""What to do, the most valuable first, each with where its evidence is and the commands that do it.

| order | what is known | what to do | the command |
|---|---|---|---|
| 1 | the fleet is too small on a day of the plan | start brokers | replays the range with so many more |
| 2 | a configuration is recommended | take it over | sets each key, on all nodes at once |
| 3 | bundles above a limit because of one topic | partition the topic | names the topics of the bundle |
| 4 | bundles above a limit whose namespace is full | allow more bundles | sets the limit |
| 5 | bundles above a limit | split them | splits them |
| 6 | none of these, but brokers above the threshold of usage, or uneven load | find out why | explains it |
| 7 | brokers that report other totals than their bundles | look at the reports | shows the report |
| 8 | brokers without a limit, or silent | find out why | explains the broker |
| 9 | cold neighbours | merge them | merges them |

Commands ask the node that `LOADMANAGER_ADMIN_URL` names. What stands in them runs as it stands in a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson
import yaml

from loadmanager.config.dynamic import dynamic_keys, text_of
from loadmanager.core.settings import KEYS
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.reporting.about import About, Contents, table
from loadmanager.pipeline.reporting.findings import OFTEN_UNEVEN, median_plan, threshold, what_is_compared
from loadmanager.pipeline.reporting.units import moment, share, span, times

Evidence = Mapping[str, object]

SHOWN = 3
MORE_BROKERS = "more-brokers.yaml"
REPORT = "report"
_MOST_COMMANDS = 3
_MOST_BUNDLES = KEYS["namespace_maximum_bundles"]
_PLURALS = {"quiet_reports": "brokers", "unknown_limits": "brokers"}


@dataclass(frozen=True, slots=True)
class Action:
    """`evidence` is what of the page shows it. `files` are to be beside the page, by name, for the commands."""

    what: str
    why: str
    evidence: str
    commands: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def find_actions(contents: Contents, about: About) -> list[Action]:
    """By the table at the top."""
    found = [
        _start_brokers(contents, about),
        _take_over(contents, about),
        *(_advised(contents, kind) for kind in ("unsplittable", "split_blocked", "split")),
    ]
    if not any(found):
        found.append(_explain_overload(contents) or _look_at_balance(contents))
    found += [
        _look_at_reports(contents),
        *(_advised(contents, kind) for kind in ("unknown_limits", "quiet_reports", "merge")),
    ]
    return [each for each in found if each is not None]


def _start_brokers(contents: Contents, about: About) -> Action | None:
    plan = median_plan(contents)
    if not len(plan) or plan["exhausted_on"].isna().all():
        return None
    most = int(plan["needed"].max())
    count = max(1, most - int(plan["have"].iloc[0]))
    why = (
        f"By the median forecast the fleet is too small from {plan['exhausted_on'].dropna().iloc[0]} on:"
        f" {most} are needed within {len(plan)} days, and {plan['resource_first'].iloc[-1]} runs out first."
        " The command replays the last day with them."
    )
    what = f"Start {count} more broker{'s' if count > 1 else ''} like those that there are"
    is_here = "://" not in about.out
    scenario = {
        "name": "more-brokers",
        "fleets": [{"name": "as-recorded"}, {"name": "more", "added": [{"count": count}]}],
    }
    if about.to_ms is not None:
        scenario["from"] = moment(about.to_ms - DAY_MS)
    path, out = f"{about.out}/{REPORT}/{MORE_BROKERS}", f"{about.out}/more-brokers"
    command = _command("pipeline", "whatif", path, about.history, "--out", out)
    files = {MORE_BROKERS: yaml.safe_dump(scenario, sort_keys=False)}
    return Action(what, why, "#capacity", (command,) if is_here else (), files if is_here else {})


def _take_over(contents: Contents, about: About) -> Action | None:
    """What is recommended; the file has only what differs from the defaults, and both strategies."""
    rows = table(contents, "league")
    chosen = rows[rows["recommended"].astype(bool)] if len(rows) else rows
    values = yaml.safe_load(about.recommended) if about.recommended else None
    if not len(chosen) or not isinstance(values, dict):
        return None
    best, fleet = chosen.iloc[0], chosen.iloc[0]["fleet"]
    metric, what = what_is_compared(rows)
    others = rows[(rows["fleet"] == fleet) & ~rows["recommended"].astype(bool)][metric]
    why = f"Replayed over the range {what} for {share(best[metric])} of the time"
    why += f", with the others for {share(others.min())} to {share(others.max())}." if len(others) else "."
    keys = set(dynamic_keys())
    commands = [_set(key, text_of(value)) for key, value in values.items() if key in keys]
    return Action(f"Balance with {best['configuration']}", why, "#league", tuple(commands))


def _command(*words: str) -> str:
    return shlex.join(["loadmanager", *words])


def _set(key: str, value: str) -> str:
    return _command("admin", "brokers", "update-dynamic-config", "-c", key, "-v", value)


def _split(subject: str, __: Evidence) -> str:
    namespace, _, range_ = subject.rpartition("/")
    return _command("admin", "namespaces", "split-bundle", namespace, "-b", range_, "--unload")


def _name_topics(subject: str, __: Evidence) -> str:
    namespace, _, range_ = subject.rpartition("/")
    return _command("admin", "namespaces", "get-topic-positions", namespace, "-b", range_)


def _allow_more(_: str, evidence: Evidence) -> str:
    """Twice as many, where it is known how many there may be."""
    most = evidence.get(_MOST_BUNDLES)
    return _set(_MOST_BUNDLES, str(2 * int(most))) if isinstance(most, (int, float)) else ""


def _merge(subject: str, _: Evidence) -> str:
    return _command("admin", "bundles", "merge", subject)


def _explain(subject: str, _: Evidence) -> str:
    return _command("admin", "explain", "broker", subject)


def _show_report(subject: str, _: Evidence) -> str:
    return _command("admin", "broker-stats", "load-report", subject)


_ADVICE: dict[str, tuple[str, Callable[[str, Evidence], str]]] = {
    "unsplittable": ("Partition the one topic that makes {} too large", _name_topics),
    "split_blocked": ("Allow more bundles: {} cannot be split", _allow_more),
    "split": ("Split {}", _split),
    "unknown_limits": ("Tell the agent the limits of {}", _show_report),
    "quiet_reports": ("Find out why {} was silent", _explain),
    "merge": ("Merge {} with the next one", _merge),
}
"""By kind of advice: what to do with its subjects, and the command for one."""


def _advised(contents: Contents, kind: str) -> Action | None:
    rows = table(contents, "advice")
    rows = rows[rows["kind"] == kind].reset_index() if "kind" in rows else rows
    if not len(rows):
        return None
    what, command = _ADVICE[kind]
    subjects = rows["subject"].iloc[0] if len(rows) == 1 else f"{len(rows)} {_PLURALS.get(kind, 'bundles')}"
    commands = [command(each["subject"], orjson.loads(each["evidence"])) for _, each in rows.iterrows()]
    commands = list(dict.fromkeys(filter(None, commands)))[:_MOST_COMMANDS]
    more = f" So it is with {len(rows) - 1} more." if len(rows) > 1 else ""
    why = f"{rows['subject'].iloc[0]}: {rows['text'].iloc[0].rstrip('.')}.{more}"
    return Action(what.format(subjects), why, f"#advice-{rows['index'].iloc[0]}", tuple(commands))


def _explain_overload(contents: Contents) -> Action | None:
    rows = table(contents, "time_above")
    rows = rows[(rows["what"] == "usage") & (rows["share"] > 0)] if len(rows) else rows
    if not len(rows):
        return None
    worst = rows.sort_values("share", ascending=False).iloc[0]
    why = (
        f"It was above {share(threshold(contents, 'usage'))} for {share(worst['share'])} of the time"
        f" ({span(worst['above_s'])}), and nothing here says why."
    )
    command = _explain(worst["subject"], {})
    return Action(f"Find out what keeps {worst['subject']} busy", why, "#brokers", (command,))


def _look_at_balance(contents: Contents) -> Action | None:
    rows = table(contents, "time_above")
    rows = rows[(rows["what"] == "imbalance") & (rows["share"] > OFTEN_UNEVEN)] if len(rows) else rows
    if not len(rows):
        return None
    limit, part = times(threshold(contents, "imbalance")), share(rows["share"].iloc[0])
    why = f"The busiest broker had above {limit} the mean for {part} of the time. The command says what keeps bundles."
    return Action("Find out why load is uneven", why, "#imbalance", (_command("admin", "status"),))


def _look_at_reports(contents: Contents) -> Action | None:
    rows = table(contents, "inconsistent_brokers")
    rows = rows[rows["inconsistent"] > 0] if len(rows) else rows
    if not len(rows):
        return None
    worst = rows.sort_values("inconsistent", ascending=False).iloc[0]
    why = (
        f"{worst['inconsistent']:,} of its {worst['reports']:,} reports say other {worst['what']} than its bundles add"
        " up to: what is decided by them is off."
    )
    command = _show_report(worst["broker"], {})
    return Action(f"Look at the reports of {worst['broker']}", why, "#brokers", (command,))
