"""What a heat map shows of the last hours, kept in memory: `grid.py` has the figures, `timeline_events.py` what
happened when, and `heat_map.py` makes of a grid as many rows and columns as are asked for. Time comes with each call.
"""
