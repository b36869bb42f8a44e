"""What only the elected leader may do: win a term, and write under its epoch."""
