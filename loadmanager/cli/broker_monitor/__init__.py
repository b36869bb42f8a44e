"""Broker monitor: reports of all brokers in the metadata store, as tables for people and scripts.

It only reads, and it needs no load-manager node to be running.
"""
