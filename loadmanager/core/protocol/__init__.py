"""Passive state machines of a leader: events in, actions out; no clock, no loop, no I/O."""
