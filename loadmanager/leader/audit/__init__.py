"""Records of a leader's inputs, decisions and moves: the recorded history, the decision log and the audit log."""
