"""Execution of decisions: assign, unload, split and merge bundles, and finish interrupted work."""
