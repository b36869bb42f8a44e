"""Replay of a leader's recorded decisions."""
