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
from loadmanager.cli.admin.answer_text import Json
from loadmanager.cli.admin.node_requests import AdminRequest, get, post
from loadmanager.cli.admin.request_command import command, group
from loadmanager.cli.text.numbers import format_quantity

PULSAR = group("Control a process beside a Pulsar (`loadmanager pulsar`); its default port is 8085.")
_BASE = "/loadbalance/v1/pulsar"
_URL = "http://127.0.0.1:8085"


def _status_lines(status: Json, _: int | None) -> list[str]:
    """Format the status of the process, with each obstacle in a line of its own."""
    age_s = status["oldestReportS"]
    unserved = "it has clients, and no owner; a lookup of one of its topics assigns it"
    brokers, bundles = format_quantity(status["brokers"], "broker"), format_quantity(status["bundles"], "bundle")
    figures = {
        "mode": status["mode"],
        "cluster": f"{status['cluster']}: {brokers}, {bundles}",
        "Pulsar's leader": status["pulsarsLeader"] or "none",
        "Pulsar sheds by itself": "yes" if status["pulsarSheds"] else "no",
        "oldest report": "none yet" if age_s is None else f"{age_s:.0f} s old",
        "failures in succession": f"{status['failures']}{', stopped until resume' if status['stopped'] else ''}",
        "misses": status["misses"],
        "acts": "yes" if status["acting"] else "no",
    }
    return [
        *(f"{name:24}{figure}" for name, figure in figures.items()),
        *(f"  {obstacle}" for obstacle in status["obstacles"]),
        "unserved bundles" if status["unserved"] else f"{'unserved bundles':24}none",
        *(f"  {bundle}: {unserved}" for bundle in status["unserved"]),
        "faults" if status["faults"] else f"{'faults':24}none",
        *(f"  {path}: {fault}" for path, fault in status["faults"].items()),
    ]


@command(PULSAR, "status", lines=_status_lines, default_url=_URL)
def status() -> AdminRequest:
    """Show the state of the process, and what keeps it from acting."""
    return get(_BASE)


@command(PULSAR, "diary", default_url=_URL)
def diary(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of paragraphs; the newest come last.")] = 60,
) -> AdminRequest:
    """Show what Pulsar did, and what our rounds would have done; with --json as entries, newest first."""
    entries = get(f"{_BASE}/diary/entries", limit=rounds)
    return AdminRequest("GET", f"{_BASE}/diary", {"rounds": rounds}, for_programs=entries)


@command(PULSAR, "scores", default_url=_URL)
def scores() -> AdminRequest:
    """Show the imbalance under Pulsar, and under the strategies by the simulator's model."""
    return AdminRequest("GET", f"{_BASE}/scores/table", for_programs=get(f"{_BASE}/scores"))


@command(PULSAR, "resume", default_url=_URL)
def resume() -> AdminRequest:
    """Act again after repeated failed moves."""
    return post(f"{_BASE}/resume")


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
command(admin, "decisions", lines=decision_commands.decisions_lines)(decision_commands.decisions)
admin.command("export")(backup_commands.export)
command(admin, "import")(backup_commands.import_)
command(admin, "why", lines=decision_commands.lineage_lines)(decision_commands.why)
command(admin, "audit", lines=decision_commands.audit_lines)(decision_commands.audit)
