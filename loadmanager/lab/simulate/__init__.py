"""A model of a fleet in virtual time, balanced by the very functions that the leader runs."""
