"""Timeline of the last hours in memory, for the heat map.

`grid.py` has the figures, `timeline_events.py` the events. `heat_map.py` draws as many rows and columns as are
asked for. Time comes with each call.
"""
