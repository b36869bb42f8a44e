"""The cluster in columns: reports, averages, ownership, and read-only snapshots."""
