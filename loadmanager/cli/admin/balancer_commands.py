"""`loadmanager admin bundles`, `plans`, `explain`, `balancer`: commands that Pulsar has no equivalent of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from loadmanager.cli.admin.answer_text import (
    RESOURCES,
    Json,
    balance_lines,
    churn_lines,
    execution_lines,
    find_execution,
    plan_lines,
    plans_lines,
)
from loadmanager.cli.admin.decision_commands import decision_lines
from loadmanager.cli.admin.node_requests import AdminRequest, delete, get, post, put
from loadmanager.cli.admin.request_command import Broker, Bundle, command, group
from loadmanager.cli.text.numbers import (
    MIB,
    format_count,
    format_duration,
    format_number,
    format_quantity,
    format_relative,
    format_size,
)
from loadmanager.cli.text.text_tables import format_pairs, format_table, style_text, wrap_text

BUNDLES = group("Merge, pin and freeze bundles, and cancel their unloads.")
PLANS = group("Compute plans, and execute them later unchanged.")
EXPLAIN = group("Explain the place of a bundle, or the state of a broker.")
BALANCER = group("Inspect, freeze and dry-run the balancer.")
_BASE = "/loadbalance/v1"
_BUNDLES = f"{_BASE}/bundles"
_PLANS = f"{_BASE}/plans"

_Reason = Annotated[str, typer.Option("--reason", help="The reason, which is shown to everybody.")]
_Hash = Annotated[str, typer.Argument(metavar="HASH", help="The plan's hash.")]


class PlanKind(StrEnum):
    SHED = "shed"
    DRAIN = "drain"
    MOVES = "moves"


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@command(BUNDLES, "merge")
def merge(
    bundle: Bundle,
    neighbour: Annotated[
        str | None, typer.Option("--with", help="Range of the neighbour; default: the upper one.")
    ] = None,
) -> AdminRequest:
    """Merge two neighbouring bundles."""
    return post(_BUNDLES, bundle, "merge", body={"with": neighbour} if neighbour else {})


@command(BUNDLES, "pin")
def pin(bundle: Bundle, broker: Broker) -> AdminRequest:
    """Keep a bundle on a broker."""
    return put(_BUNDLES, bundle, "pin", body={"broker": broker})


@command(BUNDLES, "unpin")
def unpin(bundle: Bundle) -> AdminRequest:
    """Remove the pin of a bundle."""
    return delete(_BUNDLES, bundle, "pin")


@command(BUNDLES, "freeze")
def freeze_bundle(bundle: Bundle, reason: _Reason = "by an operator") -> AdminRequest:
    """Keep a bundle where it is."""
    return put(_BUNDLES, bundle, "freeze", body={"reason": reason})


@command(BUNDLES, "unfreeze")
def unfreeze_bundle(bundle: Bundle) -> AdminRequest:
    """Let a frozen bundle move again."""
    return delete(_BUNDLES, bundle, "freeze")


@command(BUNDLES, "cancel-unload")
def cancel_unload(bundle: Bundle) -> AdminRequest:
    """Cancel an unload in flight; the owner keeps the bundle."""
    return delete(_BUNDLES, bundle, "unload")


@command(PLANS, "create", lines=plan_lines)
def create_plan(
    kind: Annotated[
        PlanKind, typer.Argument(help="shed: the next shedding round; drain: empty a broker; moves: the given moves.")
    ],
    broker: Annotated[str | None, typer.Option("--broker", help="With drain: the broker to empty.")] = None,
    move: Annotated[
        list[str] | None, typer.Option("--move", help="With moves: t/ns/0x.._0x..=host:port; may be repeated.")
    ] = None,
) -> AdminRequest:
    """Compute a plan and what it would change; nothing moves."""
    body: dict[str, object] = {"kind": kind.value}
    if broker is not None:
        body["broker"] = broker
    if move:
        body["moves"] = [_move(each) for each in move]
    return replace(post(_PLANS, body=body), follow_up=find_execution)


def _move(text: str) -> dict[str, str]:
    bundle, separator, destination = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r}: expected t/ns/0x.._0x..=host:port", param_hint="--move")
    return {"bundle": bundle, "destination": destination}


@command(PLANS, "list", lines=plans_lines)
def list_plans() -> AdminRequest:
    """List the plans that the leader keeps, the newest first."""
    return get(_PLANS)


@command(PLANS, "show", lines=plan_lines)
def get_plan(plan: _Hash) -> AdminRequest:
    """Show a plan."""
    return replace(get(_PLANS, plan), follow_up=find_execution)


@command(PLANS, "execute", lines=execution_lines)
def execute_plan(
    plan: _Hash,
    *,
    even_if_frozen: Annotated[
        bool, typer.Option("--even-if-frozen", help="Execute even while the balancer is frozen. Pins still apply.")
    ] = False,
) -> AdminRequest:
    """Execute exactly this plan; stop with the reason if the cluster has changed, or the balancer is frozen."""
    return post(_PLANS, plan, "execute", evenIfFrozen=even_if_frozen)


@command(BALANCER, "freeze")
def freeze(reason: _Reason = "by an operator") -> AdminRequest:
    """Stop shedding, splits, merges and plans until `unfreeze`. Lookups and other commands still work."""
    return put(f"{_BASE}/freeze", body={"reason": reason})


@command(BALANCER, "unfreeze")
def unfreeze() -> AdminRequest:
    """End a freeze."""
    return delete(f"{_BASE}/freeze")


@command(BALANCER, "dry-run")
def dry_run(
    switch: Annotated[Switch, typer.Argument(help="on: decide and explain, but move nothing.")],
) -> AdminRequest:
    """Switch dry run on or off."""
    return put(f"{_BASE}/dry-run") if switch is Switch.ON else delete(f"{_BASE}/dry-run")


@command(BALANCER, "controls")
def controls() -> AdminRequest:
    """Show all operator controls."""
    return get(f"{_BASE}/controls")


@command(BALANCER, "balance", lines=balance_lines)
def balance() -> AdminRequest:
    """Show the balance of the load, the best possible one, and whether the fleet could bear the loss of a broker."""
    return get(f"{_BASE}/balance")


@command(BALANCER, "churn", lines=churn_lines)
def churn() -> AdminRequest:
    """Show what shedding has moved recently, and what the breaker has stopped."""
    return get(f"{_BASE}/churn")


@command(BALANCER, "lift-breaker")
def lift_breaker(
    bundle: Annotated[
        str | None, typer.Option("--bundle", help="Only for this bundle; default: for everything.")
    ] = None,
) -> AdminRequest:
    """Resume shedding that the breaker has stopped."""
    return delete(f"{_BASE}/churn/breaker", bundle=bundle)


_INDENT = "  "
_SHOWN_DECISIONS = 5
_ANYBODY = "whoever is chosen then"


def _bundle_lines(content: Json, width: int | None) -> list[str]:
    """Format the owner of a bundle and what a round would do with it, then its possible placement and the brokers."""
    placement, load = content["placement"], content["load"]
    lines = [*_owner_lines(content, width), ""]
    if placement["chosen"]:
        lines += wrap_text(f"Without its broker it would be given to {placement['chosen']}:", width)
    lines += _sentence(placement["verdict"], width)
    if placement["runnerUp"]:
        lines += wrap_text(f"runner-up: {placement['runnerUp']['sentence']}", width, _INDENT)
    for name, number in placement["dropped"].items():
        lines.append(f"{_INDENT}{name} kept away {format_quantity(number, 'broker')}")
    rates, owner = load["shortTerm"], content["ownership"]["owner"]
    of_all = format_number(load["shareOfClusterPercent"])
    of_broker = f"{format_number(load['shareOfBrokerPercent'])} % of the bytes of its broker, {of_all} % of all"
    sampled = f"{format_quantity(load['longSamples'], 'sample')}{_age(content['inputs']['sampleAgeS'])}"
    topics = format_quantity(load["topics"], "topic")
    figures = [
        ("load", f"{_rates(rates, 'In')} in; {_rates(rates, 'Out')} out; {topics}"),
        ("share", of_broker if owner else f"{of_all} % of all bytes"),
        ("known from", load["takenFrom"] or sampled),
    ]
    roles = {placement["chosen"]: "would get it", owner: "has it"}
    standings = _standings(placement["standings"], width, roles)
    return [*lines, "", *format_pairs(figures, width), "", *standings, *_last(content["decisions"], width)]


def _broker_lines(content: Json, width: int | None) -> list[str]:
    """Format what a round would take from a broker and whether it gets bundles, then its figures."""
    moves = content["wouldShed"]
    would = f"would take {len(moves)} of its bundles" if moves else "would take nothing from it"
    summary = f"{content['brokerId']} is used to {format_number(content['usagePercent'])} %; a round now {would}."
    lines = [style_text(line, "bold") for line in wrap_text(summary, width)]
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
    rates = f"{format_count(standing['msgRatePerS'])} messages/s, {_bytes_rate(standing['mibPerS'])}"
    contents = f"{format_quantity(standing['topics'], 'topic')}, {format_quantity(standing['bundles'], 'bundle')}"
    thresholds = ", ".join(f"{key} {_figure(value)}" for key, value in content["thresholds"].items())
    used = {
        name: "unknown" if content["resources"][key] is None else f"{format_number(content['resources'][key])} %"
        for key, name in RESOURCES.items()
    }
    return [
        ("usage", ", ".join(f"{name} {percent}" for name, percent in used.items())),
        ("load", f"{rates}; {contents}"),
        ("report", _age(content["inputs"]["reportAgeS"]).removeprefix(", ") or "none"),
        ("decides", f"{content['sheddingStrategy']}{': ' if thresholds else ''}{thresholds}"),
        ("all brokers", content["certificate"]["sentence"]),
    ]


def _why_not_lines(content: Json, width: int | None) -> list[str]:
    """Format the reason why a bundle is not on a broker and the remedy, then all obstacles and both brokers."""
    answer = content["answer"]
    lines = [style_text(line, "bold") for line in wrap_text(f"{answer['sentence']}.", width)]
    if answer["change"]:
        lines.append(f"To change it: {answer['change']}")
    for obstacle in content["obstacles"]:
        if obstacle["sentence"] != answer["sentence"]:
            lines += _sentence(obstacle, width)
    lines += ["", *_owner_lines(content, width), ""]
    lines += [*wrap_text(f"{content['placement']['sentence']}.", width), ""]
    roles = {content["brokerId"]: "asked for", content["ownership"]["owner"]: "has it"}
    standings = _standings(content["standings"], width, roles)
    return [*lines, *standings, *_last(content["decisions"], width)]


def _owner_lines(content: Json, width: int | None) -> list[str]:
    """Format the owner of the bundle, and what a round would do with it now."""
    ownership, shedding = content["ownership"], content["shedding"]
    owner, age_s = ownership["owner"], ownership["ageS"]
    place = f"is on {owner}" if owner else "has no owner"
    if ownership["destination"]:
        place += f", moving to {ownership['destination']}"
    if age_s is not None:
        place += f" for {format_duration(age_s)} ({ownership['reason'].replace('_', ' ')})"
    would = f"move it to {shedding['destination'] or _ANYBODY}" if shedding["wouldMove"] else "leave it there"
    summary = f"{content['bundle']} {place}{f'; a round now would {would}' if owner else ''}."
    lines = [style_text(line, "bold") for line in wrap_text(summary, width)]
    because = [shedding["stays"]] if shedding["stays"] else []
    because += [] if shedding["staysByRule"] else shedding["brokerVerdicts"]
    for explanation in because:
        lines += _sentence(explanation, width)
    return lines


def _sentence(explanation: Json, width: int | None) -> list[str]:
    sentence, change = explanation["sentence"], explanation.get("change")
    if not change:
        return wrap_text(f"{sentence}.", width, _INDENT)
    lines = wrap_text(f"{sentence}; to change it: {change}", width, _INDENT)
    if len(lines) == 1:
        return lines
    # A command in the change is to be copied: it stays on one line, without a full stop.
    return [*wrap_text(f"{sentence}; to change it:", width, _INDENT), f"{_INDENT}{_INDENT}{change}"]


def _standings(standings: Iterable[Json], width: int | None, roles: Mapping[str | None, str]) -> list[str]:
    headings = ["broker", "usage", "msgs/s", "bytes/s", "topics", "bundles (of ns)", "role"]
    rows = [
        [
            each["brokerId"],
            f"{format_number(each['usagePercent'])} %",
            format_count(each["msgRatePerS"]),
            _bytes_rate(each["mibPerS"]),
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


def _bytes_rate(mib_per_s: float) -> str:
    return f"{format_size(mib_per_s * MIB)}/s"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_duration(seconds)} old"


def _figure(value: object) -> str:
    return format_number(value) if isinstance(value, float) else str(value)


@command(EXPLAIN, "bundle", lines=_bundle_lines)
def explain_bundle(bundle: Bundle) -> AdminRequest:
    """Explain why a bundle is at its broker."""
    return get(f"{_BASE}/explain/bundle", bundle)


@command(EXPLAIN, "broker", lines=_broker_lines)
def explain_broker(broker: Broker) -> AdminRequest:
    """Explain what a round would do with a broker, and why."""
    return get(f"{_BASE}/explain/broker", broker)


@command(EXPLAIN, "why-not", lines=_why_not_lines)
def explain_why_not(bundle: Bundle, broker: Broker) -> AdminRequest:
    """Explain why a bundle is not on a broker, and what would have to change."""
    return get(f"{_BASE}/explain/why-not", bundle=bundle, broker=broker)
