"""Logging, atomic file replacement, malloc tuning, optional dependencies and the clock."""
