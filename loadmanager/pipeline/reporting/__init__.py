"""The report that a run leaves: what is read of the tables, what it says, and the page."""
