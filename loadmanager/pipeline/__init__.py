"""Spark pipeline over a fleet's history: ingest, windows, forecasts, advice and a report."""

KEEP_DAYS = 365
"""Days for which windows are kept, unless a run says otherwise."""
