"""Leadership: win a term, and write under its fencing epoch."""
