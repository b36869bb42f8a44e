"""Who may ask for what: roles of operations, and the tokens by which callers are known."""
