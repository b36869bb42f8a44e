"""Conformance test of a broker against its contract (docs/broker-contract.md), with a scripted agent."""
