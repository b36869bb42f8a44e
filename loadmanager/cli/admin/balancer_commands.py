"""`loadmanager admin bundles`, `plans`, `explain`, `balancer`, `decisions`: what Pulsar has no commands for."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from loadmanager.cli.admin.arguments import Broker, Bundle
from loadmanager.cli.admin.explanation_text import show_broker, show_bundle, show_why_not
from loadmanager.cli.admin.node_requests import AdminRequest, delete, get, post, put
from loadmanager.cli.admin.plan_text import find_execution, show_balance, show_execution, show_plan, show_plans
from loadmanager.cli.admin.request_command import command, group

BUNDLES = group("An operator's hand on single bundles.")
PLANS = group("Plans: computed first, carried out later exactly as they were.")
EXPLAIN = group("Why things are as they are.")
BALANCER = group("The balancer as a whole.")
_BASE = "/loadbalance/v1"
_BUNDLES = f"{_BASE}/bundles"
_PLANS = f"{_BASE}/plans"

_Reason = Annotated[str, typer.Option("--reason", help="Why, for those who will ask.")]
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
    neighbour: Annotated[str | None, typer.Option("--with", help="The neighbour's range; else the upper one.")] = None,
) -> AdminRequest:
    """Make one bundle of two neighbours."""
    return post(_BUNDLES, bundle, "merge", body={"with": neighbour} if neighbour else {})


@command(BUNDLES, "pin")
def pin(bundle: Bundle, broker: Broker) -> AdminRequest:
    """Keep a bundle on a broker."""
    return put(_BUNDLES, bundle, "pin", body={"broker": broker})


@command(BUNDLES, "unpin")
def unpin(bundle: Bundle) -> AdminRequest:
    """Let a pinned bundle go where it is placed."""
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
    """Take back an unload that is under way; the owner keeps the bundle."""
    return delete(_BUNDLES, bundle, "unload")


@command(PLANS, "create", shown=show_plan)
def create_plan(
    kind: Annotated[
        PlanKind, typer.Argument(help="shed: as the balancer would; drain: empty a broker; moves: as told.")
    ],
    broker: Annotated[str | None, typer.Option("--broker", help="With drain: which broker.")] = None,
    move: Annotated[
        list[str] | None, typer.Option("--move", help="With moves: t/ns/0x.._0x..=host:port; may be repeated.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Save it, too, for `loadmanager plan verify FILE`.")
    ] = None,
) -> AdminRequest:
    """Compute a plan and what it would change; nothing moves."""
    body: dict[str, object] = {"kind": kind.value}
    if broker is not None:
        body["broker"] = broker
    if move:
        body["moves"] = [_move(each) for each in move]
    request = replace(post(_PLANS, body=body), follow_up=find_execution)
    return request if out is None else replace(request, then=partial(_save_computed, out))


def _save_computed(out: str, answer: object) -> AdminRequest:
    assert isinstance(answer, dict), "a plan"
    return save_plan(str(answer["hash"]), out)


def _move(text: str) -> dict[str, str]:
    bundle, separator, destination = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r}: expected t/ns/0x.._0x..=host:port", param_hint="--move")
    return {"bundle": bundle, "destination": destination}


@command(PLANS, "list", shown=show_plans)
def list_plans() -> AdminRequest:
    """List the plans that the leader keeps, the newest first."""
    return get(_PLANS)


@command(PLANS, "show", shown=show_plan)
def get_plan(plan: _Hash) -> AdminRequest:
    """Show a plan."""
    return replace(get(_PLANS, plan), follow_up=find_execution)


@command(PLANS, "save")
def save_plan(
    plan: _Hash, out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write.")]
) -> AdminRequest:
    """Save a plan with all that proves what it says of itself, for `loadmanager plan verify FILE`."""
    return replace(get(_PLANS, plan, "file"), save_to=out)


@command(PLANS, "execute", shown=show_execution)
def execute_plan(
    plan: _Hash,
    *,
    even_if_frozen: Annotated[
        bool, typer.Option("--even-if-frozen", help="Also while the balancer is frozen; pins are kept all the same.")
    ] = False,
) -> AdminRequest:
    """Carry out exactly that plan, or stop with the reason if the cluster has changed, or the balancer is frozen."""
    return post(_PLANS, plan, "execute", evenIfFrozen=even_if_frozen)


@command(EXPLAIN, "bundle", shown=show_bundle)
def explain_bundle(bundle: Bundle) -> AdminRequest:
    """Say why a bundle is where it is."""
    return get(f"{_BASE}/explain/bundle", bundle)


@command(EXPLAIN, "broker", shown=show_broker)
def explain_broker(broker: Broker) -> AdminRequest:
    """Say what the balancer thinks of a broker."""
    return get(f"{_BASE}/explain/broker", broker)


@command(EXPLAIN, "why-not", shown=show_why_not)
def explain_why_not(bundle: Bundle, broker: Broker) -> AdminRequest:
    """Say why a bundle is not on a broker, and what would have to change."""
    return get(f"{_BASE}/explain/why-not", bundle=bundle, broker=broker)


@command(BALANCER, "freeze")
def freeze(reason: _Reason = "by an operator") -> AdminRequest:
    """Shed, split and merge nothing and execute no plan until `unfreeze`; lookups are answered, and commands obeyed."""
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
    """Show everything that operators have told the balancer."""
    return get(f"{_BASE}/controls")


@command(BALANCER, "balance", shown=show_balance)
def balance() -> AdminRequest:
    """Show how even the load lies beside what no assignment can beat, and whether a loss could be borne."""
    return get(f"{_BASE}/balance")


@command(BALANCER, "churn")
def churn() -> AdminRequest:
    """Show what shedding has moved of late, and what the breaker has stopped."""
    return get(f"{_BASE}/churn")


@command(BALANCER, "lift-breaker")
def lift_breaker(
    bundle: Annotated[str | None, typer.Option("--bundle", help="Only of this bundle; else of everything.")] = None,
) -> AdminRequest:
    """Let shedding go on that the breaker has stopped."""
    return delete(f"{_BASE}/churn/breaker", bundle=bundle)
