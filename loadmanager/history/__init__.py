"""Recorded history: the leader's inputs and decisions in Parquet files, with their writer and reader."""
