"""Sidecar of a broker: registration, reports, leases, ownership grants and unloads."""
