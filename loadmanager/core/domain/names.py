"""Names in Pulsar's formats: topics, namespaces, bundle ranges, bundles and broker ids. Parsing, format, order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NewType

BrokerId = NewType("BrokerId", str)
"""`<advertised address>:<web port>`: an identifier that looks like an address; the host ends at the last colon."""

HASH_SPACE_END = 0xFFFFFFFF
"""The highest hash, part of the last bundle, the only range with a closed upper end."""

SYSTEM_NAMESPACE = "pulsar/system"
"""Namespace of the Pulsar brokers' internal topics."""

_SELF_TEST_NAMESPACE = re.compile(r"(pulsar|sla-monitor)/[^:]+:\d+")
DOMAINS = ("persistent", "non-persistent")
_NAME_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_RANGE = re.compile(r"0x[0-9a-f]{8}_0x[0-9a-f]{8}")
_MAX_NAME_LENGTH = 2048
_MAX_PORT = 65535
_NAMESPACES_KEPT = 1_024


class InvalidNameError(ValueError):
    """An invalid name; the message has the value, the fault and the expected form."""


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`; in Pulsar's V1 form `tenant/cluster/namespace`, the cluster being part of the local name.

    Our namespaces have no cluster. `parse_any` accepts both forms, for recorded names.
    """

    tenant: str
    local_name: str
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", f"{self.tenant}/{self.local_name}")

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        parts = text.split("/")
        if len(parts) != 2:  # noqa: PLR2004 - a tenant and a name
            raise InvalidNameError(f"namespace {text[:80]!r}: expected 'tenant/namespace'")
        return cls.of(parts[0], parts[1])

    @classmethod
    def parse_any(cls, text: str) -> NamespaceName:
        tenant, *names = text.split("/")
        if len(names) != 2:  # noqa: PLR2004 - a cluster and a name
            return cls.parse(text)
        cluster, name = names
        return cls(_name_part("tenant", tenant), f"{_name_part('cluster', cluster)}/{_name_part('namespace', name)}")

    @classmethod
    def of(cls, tenant: str, local_name: str) -> NamespaceName:
        return cls(_name_part("tenant", tenant), _name_part("namespace", local_name))

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """`persistent://tenant/namespace/topic`; the text form, with any `-partition-N`, is what gets hashed."""

    domain: str
    namespace: NamespaceName
    local_name: str
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", f"{self.domain}://{self.namespace}/{self.local_name}")

    @classmethod
    def parse(cls, text: str) -> TopicName:
        domain, separator, rest = text.partition("://")
        parts = rest.split("/", 2)
        if not separator or len(parts) != 3:  # noqa: PLR2004 - tenant, namespace, topic
            raise InvalidNameError(f"topic {text[:80]!r}: expected 'persistent://tenant/namespace/topic'")
        return cls.of(domain, *parts)

    @classmethod
    def of(cls, domain: str, tenant: str, namespace: str, local_name: str) -> TopicName:
        if domain not in DOMAINS:
            raise InvalidNameError(f"topic domain {domain!r}: expected one of {', '.join(DOMAINS)}")
        check_local_name(local_name)
        return cls(domain, NamespaceName.of(tenant, namespace), local_name)

    def __str__(self) -> str:
        return self._text


def check_local_name(text: str) -> None:
    """Raise `InvalidNameError` unless it can be the last part of a topic's name."""
    if not text or len(text) > _MAX_NAME_LENGTH or "\0" in text:
        raise InvalidNameError(f"topic name {text[:80]!r}: expected 1 to {_MAX_NAME_LENGTH} characters")


@dataclass(frozen=True, slots=True, order=True)
class BundleRange:
    """The hashes from `lower` up to `upper`, without `upper` itself unless it is the end of the hash space."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper <= HASH_SPACE_END:
            raise InvalidNameError(
                f"bundle range 0x{self.lower:08x}_0x{self.upper:08x}:"
                " expected 0x00000000 <= lower < upper <= 0xffffffff"
            )

    @classmethod
    def parse(cls, text: str) -> BundleRange:
        if not _RANGE.fullmatch(text):
            raise InvalidNameError(
                f"bundle range {text[:80]!r}: expected 0xLLLLLLLL_0xUUUUUUUU in lower-case hexadecimal"
            )
        lower, upper = text.split("_")
        return cls(int(lower, 16), int(upper, 16))

    def __contains__(self, topic_hash: int) -> bool:
        return self.lower <= topic_hash < self.upper or (topic_hash == self.upper == HASH_SPACE_END)

    def __str__(self) -> str:
        return f"0x{self.lower:08x}_0x{self.upper:08x}"


@dataclass(frozen=True, slots=True, order=True)
class BundleName:
    """`tenant/namespace/0xLLLLLLLL_0xUUUUUUUU`; ordered by namespace, then by lower bound."""

    namespace: NamespaceName
    range: BundleRange

    @classmethod
    def parse(cls, text: str) -> BundleName:
        namespace, bundle_range = _split_bundle(text)
        return cls(_parse_namespace(namespace), BundleRange.parse(bundle_range))

    @classmethod
    def parse_any(cls, text: str) -> BundleName:
        """Parse with a namespace in either form of Pulsar's."""
        namespace, bundle_range = _split_bundle(text)
        return cls(NamespaceName.parse_any(namespace), BundleRange.parse(bundle_range))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"


def parse_broker_id(text: str) -> BrokerId:
    host, separator, port = text.rpartition(":")
    usable_host = bool(host) and not any(c in host for c in "/\0 ")
    if not separator or not usable_host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
        raise InvalidNameError(f"broker id {text[:80]!r}: expected 'host:port'")
    return BrokerId(text)


def broker_host(broker_id: BrokerId) -> str:
    """Return the part of a broker id that isolation policies match: all before the last colon."""
    host, colon, port = broker_id.rpartition(":")
    return host if colon else port


def namespace_of(bundle: str) -> str:
    """Return the namespace part of a bundle's full name."""
    return bundle.rpartition("/")[0]


def is_self_test_namespace(namespace: str) -> bool:
    """Return True if a Pulsar broker tests itself in the namespace: it belongs to that broker and never moves.

    The V1 form, with a cluster before the broker, counts too.
    """
    return _SELF_TEST_NAMESPACE.fullmatch(namespace) is not None


@lru_cache(maxsize=_NAMESPACES_KEPT)
def _parse_namespace(text: str) -> NamespaceName:
    """Parse a namespace. Cached, since the bundles of a namespace are parsed one after the other."""
    return NamespaceName.parse(text)


def _split_bundle(text: str) -> tuple[str, str]:
    namespace, separator, bundle_range = text.rpartition("/")
    if not separator:
        raise InvalidNameError(f"bundle {text[:80]!r}: expected 'tenant/namespace/0xLLLLLLLL_0xUUUUUUUU'")
    return namespace, bundle_range


def _name_part(field: str, text: str) -> str:
    if not _NAME_PART.fullmatch(text) or text in (".", "..") or len(text) > _MAX_NAME_LENGTH:
        raise InvalidNameError(f"{field} {text[:80]!r}: expected letters, digits and any of '-=:._'")
    return text
