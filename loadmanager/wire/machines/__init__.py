"""The machines of `core.protocol` on paper: what went into a step, what came of it, and all that a machine
remembers.
"""
