"""Control loops of the leader: shedding rounds, drains, splits and merges, and plans of operators."""
