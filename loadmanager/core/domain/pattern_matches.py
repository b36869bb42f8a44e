"""Preview of patterns and names in a setting: current matches, and a hint for those without any."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from loadmanager.core.domain.names import BrokerId, broker_host
from loadmanager.core.domain.policies import IsolationPolicy, Patterns

_PORT = re.compile(r".*:(\d+|\\d\+)")
_BRACKETS = re.compile(r"(?<!\\)\[[0-9a-fA-F:]*:[0-9a-fA-F:]*(?<!\\)\]")


class PatternMatch(NamedTuple):
    """One pattern or name: its kind, its sorted matches, and its fault, or ""."""

    kind: str
    pattern: str
    matches: tuple[str, ...]
    hint: str


def match_policy(
    policy: IsolationPolicy, brokers: Collection[BrokerId], namespaces: Collection[str]
) -> list[PatternMatch]:
    """Return the matches of each pattern of an isolation policy."""
    found = [_match("namespaces", pattern, {each: each for each in namespaces}) for pattern in policy.namespaces]
    hosts = {str(broker): broker_host(broker) for broker in brokers}
    for kind, patterns in (("primary", policy.primary), ("secondary", policy.secondary)):
        found += [_match(kind, pattern, hosts) for pattern in patterns]
    return found


def match_names(kind: str, names: Iterable[str], known: Collection[str]) -> list[PatternMatch]:
    """Match names against the known ones, each as a pattern of its own."""
    return [
        PatternMatch(kind, name, (name,) if name in known else (), "" if name in known else _hint(kind, name))
        for name in names
    ]


def _match(kind: str, pattern: str, texts: dict[str, str]) -> PatternMatch:
    compiled = Patterns((pattern,))
    matches = tuple(sorted(name for name, text in texts.items() if compiled.find(text) is not None))
    return PatternMatch(kind, pattern, matches, "" if matches else _hint(kind, pattern))


def _hint(kind: str, pattern: str) -> str:
    """Return a hint why nothing matches, as far as the pattern shows it."""
    if "://" in pattern:
        part = "tenant/namespace, without a domain" if kind == "namespaces" else "a host, without a scheme"
        return f"it matches nothing: expected {part}"
    if kind == "namespaces":
        return "it matches nothing" + ("" if "/" in pattern else ": expected tenant/namespace")
    if kind == "brokers":
        return "it is not registered"
    if _BRACKETS.search(pattern):
        return "it matches nothing: brackets stand for one character of those in them; write \\[ and \\]"
    if _PORT.fullmatch(pattern):
        return "it matches nothing: expected a host, without a port"
    return "it matches nothing"
