"""Diagnosis: explanations, comparison with Pulsar, stuck diagnosis and the timeline."""
