"""Decisions outside a live cluster: simulation, replay, what-if and `decide`."""
