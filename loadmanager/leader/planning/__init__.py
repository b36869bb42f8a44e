"""What a decision needs: the snapshot of the moment, what strategies remember, and a thread."""
