"""Planning: the planner service with its threads and processes, explanations, and the stuck monitor."""
