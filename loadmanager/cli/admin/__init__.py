"""`loadmanager admin`: pulsar-admin's commands for load balancing, and those for what Pulsar lacks.

Exit codes: 0 done; 1 refused, with the node's reason on standard error; 2 wrong usage; 3 no node can be reached;
of `drain --wait` also 4 and 5, see `draining`.
"""

from __future__ import annotations

from loadmanager.cli.admin import (
    audit,
    backup,
    balancing,
    beside,
    brokers,
    decisions,
    namespaces,
    policies,
    status,
    topics,
    why,
)
from loadmanager.cli.admin.commands import command, group

admin = group("Ask and command a running service, as pulsar-admin does.")
for _name, _app in {
    "namespaces": namespaces.APP,
    "tenants": namespaces.TENANTS,
    "brokers": brokers.APP,
    "broker-stats": brokers.STATS,
    "ns-isolation-policy": policies.APP,
    "clusters": policies.CLUSTERS,
    "topics": topics.APP,
    "bundles": balancing.BUNDLES,
    "plans": balancing.PLANS,
    "explain": balancing.EXPLAIN,
    "balancer": balancing.BALANCER,
    "beside": beside.BESIDE,
}.items():
    admin.add_typer(_app, name=_name)
command(admin, "status")(status.status)
command(admin, "decisions", shown=decisions.show_decisions)(decisions.decisions)
backup.add_to(admin)
command(admin, "why", shown=why.show_life)(why.why)
command(admin, "audit", shown=audit.show_audit)(audit.audit)
