"""Beside a Pulsar: looks at its brokers, plans as a leader does, judges what Pulsar does, and moves bundles if told to.

A fourth driver of the same core. What is the leader's own (the planner service, the executor, drains, plans, the
recorder) is used as it is; here is only what is different beside a Pulsar, whose brokers have no agents and whose
owners Pulsar decides.

| the question | the file |
|---|---|
| what is read of a Pulsar, and that nothing is written | `reading`, `znodes`, `picture` |
| what is asked of its brokers over REST | `admin` |
| by which settings it plans | `settings` |
| when it may act, and when it must not | `core/protocol/guardrails.py` |
| how a bundle is moved | `owners`, `ledger` |
| what Pulsar did, and what we would have done | `core/diagnosis/pulsar_comparison.py`, `diary`, `scoring` |
| how it all holds together | `service` |
"""
