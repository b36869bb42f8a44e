"""What the strategy Level is made of: what load costs, how uneven it lies, what would make it even, and when to act."""
