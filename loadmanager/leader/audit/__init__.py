"""What a leader writes down of what it saw, decided and moved: for the history, and for whoever asks."""
