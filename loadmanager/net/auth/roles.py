"""Access roles: the permission that a caller needs; each operation names exactly one."""

from __future__ import annotations

from enum import StrEnum


class AccessRole(StrEnum):
    """An access role. None contains another."""

    ANYONE = "anyone"
    """No proof of who asks: probes, and the files of the page."""

    READ = "read"
    """Questions that change nothing: decisions, explanations, metrics, what operators have laid down."""

    LOOKUP = "lookup"
    """What clients and brokers ask of a topic: where its owner listens (chosen now if there is none)."""

    OPERATE = "operate"
    """What moves bundles or keeps them from moving: unload, split, drain, pin, freeze, plans."""

    ADMIN = "admin"
    """What lays down rules for the cluster: namespaces, policies, failure domains, dynamic settings."""

    PEER = "peer"
    """What the processes of this service ask each other: a leader of an agent, mostly."""
