"""`loadmanager admin`: pulsar-admin's commands for load balancing, and those for what Pulsar lacks.

Exit codes: 0 done; 1 refused, with the node's reason on standard error; 2 wrong usage; 3 no node can be reached;
of `drain --wait` also 4 and 5, see `drain_commands`.
"""

from __future__ import annotations

from loadmanager.cli.admin import (
    audit_commands,
    backup_commands,
    balancer_commands,
    broker_commands,
    decision_commands,
    namespace_commands,
    policy_commands,
    pulsar_commands,
    status_command,
    why_command,
)
from loadmanager.cli.admin.request_command import command, group

admin = group("Ask and command a running service, as pulsar-admin does.")
for _name, _app in {
    "namespaces": namespace_commands.APP,
    "tenants": namespace_commands.TENANTS,
    "brokers": broker_commands.APP,
    "broker-stats": broker_commands.STATS,
    "ns-isolation-policy": policy_commands.APP,
    "clusters": policy_commands.CLUSTERS,
    "topics": namespace_commands.TOPICS,
    "bundles": balancer_commands.BUNDLES,
    "plans": balancer_commands.PLANS,
    "explain": balancer_commands.EXPLAIN,
    "balancer": balancer_commands.BALANCER,
    "pulsar": pulsar_commands.PULSAR,
}.items():
    admin.add_typer(_app, name=_name)
command(admin, "status")(status_command.status)
command(admin, "decisions", shown=decision_commands.show_decisions)(decision_commands.decisions)
backup_commands.add_to(admin)
command(admin, "why", shown=why_command.show_lineage)(why_command.why)
command(admin, "audit", shown=audit_commands.show_audit)(audit_commands.audit)
