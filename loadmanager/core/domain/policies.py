"""Policies on ownership: isolation, anti-affinity and failure domains.

Source: Pulsar's namespace isolation policies, the anti-affinity group of a namespace, and failure domains. Patterns are
Java's: each must match the whole namespace (`tenant/namespace`), or the whole host of a broker (its id up to the last
colon).

Differs from Pulsar: of several isolation policies that match a namespace, the first by name applies; Pulsar takes the
first in its hash map. Of several failure domains that list a broker, the last by name applies. RE2 matches the patterns
in linear time, where Java may need exponential time; patterns that RE2 does not support are rejected.

`match_policy` and `match_names` preview the matches of patterns before a policy is set.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import re2

from loadmanager.core.domain.names import BrokerId, broker_host

DEFAULT_DOMAIN = "default"
"""Failure domain of brokers that are in none."""

MIN_AVAILABLE = "min_available"
"""The only kind of failover policy."""

MAX_PATTERNS = 1_000
"""Maximum number of patterns of all isolation policies: each is compiled, and matched with each broker."""

_MAX_PATTERN_LENGTH = 1_000
_MAX_PATTERN_MEMORY = 256 * 1024
"""Memory limit of a compiled pattern and its match cache, in bytes."""

_ESCAPE = re.compile(r"\\Q(.*?)(?:\\E|$)|\\0([0-3]?[0-7]{1,2})|\\.", re.DOTALL)
"""Java's escapes: quoted text, an octal character, or an escaped character."""

_ELEMENT = re.compile(
    r"""
    (?P<reference>\\[1-9])
    | (?P<byte>\\C)
    | \\[pPx]\{[^}]*\} | \\.
    | \[\^?\]?(?:\\[^1-9]|(?P<combined>\[|&&)|[^\]\\])*
    | (?P<look_around>\(\?<?[=!])
    | (?P<atomic>\(\?>)
    | (?P<brace>\{(?![0-9]{1,4}(?:,[0-9]{0,4})?\}))
    """,
    re.DOTALL | re.VERBOSE,
)
_REFUSED = {
    "reference": "what a group has matched cannot be referred to",
    "byte": "invalid escape sequence: \\C",
    "combined": "character classes cannot be combined",
    "look_around": "it cannot look ahead or behind",
    "atomic": "groups cannot be atomic",
    "brace": "no repetition: {",
}
"""Elements of Java patterns that RE2 lacks or interprets differently; RE2 rejects others itself."""

_SHOWN_NAMESPACES = 5
_SHOWN_CHARACTERS = 80
"""Maximum length of a pattern in an error."""

_Pattern = re2._Regexp  # noqa: SLF001 - what `re2.compile` returns has no other name


class InvalidPolicyError(ValueError):
    """An invalid policy; the message names the policy, the pattern and the fault."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of whole texts. Raises `InvalidPolicyError`."""

    patterns: tuple[str, ...] = ()
    _compiled: tuple[_Pattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", tuple(map(_compile, self.patterns)))

    def find(self, text: str) -> str | None:
        """Find the first pattern that matches."""
        pairs = zip(self.patterns, self._compiled, strict=True)
        return next((pattern for pattern, compiled in pairs if compiled.fullmatch(text)), None)


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Isolation policy: namespaces that match `namespaces` belong on brokers that match `primary`, which serve no
    others.

    With fewer than `min_limit` primary brokers available, brokers that match `secondary` may own them too.
    `usage_threshold` (percent) is not used, as in Pulsar's placement. Raises `InvalidPolicyError`.
    """

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1
    usage_threshold: int = 100
    _namespaces: Patterns = field(init=False, repr=False, compare=False)
    _primary: Patterns = field(init=False, repr=False, compare=False)
    _secondary: Patterns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for kind in ("namespaces", "primary", "secondary"):
            patterns = getattr(self, kind)
            for pattern in patterns:
                self._check(kind, pattern)
            object.__setattr__(self, f"_{kind}", Patterns(patterns))

    def covers(self, namespace: str) -> bool:
        return self._namespaces.find(namespace) is not None

    def has_primary(self, host: str) -> bool:
        return self._primary.find(host) is not None

    def has_secondary(self, host: str) -> bool:
        """Return True if the host matches `secondary` and is not primary."""
        return self._secondary.find(host) is not None and not self.has_primary(host)

    def _check(self, kind: str, pattern: str) -> None:
        try:
            _compile(pattern)
        except InvalidPolicyError as error:
            shown = pattern[:_SHOWN_CHARACTERS]
            raise InvalidPolicyError(f"isolation policy {self.name!r}: {kind} {shown!r}: {error}") from None


class UnloadScope(enum.StrEnum):
    """Pulsar's scope of unloads when an isolation policy is set."""

    CHANGED = "changed"
    ALL_MATCHING = "all_matching"
    NONE = "none"


def namespaces_to_unload(
    old: IsolationPolicy | None, new: IsolationPolicy, scope: str, namespaces: Iterable[str]
) -> list[str]:
    """Return the namespaces whose bundles need new brokers when `new` replaces `old`.

    With scope `changed`: those that only one of the policies covers; if the brokers changed, those that either covers.
    """
    if scope == UnloadScope.NONE:
        return []

    def is_affected(namespace: str) -> bool:
        was = old is not None and old.covers(namespace)
        if scope == UnloadScope.ALL_MATCHING or old is None or _brokers_of(old) != _brokers_of(new):
            return was or new.covers(namespace)
        return was != new.covers(namespace)

    return [namespace for namespace in namespaces if is_affected(namespace)]


def _brokers_of(policy: IsolationPolicy) -> tuple[set[str], set[str], int]:
    return set(policy.primary), set(policy.secondary), policy.min_limit


@dataclass(frozen=True, slots=True, eq=False)
class Policies:
    """All policies at one moment. `isolation` is sorted by name.

    `anti_affinity_groups` maps a namespace to its group: namespaces of one group are kept on different brokers. Groups
    are case-insensitive, and a blank one is none. `failure_domains` maps a broker to its domain. Matches are cached.
    Raises `InvalidPolicyError` for two policies of one name.
    """

    isolation: tuple[IsolationPolicy, ...] = ()
    anti_affinity_groups: Mapping[str, str] = field(default_factory=dict)
    failure_domains: Mapping[BrokerId, str] = field(default_factory=dict)
    _policies: dict[str, IsolationPolicy | None] = field(default_factory=dict, init=False, repr=False)
    _primaries: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False)
    _secondaries: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False)
    _shared: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    _members: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.isolation, key=lambda policy: policy.name)
        for policy, following in pairwise(ordered):
            if policy.name == following.name:
                raise InvalidPolicyError(f"isolation policy {policy.name!r}: is there twice")
        groups = {name: group.strip().lower() for name, group in sorted(self.anti_affinity_groups.items())}
        groups = {name: group for name, group in groups.items() if group}
        for name, group in groups.items():
            self._members.setdefault(group, []).append(name)
        object.__setattr__(self, "isolation", tuple(ordered))
        object.__setattr__(self, "anti_affinity_groups", groups)

    def find_policy(self, namespace: str) -> IsolationPolicy | None:
        if namespace not in self._policies:
            self._policies[namespace] = next((each for each in self.isolation if each.covers(namespace)), None)
        return self._policies[namespace]

    def find_group(self, namespace: str) -> str | None:
        """Find the anti-affinity group of the namespace, in lower case."""
        return self.anti_affinity_groups.get(namespace)

    def has_policy(self, namespace: str) -> bool:
        """Return True if the namespace has an isolation policy or an anti-affinity group."""
        return self.find_policy(namespace) is not None or self.find_group(namespace) is not None

    def members(self, group: str) -> Sequence[str]:
        """Return the sorted namespaces of a group as returned by `find_group`."""
        return self._members[group]

    def is_primary(self, policy: IsolationPolicy, broker: BrokerId) -> bool:
        key = policy.name, broker
        if key not in self._primaries:
            self._primaries[key] = policy.has_primary(broker_host(broker))
        return self._primaries[key]

    def is_secondary(self, policy: IsolationPolicy, broker: BrokerId) -> bool:
        key = policy.name, broker
        if key not in self._secondaries:
            self._secondaries[key] = policy.has_secondary(broker_host(broker))
        return self._secondaries[key]

    def is_shared(self, broker: BrokerId) -> bool:
        """Return True if the broker is no policy's primary, so that it may serve namespaces without a policy."""
        if broker not in self._shared:
            self._shared[broker] = not any(self.is_primary(policy, broker) for policy in self.isolation)
        return self._shared[broker]

    def failure_domain(self, broker: BrokerId) -> str:
        return self.failure_domains.get(broker, DEFAULT_DOMAIN)


NO_POLICIES = Policies()


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Sorted namespaces that no broker may own, with their isolation policy; "" for those without."""

    policy: str
    namespaces: tuple[str, ...]

    @property
    def sentence(self) -> str:
        shown = ", ".join(self.namespaces[:_SHOWN_NAMESPACES])
        more = len(self.namespaces) - _SHOWN_NAMESPACES
        who = f"{shown} and {more} more" if more > 0 else shown
        if not self.policy:
            return f"No broker may own {who}: each is the primary of an isolation policy, and these are in none"
        return f"No broker may own {who}: isolation policy {self.policy!r} matches no registered broker"


def find_unplaceable(policies: Policies, brokers: Collection[BrokerId], namespaces: Iterable[str]) -> list[Unplaceable]:
    """Find the namespaces that none of these brokers may own, by policy; empty without brokers."""
    if not policies.isolation or not brokers:
        return []
    by_policy: dict[IsolationPolicy | None, list[str]] = {}
    for namespace in namespaces:
        by_policy.setdefault(policies.find_policy(namespace), []).append(namespace)
    return [
        Unplaceable(policy.name if policy else "", tuple(sorted(of_policy)))
        for policy, of_policy in sorted(by_policy.items(), key=lambda each: each[0].name if each[0] else "")
        if not _any_may_own(policies, policy, brokers)
    ]


def _any_may_own(policies: Policies, policy: IsolationPolicy | None, brokers: Collection[BrokerId]) -> bool:
    if policy is None:
        return any(map(policies.is_shared, brokers))
    if any(policies.is_primary(policy, broker) for broker in brokers):
        return True
    return policy.min_limit > 0 and any(policies.is_secondary(policy, broker) for broker in brokers)


def map_failure_domains(domains: Mapping[str, Iterable[BrokerId]]) -> dict[BrokerId, str]:
    return {broker: domain for domain, brokers in sorted(domains.items()) for broker in brokers}


@lru_cache(maxsize=2 * MAX_PATTERNS)
def _compile(pattern: str) -> _Pattern:
    """Compile the pattern for RE2; `InvalidPolicyError` has the fault."""
    if len(pattern) > _MAX_PATTERN_LENGTH:
        raise InvalidPolicyError(f"longer than {_MAX_PATTERN_LENGTH} characters")
    translated = _ESCAPE.sub(_translate_escape, pattern)
    for found in _ELEMENT.finditer(translated):
        if found.lastgroup is not None:
            raise InvalidPolicyError(_REFUSED[found.lastgroup])
    try:
        return re2.compile(translated, _options())
    except re2.error as error:
        raise InvalidPolicyError(error.args[0].decode()) from None
    except UnicodeEncodeError as error:
        raise InvalidPolicyError(error.reason) from None


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_MEMORY
    options.log_errors = False
    options.never_capture = True
    return options


def _translate_escape(found: re.Match[str]) -> str:
    """Translate an escape to RE2: quoted text and octal characters."""
    quoted, octal = found.groups()
    if quoted is not None:
        return re2.escape(quoted)
    return found[0] if octal is None else f"\\x{int(octal, 8):02x}"


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
