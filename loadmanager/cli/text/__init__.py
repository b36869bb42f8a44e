"""Numbers, times, tables and lines of text for people."""
