"""`loadmanager beside`: look at a Pulsar's balancing, judge it, and do it better if told to."""

from __future__ import annotations
