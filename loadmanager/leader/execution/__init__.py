"""Execution of decisions: assign, unload, split and merge bundles, and reconcile what is left unfinished."""
