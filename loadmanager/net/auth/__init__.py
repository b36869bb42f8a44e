"""Authentication and authorization: access roles of operations, and the tokens of callers."""
