"""`loadmanager admin topics`: where a topic is served."""

from __future__ import annotations

from loadmanager.cli.admin.arguments import Topic
from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.admin.request_command import command, group

APP = group("Where topics are served.")
_BASE = "/lookup/v2/topic"


@command(APP, "lookup")
def lookup(topic: Topic) -> AdminRequest:
    """Show who owns a topic; an owner is chosen if there is none."""
    return get(_BASE, topic)


@command(APP, "bundle-range")
def bundle_range(topic: Topic) -> AdminRequest:
    """Show the range of a topic's bundle."""
    return get(_BASE, topic, "bundle")
