"""Strategies for placement, shedding, splitting and merging."""
