"""Optimality certificates: lower bounds of the imbalance and of the load to move, and a plan's gap to them."""
