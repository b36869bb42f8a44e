"""A real Pulsar: observe how its brokers balance, compare with our own rounds, and move bundles on request.

It uses the core, planner, executor, drains, plans and recorder of a node's leader unchanged. Two things differ:
brokers have no agents, and Pulsar assigns the owners.

| concern | modules |
|---|---|
| REST API | `pulsar_admin`, `rest_call`, `rest_answers` |
| mirror | `pulsar_intake`, `pulsar_namespaces`, `report_dates` |
| settings | `broker_settings`, `preflight`, `take_over` |
| guardrails | `guardrail_facts`, `core/protocol/guardrails.py` |
| moves | `pulsar_owners`, `pulsar_ledger`, `move_log`, `split_actuator` |
| comparison | `comparison_driver`, `verdict`, `scores`, `activity_log` |
| process | `pulsar_service` |
"""
