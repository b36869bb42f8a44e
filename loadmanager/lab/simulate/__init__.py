"""Simulator of a fleet in virtual time, balanced by the leader's own functions."""
