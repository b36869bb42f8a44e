"""Comparison of a recorded range of a history with simulations of it under other settings."""
