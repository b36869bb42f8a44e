"""What a node sees of the cluster, and of its own settings, as the store has them now."""
