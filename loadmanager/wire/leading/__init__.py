"""The machines of `core.leading` on paper: what went into a step, what came of it, and all that a machine remembers."""
