"""The history: what the leader saw and did, in Parquet files, and how they are written and read."""
