"""What a leader has under way, as passive machines: events in, instructions out; no clock, no loop, no I/O."""
