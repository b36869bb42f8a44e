"""`loadmanager admin`: pulsar-admin's commands for load balancing, and our own.

Exit codes: 0 done; 1 refused, with the node's reason on standard error; 2 wrong usage; 3 no node can be reached.
`drain --wait` also uses 4 and 5, see `cli/admin/drain_commands.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from loadmanager.cli.admin import (
    backup_commands,
    balancer_commands,
    broker_commands,
    decision_commands,
    namespace_commands,
    status_command,
)
from loadmanager.cli.admin.answer_text import show
from loadmanager.cli.admin.node_requests import AdminRequest, get, post
from loadmanager.cli.admin.request_command import command, group

PULSAR = group("Control a process beside a Pulsar (`loadmanager pulsar`); its default port is 8085.")
_BASE = "/loadbalance/v1/pulsar"
_URL = "http://127.0.0.1:8085"


def _show_pulsar_status(content: object) -> None:
    """Print the status as one screen, with each obstacle in a line of its own."""
    from pydantic import ValidationError  # noqa: PLC0415 - a third of the start of every other command

    from loadmanager.wire.pulsar_records import PulsarServiceStatus  # noqa: PLC0415

    try:
        status = PulsarServiceStatus.model_validate(content)
    except ValidationError:  # a process of another version
        show(content)
        return
    age = "none yet" if status.oldest_report_s is None else f"{status.oldest_report_s:.0f} s old"
    fields = {
        "mode": status.mode,
        "cluster": f"{status.cluster}: {status.brokers} brokers, {status.bundles} bundles",
        "Pulsar's leader": status.pulsars_leader or "none",
        "Pulsar sheds by itself": _yes(status.pulsar_sheds),
        "oldest report": age,
        "failures in succession": f"{status.failures}{', stopped until go-on' if status.stopped else ''}",
        "misses": str(status.misses),
        "acts": _yes(status.acting),
    }
    _print(fields)
    for obstacle in status.obstacles:
        print(f"  {obstacle}")
    _print({"unserved bundles": "" if status.unserved else "none"})
    for bundle in status.unserved:
        print(f"  {bundle}: it has clients, and nobody owns it; a lookup of one of its topics places it")
    _print({"faults": "" if status.faults else "none"})
    for path, fault in status.faults.items():
        print(f"  {path}: {fault}")


def _print(fields: dict[str, str]) -> None:
    for name, value in fields.items():
        print(f"{name:24}{value}".rstrip())


def _yes(truth: bool) -> str:  # noqa: FBT001 - the value to format
    return "yes" if truth else "no"


def _show_text(content: object) -> None:
    print(content, end="")


@command(PULSAR, "status", shown=_show_pulsar_status, default_url=_URL)
def status() -> AdminRequest:
    """Show the state of the process, and what keeps it from acting."""
    return get(_BASE)


@command(PULSAR, "diary", shown=_show_text, default_url=_URL)
def diary(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of paragraphs; the newest come last.")] = 60,
) -> AdminRequest:
    """Show what Pulsar did, and what our rounds would have done; with --json as entries, newest first."""
    entries = get(f"{_BASE}/diary/entries", limit=rounds)
    return AdminRequest("GET", f"{_BASE}/diary", {"rounds": rounds}, for_programs=entries)


@command(PULSAR, "scores", shown=_show_text, default_url=_URL)
def scores() -> AdminRequest:
    """Show the imbalance under Pulsar, and under the strategies by the simulator's model."""
    return AdminRequest("GET", f"{_BASE}/scores/table", for_programs=get(f"{_BASE}/scores"))


@command(PULSAR, "go-on", default_url=_URL)
def go_on() -> AdminRequest:
    """Act again after repeated failed moves."""
    return post(f"{_BASE}/go-on")


admin = group("Ask and command a running service, as pulsar-admin does.")
for _name, _app in {
    "namespaces": namespace_commands.APP,
    "tenants": namespace_commands.TENANTS,
    "brokers": broker_commands.APP,
    "broker-stats": broker_commands.STATS,
    "ns-isolation-policy": namespace_commands.POLICIES,
    "clusters": namespace_commands.CLUSTERS,
    "topics": namespace_commands.TOPICS,
    "bundles": balancer_commands.BUNDLES,
    "plans": balancer_commands.PLANS,
    "explain": balancer_commands.EXPLAIN,
    "balancer": balancer_commands.BALANCER,
    "pulsar": PULSAR,
}.items():
    admin.add_typer(_app, name=_name)
command(admin, "status")(status_command.status)
command(admin, "decisions", shown=decision_commands.show_decisions)(decision_commands.decisions)
backup_commands.add_to(admin)
command(admin, "why", shown=decision_commands.show_lineage)(decision_commands.why)
command(admin, "audit", shown=decision_commands.show_audit)(decision_commands.audit)
