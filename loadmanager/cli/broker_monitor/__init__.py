"""The broker monitor: what every broker says of itself in the metadata store, as tables for people and for scripts.

It only reads, and it needs no load-manager node to be running.
"""
