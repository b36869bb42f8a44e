"""What a recorded range of a history would have been with other settings: worlds beside what happened."""
