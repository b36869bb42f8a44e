"""What a fleet learns from its own history: transforms from tables to tables, on Spark."""
