"""Codecs of the state machines in `core.protocol`: events, answers, actions and checkpoints."""
