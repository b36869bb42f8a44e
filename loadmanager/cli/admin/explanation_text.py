"""Explanations as people read them: the answer first, then the few numbers that decided."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from loadmanager.cli.admin.answer_text import show_lines
from loadmanager.cli.admin.decision_commands import decision_lines
from loadmanager.cli.admin.decision_stream import Json
from loadmanager.cli.text.numbers import format_count, format_duration, format_number, format_relative, format_size
from loadmanager.cli.text.text_tables import format_pairs, format_table, style_text, wrap_text

_INDENT = "  "
_SHOWN_DECISIONS = 5
_ANYBODY = "whoever is chosen then"


def show_bundle(content: object) -> None:
    """Show the place of a bundle and what a round would do with it, then its possible placement and the brokers."""
    show_lines(content, _bundle_lines)


def show_broker(content: object) -> None:
    """Show what a round would take from a broker and whether it is given bundles, then its figures."""
    show_lines(content, _broker_lines)


def show_why_not(content: object) -> None:
    """Show the reason why a bundle is not on a broker and the remedy, then all obstacles and both brokers."""
    show_lines(content, _why_not_lines)


def _bundle_lines(content: Json, width: int | None) -> list[str]:
    placement, load = content["placement"], content["load"]
    lines = [*_whereabouts(content, width), ""]
    if placement["chosen"]:
        lines += wrap_text(f"Without its broker it would be given to {placement['chosen']}:", width)
    lines += _sentence(placement["verdict"], width)
    if placement["runnerUp"]:
        lines += wrap_text(f"runner-up: {placement['runnerUp']['sentence']}", width, _INDENT)
    lines += [f"{_INDENT}{name} kept away {number} brokers" for name, number in placement["dropped"].items()]
    rates, of_broker, of_all = load["shortTerm"], load["shareOfBrokerPercent"], load["shareOfClusterPercent"]
    sampled = f"{load['longSamples']} samples{_age(content['inputs']['sampleAgeS'])}"
    figures = [
        ("load", f"{_rates(rates, 'In')} in; {_rates(rates, 'Out')} out; {load['topics']} topics"),
        ("share", f"{format_number(of_broker)} % of the bytes of its broker, {format_number(of_all)} % of all"),
        ("known from", load["takenFrom"] or sampled),
    ]
    roles = {placement["chosen"]: "would get it", content["ownership"]["owner"]: "has it"}
    standings = _standings(placement["standings"], width, roles)
    return [*lines, "", *format_pairs(figures, width), "", *standings, *_last(content["decisions"], width)]


def _broker_lines(content: Json, width: int | None) -> list[str]:
    moves = content["wouldShed"]
    would = f"would take {len(moves)} of its bundles" if moves else "would take nothing from it"
    told = f"{content['brokerId']} is used to {format_number(content['usagePercent'])} %; a round now {would}."
    lines = [style_text(line, "bold") for line in wrap_text(told, width)]
    for explanation in (*content["verdicts"], content["margin"]):
        lines += _sentence(explanation, width) if explanation else []
    lines += [
        "",
        "It is given bundles." if content["takesBundles"] else style_text("It is given no bundles:", "yellow"),
    ]
    for obstacle in content["obstacles"]:
        lines += _sentence(obstacle, width)
    if content["isOverloaded"]:
        lines.append(f"{_INDENT}It is overloaded: only when others are no better.")
    lines += ["", *format_pairs(_figures_of_broker(content), width)]
    if moves:
        rows = [[move["bundle"], move["destination"] or _ANYBODY] for move in moves]
        lines += ["", *format_table(["would leave", "for"], rows, width)]
    return [*lines, *_last(content["decisions"], width)]


def _figures_of_broker(content: Json) -> list[tuple[str, str]]:
    standing = content["standing"]
    rates = f"{format_count(standing['msgRatePerS'])} messages/s, {format_number(standing['mibPerS'])} MiB/s"
    thresholds = ", ".join(f"{key} {_figure(value)}" for key, value in content["thresholds"].items())
    return [
        ("usage", ", ".join(f"{name} {format_number(percent)} %" for name, percent in content["resources"].items())),
        ("load", f"{rates}; {standing['topics']} topics, {standing['bundles']} bundles"),
        ("report", _age(content["inputs"]["reportAgeS"]).removeprefix(", ") or "none"),
        ("decides", f"{content['sheddingStrategy']}{': ' if thresholds else ''}{thresholds}"),
        ("all brokers", content["certificate"]["sentence"]),
    ]


def _why_not_lines(content: Json, width: int | None) -> list[str]:
    answer = content["answer"]
    lines = [style_text(line, "bold") for line in wrap_text(f"{answer['sentence']}.", width)]
    if answer["change"]:
        lines += wrap_text(f"To change it: {answer['change']}.", width)
    for obstacle in content["obstacles"]:
        if obstacle["sentence"] != answer["sentence"]:
            lines += _sentence(obstacle, width)
    lines += ["", *_whereabouts(content, width), ""]
    lines += [*wrap_text(f"{content['placement']['sentence']}.", width), ""]
    roles = {content["brokerId"]: "asked for", content["ownership"]["owner"]: "has it"}
    standings = _standings(content["standings"], width, roles)
    return [*lines, *standings, *_last(content["decisions"], width)]


def _whereabouts(content: Json, width: int | None) -> list[str]:
    """Format the owner of the bundle, and what a round would do with it now."""
    ownership, shedding = content["ownership"], content["shedding"]
    owner, age_s = ownership["owner"], ownership["ageS"]
    place = f"is on {owner}" if owner else "has no owner"
    if ownership["destination"]:
        place += f", on its way to {ownership['destination']}"
    if age_s is not None:
        place += f" for {format_duration(age_s)} ({ownership['reason'].replace('_', ' ')})"
    would = f"move it to {shedding['destination'] or _ANYBODY}" if shedding["wouldMove"] else "leave it there"
    told = f"{content['bundle']} {place}{f'; a round now would {would}' if owner else ''}."
    lines = [style_text(line, "bold") for line in wrap_text(told, width)]
    because = [shedding["stays"]] if shedding["stays"] else []
    because += [] if shedding["staysByRule"] else shedding["brokerVerdicts"]
    for explanation in because:
        lines += _sentence(explanation, width)
    return lines


def _sentence(explanation: Json, width: int | None) -> list[str]:
    change = f"; to change it: {explanation['change']}" if explanation.get("change") else ""
    return wrap_text(f"{explanation['sentence']}{change}.", width, _INDENT)


def _standings(standings: Iterable[Json], width: int | None, roles: Mapping[str | None, str]) -> list[str]:
    headings = ["broker", "usage", "msgs/s", "MiB/s", "topics", "bundles (of ns)", "role"]
    rows = [
        [
            each["brokerId"],
            f"{format_number(each['usagePercent'])} %",
            format_count(each["msgRatePerS"]),
            format_number(each["mibPerS"]),
            str(each["topics"]),
            f"{each['bundles']} ({each['bundlesOfNamespace']})",
            roles.get(each["brokerId"], ""),
        ]
        for each in standings
    ]
    return format_table(headings, rows, width)


def _last(decisions: list[Json], width: int | None) -> list[str]:
    now_ms = time.time() * 1000
    lines = ["", "decided of late, newest first:"] if decisions else []
    for entry in decisions[:_SHOWN_DECISIONS]:
        lines += decision_lines(entry, width, lambda at_ms: format_relative(at_ms, now_ms))
    return lines


def _rates(load: Json, way: str) -> str:
    return f"{format_number(load[f'msgRate{way}'])} messages/s, {format_size(load[f'msgThroughput{way}'])}/s"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_duration(seconds)} old"


def _figure(value: object) -> str:
    return format_number(value) if isinstance(value, float) else str(value)
