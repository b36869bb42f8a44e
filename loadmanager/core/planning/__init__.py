"""Planning: the phases of a decision, limits on churn, and certificates of plans."""
