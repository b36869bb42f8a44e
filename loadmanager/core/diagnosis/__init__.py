"""Diagnosis: explanations, comparison with Pulsar, invariants and the timeline."""
