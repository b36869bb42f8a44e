"""Constraints on placement: filters, and the load that a plan has already moved."""
