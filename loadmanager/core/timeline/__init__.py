"""What a heat map shows of the last hours, kept in memory: `grid.py` has the figures, `moments.py` what happened when,
and `drawing.py` makes of a grid as many rows and columns as are asked for. Time comes with each call.
"""
