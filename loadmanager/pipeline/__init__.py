"""What a fleet learns from its own history: transforms from tables to tables, on Spark."""

KEEP_DAYS = 365
"""Days for which windows are kept, unless a run says otherwise."""
