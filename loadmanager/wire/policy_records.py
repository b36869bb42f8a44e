"""Ownership policies of operators, in Pulsar's JSON: isolation policies, failure domains, anti-affinity groups.

The metadata store has one znode per kind (see `docs/znodes.md`). They are also part of a dump.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, NotRequired, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from loadmanager.core.domain.names import BrokerId, parse_broker_id
from loadmanager.core.domain.policies import (
    MAX_PATTERNS,
    MIN_AVAILABLE,
    InvalidPolicyError,
    IsolationPolicy,
    Policies,
    UnloadScope,
    map_failure_domains,
)
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import STRICT, Namespace, parse_json

V = TypeVar("V")
_SCOPES = f"^({'|'.join(UnloadScope)})$"
_DEFAULT_PARAMETERS = {"min_limit": "1", "usage_threshold": "100"}


def _in_quotes(value: object) -> object:
    """Convert a whole number to text, as Pulsar's mapper does where it expects text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, Field(min_length=1)]


@with_config(STRICT)
class FailoverPolicy(TypedDict, total=False):
    policy_type: Annotated[str, Field(pattern=f"^{MIN_AVAILABLE}$")]
    parameters: dict[str, Annotated[str, BeforeValidator(_in_quotes), Field(pattern="^[0-9]{1,9}$")]]


@with_config(STRICT)
class IsolationData(TypedDict, total=False):
    """Pulsar's NamespaceIsolationData."""

    namespaces: list[str]
    primary: list[str]
    secondary: list[str]
    auto_failover_policy: FailoverPolicy
    unload_scope: Annotated[str, Field(pattern=_SCOPES)]


@with_config(STRICT)
class FailureDomain(TypedDict, total=False):
    brokers: list[Annotated[str, AfterValidator(parse_broker_id)]]


ISOLATION_DATA = TypeAdapter(IsolationData)
FAILURE_DOMAIN = TypeAdapter(FailureDomain)
_ISOLATION = TypeAdapter(dict[Name, IsolationData])
_DOMAINS = TypeAdapter(dict[Name, FailureDomain])
_GROUPS = TypeAdapter(dict[Namespace, Name])


def isolation_policy(name: str, data: IsolationData) -> IsolationPolicy:
    """Compile one isolation policy; raises `InvalidPolicyError`, which names the policy and the pattern."""
    parameters = _DEFAULT_PARAMETERS | data.get("auto_failover_policy", {}).get("parameters", {})
    return IsolationPolicy(
        name,
        tuple(data.get("namespaces", ())),
        tuple(data.get("primary", ())),
        tuple(data.get("secondary", ())),
        int(parameters["min_limit"]),
        int(parameters["usage_threshold"]),
    )


def isolation_policies(isolation: Mapping[str, IsolationData]) -> tuple[IsolationPolicy, ...]:
    """Compile all isolation policies. Raises `InvalidPolicyError` for an invalid one, or if there are too many."""
    patterns = sum(map(_count_patterns, isolation.values()))
    if patterns > MAX_PATTERNS:
        raise InvalidPolicyError(f"isolation policies: {patterns} patterns; all have {MAX_PATTERNS} together at most")
    return tuple(isolation_policy(name, data) for name, data in isolation.items())


def _count_patterns(data: IsolationData) -> int:
    return sum(map(len, (data.get("namespaces", ()), data.get("primary", ()), data.get("secondary", ()))))


def policies_of(
    isolation: Mapping[str, IsolationData], domains: Mapping[str, FailureDomain], groups: Mapping[str, str]
) -> Policies:
    """Combine all policies; `groups` are the anti-affinity groups of namespaces. Raises `InvalidPolicyError`."""
    brokers = {name: [BrokerId(broker) for broker in domain.get("brokers", ())] for name, domain in domains.items()}
    return Policies(
        isolation_policies(isolation),
        groups,
        map_failure_domains(brokers),
    )


def decode_isolation(data: bytes, where: str) -> dict[str, IsolationData]:
    """Decode the isolation policies by name; raises `InvalidRecordError` for an unusable one."""
    policies = parse_json(_ISOLATION, data, where)
    try:
        isolation_policies(policies)
    except InvalidPolicyError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    return policies


def _dump(adapter: TypeAdapter[dict[str, V]], policies: Mapping[str, V]) -> bytes:
    return adapter.dump_json(dict(sorted(policies.items())))


decode_domains = partial(parse_json, _DOMAINS)
decode_groups = partial(parse_json, _GROUPS)
"""Decode the anti-affinity group of each namespace that has one."""
encode_isolation = partial(_dump, _ISOLATION)
encode_domains = partial(_dump, _DOMAINS)
encode_groups = partial(_dump, _GROUPS)


class ShownMatch(TypedDict):
    """Matches of one pattern or name: the number of brokers or namespaces, some of them, and the bundles of these
    namespaces. `sentence` describes the fault of the pattern, or is empty.
    """

    kind: str
    pattern: str
    count: int
    bundles: int | None
    matches: list[str]
    sentence: str


class BrokerUnderPolicy(TypedDict):
    """Pulsar's BrokerNamespaceIsolationData: a broker, and the policy that names it, if any."""

    brokerName: str
    policyName: NotRequired[str]
    primary: bool
    namespaceRegex: NotRequired[list[str]]
